#!/usr/bin/env python3
"""`tessera plan --time` as its users run it: figures that belong together, machines, changes of them, files, nonsense.

usage: tessera_time_test.py TESSERA
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import plan_runs

TOOL = sys.argv.pop(1)
LLAMA = ["--model", "llama-7b", "--precision", "bf16", "--batch", 2, "--time"]
MACHINE = {"tessera_machine": 1, "name": "toy", "about": "round numbers", "ranks_per_host": 4,
           "peak": {"fp32": 1e12}, "products": {"fp32": 1e12}, "memory": 1e12, "collectives": "ring",
           "host": {"latency": 0, "bandwidth": 1e9}}


def plan(*arguments):
    return plan_runs.plan(TOOL, *arguments)


def refused(*arguments):
    done = plan_runs.run(TOOL, *arguments)
    assert done.returncode != 0, "taken: " + " ".join(map(str, arguments))
    assert done.stderr.count("\n") == 1 and not done.stdout, done
    return done.stderr.strip()


class Toy(unittest.TestCase):
    """A machine of the test's own, on which times follow from sizes."""
    network = {"latency": 1e-3, "bandwidth": 2e9}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def machine(self, **changed):
        path = self.folder / "toy.json"
        path.write_text(json.dumps({**MACHINE, **changed}))
        return path

    def time(self, ranks, *arguments, **changed):
        return plan("--mlp", "1024x1024x1024", "--world", ranks, "--batch", 512, "--time", "--machine",
                    self.machine(**changed), *arguments)


class Times(Toy):
    def test_one_rank_takes_the_time_of_its_products_and_passes(self):
        time = self.time(1, memory=1e20)["time"]
        self.assertAlmostEqual(time["step_seconds"], 2 * 3 * 2 * 512 * 1024 * 1024 / 1e12, delta=1e-6)
        self.assertAlmostEqual(time["share_of_peak"], 1, places=4)
        self.assertLess(time["exposed"], 1e-9)

    def test_a_window_that_goes_on_works_once(self):
        path = self.folder / "nested.json"
        path.write_text(json.dumps({
            "units": [{"name": name, "parameters": [{"name": "weight", "shape": [1024, 1024]}]} for name in ("outer", "inner")],
            "program": {"micro_batch": ["forward outer", "forward inner", "resume forward outer",
                                        "backward outer", "backward inner", "resume backward outer"]}}))
        time = plan("--units", path, "--world", 1, "--batch", 512, "--time", "--machine", self.machine(memory=1e20))["time"]
        self.assertAlmostEqual(time["step_seconds"], 2 * 3 * 2 * 512 * 1024 * 1024 / 1e12, delta=1e-6)
        self.assertAlmostEqual(time["share_of_peak"], 1, places=4)

    def test_slices_and_parts_of_sequences_share_tokens_and_slices_hide_some_of_what_they_move(self):
        def time(*ranks):
            return plan("--model", "gpt2-124m", "--seq", 128, "--batch", 2, "--time", "--machine",
                        self.machine(memory=1e20, host={"latency": 0, "bandwidth": 1e12}), *ranks)["time"]

        alone = time("--world", 1)
        for axis in ["context", "tensor"]:
            cut = time("--mesh", f"{axis}=4")
            self.assertAlmostEqual(4 * cut["tokens_per_second_and_rank"] * cut["step_seconds"], 256, delta=1e-6)
            self.assertAlmostEqual(4 * cut["computing"], alone["computing"], delta=0.05 * alone["computing"])
        # Four of a block's ten gathers and scatters run beside products.
        shown = cut["critical_path"]["collective"] / cut["time_by_kind"]["collective"]
        self.assertTrue(0.55 < shown < 0.65, shown)

    def stages(self, mesh, micro_batches, *arguments, **changed):
        """Stages of two equal blocks each, on a machine without memory to wait for."""
        path = self.machine(**{"memory": 1e20, "host": {"latency": 0, "bandwidth": 1e20}, **changed})
        return plan("--layers", 8, "--dim", 256, "--heads", 4, "--seq", 64, "--vocabulary", 8, "--batch", 4, "--mesh", mesh,
                    "--micro-batches", micro_batches, "--time", "--machine", path, *arguments)

    def test_equal_stages_stand_still_as_their_schedule_says(self):
        one = plan("--layers", 8, "--dim", 256, "--heads", 4, "--seq", 64, "--vocabulary", 8, "--batch", 4, "--time",
                   "--machine", self.machine(memory=1e20))["time"]
        for schedule, stages in [(["gpipe"], 4), (["1f1b"], 4), (["1f1b"], 2), (["interleaved", "--chunks", 2], 4), (["zb-h1"], 2),
                                 (["zb-h1"], 4)]:
            found = self.stages(f"pipeline={stages}", 8, "--schedule", *schedule)
            near = 0.02 if schedule == ["zb-h1"] else 0.005  # attention has no weights, so its halves are not equal
            for stage in found["time"]["stages"]:
                self.assertAlmostEqual(stage["bubble"], found["bubble"], delta=near, msg=(schedule, stages))
            ideal = 8 * one["step_seconds"] / stages
            self.assertAlmostEqual(found["step_seconds"], ideal / (1 - found["bubble"]), delta=near * ideal)
            self.assertAlmostEqual(stages * found["time"]["model_flops"], 8 * one["model_flops"], delta=1e-9 * one["model_flops"])
            self.assertAlmostEqual(stages * found["time"]["tokens_per_second_and_rank"] * found["step_seconds"], 8 * 256, delta=1e-6)

    def test_messages_between_stages_take_the_time_of_the_link_between_them(self):
        message = 4 * 64 * 256 * 4
        free = self.stages("pipeline=2", 1)["step_seconds"]
        inside = self.stages("pipeline=2", 1, host={"latency": 0, "bandwidth": 1e9})["step_seconds"]
        tables = (8 + 64) * 256 * 4  # of ids and of places, whose gradients both ends of the pipeline sum
        self.assertAlmostEqual(inside - free, (2 * message + tables) / 1e9, delta=1e-6)
        shard = self.stages("pipeline=2,replicate=4", 1, "--strategy", "ddp", network={"latency": 0, "bandwidth": 1e20})
        across = self.stages("pipeline=2,replicate=4", 1, "--strategy", "ddp", network={"latency": 0, "bandwidth": 2e9})
        slower = 4 * (2 * message + tables / 4) / 2e9  # four ranks of a host share its way out
        self.assertAlmostEqual(across["step_seconds"] - shard["step_seconds"], slower, delta=1e-6)

    def test_the_timeline_of_stages_has_the_bubbles_that_are_told(self):
        path = self.folder / "stages.json"
        found = self.stages("shard=2,pipeline=4", 8, "--trace", path, network={"latency": 0, "bandwidth": 1e20})
        done = subprocess.run([TOOL, "trace", "summary", path, "--json"], capture_output=True, text=True, timeout=60, check=False)
        ranks = {rank["rank"]: rank["bubble"] for rank in json.loads(done.stdout)["ranks"]}
        self.assertEqual(sorted(ranks), list(range(8)))
        for rank, bubble in ranks.items():
            self.assertAlmostEqual(bubble, found["time"]["stages"][rank % 4]["bubble"], delta=0.01)

    def test_ranks_of_a_host_share_its_memory(self):
        def passes(ranks, **changed):
            kinds = self.time(ranks, "--strategy", "ddp", memory=1e9, **changed)["time"]["time_by_kind"]
            return kinds["optimize"]

        alone = passes(4)
        self.assertAlmostEqual(passes(4, host_memory=1e9), 4 * alone, delta=1e-6 * alone)
        self.assertAlmostEqual(passes(4, host_memory=2e9), 2 * alone, delta=1e-6 * alone)
        self.assertAlmostEqual(passes(4, host_memory=8e9), alone, delta=1e-6 * alone)
        self.assertAlmostEqual(passes(1, host_memory=1e9), alone, delta=1e-6 * alone)
        # Six ranks pad a little more.
        self.assertAlmostEqual(passes(6, host_memory=1e9, network=self.network), 4 * alone, delta=1e-3 * alone)
        self.assertAlmostEqual(passes(2, host_memory=1e9, processors=2), 2 * alone, delta=1e-6 * alone)

    def test_computing_takes_longer_while_all_processors_are_busy(self):
        def windows(ranks, *arguments, **changed):
            kinds = self.time(ranks, *arguments, memory=1e20, host={"latency": 0, "bandwidth": 1e20}, **changed)["time"]["time_by_kind"]
            return kinds["forward windows"] + kinds["backward windows"]

        one = windows(1)
        self.assertAlmostEqual(windows(4, all_busy=1.5, processors=4), 1.5 * one, delta=1e-3 * one)
        self.assertAlmostEqual(windows(2, all_busy=1.5, processors=4), one, delta=1e-3 * one)
        path = self.folder / "busy.json"
        windows(1, "--trace", path, all_busy=1.5, processors=4)
        self.assertAlmostEqual(windows(4, "--profile", path, all_busy=1.5, processors=4), 1.5 * one, delta=0.01 * one)

    def test_a_profile_of_one_rank_knows_nothing_of_the_others_at_its_memory(self):
        path = self.folder / "profile.json"
        shared = {"memory": 1e9, "host_memory": 1e9}
        self.time(1, "--strategy", "ddp", "--trace", path, **shared)
        kinds = self.time(4, "--strategy", "ddp", "--profile", path, **shared)["time"]["time_by_kind"]
        self.assertAlmostEqual(kinds["optimize"], self.time(4, "--strategy", "ddp", **shared)["time"]["time_by_kind"]["optimize"],
                               delta=0.01 * kinds["optimize"])
        self.time(4, "--strategy", "ddp", "--trace", path, **shared)
        again = self.time(4, "--strategy", "ddp", "--profile", path, **shared)["time"]["time_by_kind"]
        self.assertAlmostEqual(again["optimize"], kinds["optimize"], delta=0.01 * kinds["optimize"])

    def test_a_ring_takes_the_time_of_its_bytes(self):
        found = self.time(4, "--strategy", "fsdp", memory=1e20)
        moved = sum(kind["moved"] for kind in found["traffic"]["collectives"].values()) / 1e9
        kinds = found["time"]["time_by_kind"]
        taken = kinds["all-gather"] + kinds["reduce-scatter"] + kinds["gather norms"]
        self.assertAlmostEqual(taken, moved, delta=1e-6 * moved)

    def test_parts_belong_together(self):
        for strategy in ("ddp", "zero1", "zero2", "fsdp"):
            found = self.time(4, "--strategy", strategy)
            time = found["time"]
            self.assertEqual(found["step_seconds"], time["step_seconds"])
            self.assertAlmostEqual(sum(time["critical_path"].values()), time["step_seconds"], delta=1e-9)
            self.assertAlmostEqual(sum(time["exposed_by_unit"].values()), time["exposed"], delta=1e-9)
            self.assertLessEqual(time["computing"] + time["exposed"], time["step_seconds"] * (1 + 1e-9))
            self.assertAlmostEqual(time["samples_per_second_and_rank"] * time["step_seconds"], 512, delta=1e-6)

    def test_what_if_changes_the_machine(self):
        step = self.time(4)["step_seconds"]
        self.assertLess(self.time(4, "--whatif", "bandwidth=2x")["step_seconds"], step)
        self.assertLess(self.time(4, "--whatif", "compute=1.3x,bandwidth=1x")["step_seconds"], step)
        latency = {"host": {"latency": 1e-2, "bandwidth": 1e9}}
        self.assertGreater(self.time(4, **latency)["step_seconds"], step)
        self.assertEqual(self.time(4, "--whatif", "latency=0", **latency)["step_seconds"], step)

    def test_outer_steps_cost_less_the_rarer_they_are(self):
        mesh = ("--strategy", "hsdp", "--replicas", 2)
        found = [self.time(4, *mesh, "--outer-every", every)["time"] for every in (1, 10, 100)]
        costs = [time["outer_seconds"] for time in found]
        self.assertGreater(costs[0], costs[1])
        self.assertAlmostEqual(costs[1], 10 * costs[2], delta=1e-9)
        self.assertGreater(costs[2], 0)
        inner = self.time(2, "--strategy", "fsdp")["step_seconds"]
        self.assertAlmostEqual(found[2]["step_seconds"], inner + costs[2], delta=1e-3 * inner)

    def test_slow_ranks_and_links_hold_everybody_up(self):
        step = self.time(4)["step_seconds"]
        self.assertGreater(self.time(4, "--slow", "rank=2:3x")["step_seconds"], step)
        self.assertGreater(self.time(4, "--slow", "link=1:2x,rank=3:1.1x")["step_seconds"], step)

    def test_jitter_gives_a_distribution_that_its_seed_decides(self):
        fast = {"host": {"latency": 0, "bandwidth": 1e15}}
        first = self.time(4, "--jitter", "10%", "--seed", 7, **fast)["time"]
        again = self.time(4, "--jitter", "10%", "--seed", 7, **fast)["time"]
        other = self.time(4, "--jitter", "10%", "--seed", 8, **fast)["time"]
        self.assertEqual(first, again)
        self.assertNotEqual(first["distribution"], other["distribution"])
        p05, p50, p95 = (first["distribution"][key] for key in ("p05", "p50", "p95"))
        self.assertLess(p05, p50)
        self.assertLess(p50, p95)
        self.assertGreater(p50, first["step_seconds"])


class Algorithms(Toy):
    """Of 8 ranks on 2 hosts: one collective of each size, by the formulas of docs/cost.md."""

    def gather(self, **changed):
        changed = {"network": self.network, "host": {"latency": 1e-4, "bandwidth": 1e9}, "memory": 1e20, **changed}
        found = plan("--mlp", "1024x1024", "--world", 8, "--batch", 1, "--strategy", "zero2", "--time", "--machine",
                     self.machine(**changed))
        sizes = found["traffic"]["collectives"]["all-gather"]
        self.assertEqual(sizes["count"], 1)
        return found["time"]["time_by_kind"]["all-gather"], sizes["largest"]

    def test_a_ring_goes_through_all_hosts(self):
        taken, size = self.gather()
        self.assertAlmostEqual(taken, 2 * 1e-3 + 6 * 1e-4 + 7 / 8 * size / 1e9, delta=1e-9)
        taken, size = self.gather(network={"latency": 1e-3, "bandwidth": 5e8})
        self.assertAlmostEqual(taken, 2 * 1e-3 + 6 * 1e-4 + 7 / 8 * size / 5e8, delta=1e-9)

    def test_two_levels_cross_hosts_first(self):
        taken, size = self.gather(collectives="two-level")
        self.assertAlmostEqual(taken, 1e-3 + size / 2 / 2e9 + 3 * 1e-4 + 3 / 4 * size / 1e9, delta=1e-9)

    def test_direct_reads_what_is_far_once_for_each_reader(self):
        taken, size = self.gather(collectives="direct")
        self.assertAlmostEqual(taken, 1e-3 + 1e-4 + size / 8 * 3 / 1e9 + size / 8 * 4 * 4 / 2e9, delta=1e-9)

    def test_direct_sums_read_every_ranks_part_and_write_one(self):
        # These are sums inside a host, all at once: no time is hidden.
        for ranks in (2, 4):
            found = plan("--mlp", "1024x1024", "--world", ranks, "--batch", 1, "--strategy", "zero2", "--time", "--machine",
                         self.machine(collectives="direct", host={"latency": 1e-4, "bandwidth": 1e9}, memory=1e20))
            size = found["traffic"]["collectives"]["reduce-scatter"]["largest"]
            self.assertAlmostEqual(found["time"]["time_by_kind"]["reduce-scatter"],
                                   1e-4 + (ranks + 1) / ranks * size / 1e9, delta=1e-9)

    def test_groups_across_replicas_share_the_network(self):
        found = plan("--mlp", "1024x1024", "--world", 8, "--replicas", 2, "--batch", 1, "--strategy", "hsdp", "--time",
                     "--machine", self.machine(network=self.network, memory=1e20))
        sums = found["traffic"]["collectives"]["reduce-scatter across replicas"]
        # Four groups of one rank on each host: the network has a quarter for each.
        self.assertAlmostEqual(found["time"]["time_by_kind"]["reduce-scatter across replicas"],
                               2 * 1e-3 + sums["moved"] * 4 / 2e9, delta=1e-9)


class Machines(Toy):
    def test_every_machine_of_the_repository_predicts(self):
        names = refused(*LLAMA, "--machine", "none").split("takes ")[1].split(", or a file")[0].split(", ")
        self.assertGreaterEqual(len(names), 8)
        for name in names:
            found = plan(*LLAMA, "--machine", name, "--world", 2)
            self.assertGreater(found["step_seconds"], 0, name)
            self.assertLess(found["time"]["share_of_peak"], 1, name)

    def test_hosts_cost(self):
        inside = plan(*LLAMA, "--machine", "h100x8", "--world", 8)["time"]
        outside = plan(*LLAMA, "--machine", "h100x8-ib800", "--world", 512)["time"]
        self.assertGreater(outside["communicating"], 2 * inside["communicating"])


class Questions(Toy):
    def test_comparisons_have_every_strategy_mesh_and_prefetch(self):
        settings = plan(*LLAMA, "--machine", "h100x8", "--world", 64, "--compare")["settings"]
        found = {(one["strategy"], one["replicas"], one["prefetch"]) for one in settings}
        self.assertEqual({(s, r) for s, r, _ in found},
                         {(s, r) for r in (1, 8) for s in ("ddp", "zero1", "zero2", "fsdp")} |
                         {("hsdp", 8), ("hfsdp", 8)})
        self.assertTrue({("fsdp", 1, depth) for depth in (0, 1, 2)} <= found)

    def test_the_fastest_that_fits_comes_first(self):
        found = plan("--layers", 4, "--dim", 512, "--heads", 8, "--precision", "bf16", "--world", 16, "--time", "--machine",
                     "h100x8", "--fit", "2GB", "--fastest")
        rates = [one["rate"] for one in found["settings"]]
        self.assertEqual(rates, sorted(rates, reverse=True))
        self.assertTrue(all(one["peak"] <= 2e9 for one in found["settings"]))
        self.assertEqual(found["best"]["strategy"], found["settings"][0]["strategy"])

    def test_the_schedule_of_the_fastest_is_drawn(self):
        done = plan_runs.run(TOOL, "--mlp", "64x32x10", "--world", 4, "--batch", 4, "--time", "--machine", self.machine(), "--fit",
                             "1GB", "--fastest", "--draw")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("\nsegment evaluation\n", done.stdout)

    def test_a_timeline_is_a_trace(self):
        path = self.folder / "step.json"
        step = self.time(4, "--trace", path)["step_seconds"]
        events = json.loads(path.read_text())["traceEvents"]
        ranks = {event["pid"] for event in events if event["ph"] == "X"}
        self.assertEqual(ranks, {0, 3})
        ends = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
        self.assertGreaterEqual(max(ends) * 1e-6, step * 0.5)
        subprocess.run([TOOL, "trace", "summary", str(path)], check=True, capture_output=True)

    def test_a_profile_of_its_own_timeline_predicts_it_again(self):
        path = self.folder / "step.json"
        step = self.time(4, "--trace", path)["step_seconds"]
        self.assertAlmostEqual(self.time(4, "--profile", path)["step_seconds"], step, delta=0.02 * step)


class Calibration(Toy):
    def calibrate(self, *arguments):
        return subprocess.run([TOOL, "calibrate", *map(str, arguments)], capture_output=True, text=True, check=False)

    def test_the_machine_at_hand_can_be_asked(self):
        path = self.folder / "here.json"
        done = self.calibrate(path, "--seconds", 1, "--ranks", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        machine = json.loads(path.read_text())
        self.assertEqual(machine["name"], "here")
        self.assertEqual(machine["collectives"], "direct")
        self.assertEqual([size for size, _ in machine["to_disk"]], [1 << 20, 1 << 24])
        self.assertGreater(min(rate for _, rate in machine["to_disk"]), 1e6)
        disk = ["--offload", "optimizer", "--offload-to", f"disk:{self.folder}"]
        self.assertGreater(plan("--mlp", "64x256x10", "--batch", 32, *disk, "--time", "--machine", path)["step_seconds"], 0)
        self.assertEqual([each.name for each in self.folder.iterdir() if each != path], [])
        missing = self.calibrate(path, "--seconds", 1, "--disk", self.folder / "none")
        self.assertEqual(missing.returncode, 1)
        self.assertIn("none", missing.stderr)
        for ranks in (1, 2, 4):
            found = plan("--mlp", "64x256x10", "--world", ranks, "--batch", 32, "--time", "--machine", path)
            self.assertGreater(found["step_seconds"], 0)

    def test_a_file_that_cannot_be_written_is_named_before_anything_is_measured(self):
        done = self.calibrate(self.folder / "no" / "here.json", "--seconds", 300)
        self.assertEqual(done.returncode, 1)
        self.assertIn("here.json: cannot be written", done.stderr)

    def test_a_trace_says_what_collectives_take(self):
        trace, path = self.folder / "step.json", self.folder / "cluster.json"
        collectives = {"collectives": "direct", "host": {"latency": 0, "bandwidth": 5e8}}
        step = self.time(4, "--strategy", "zero2", "--trace", trace, **collectives)["step_seconds"]
        base = self.machine(collectives="direct")
        self.assertEqual(self.calibrate(path, "--from-trace", trace, "--base", base).returncode, 0)
        again = plan("--mlp", "1024x1024x1024", "--world", 4, "--batch", 512, "--strategy", "zero2", "--time", "--machine", path)
        self.assertAlmostEqual(again["step_seconds"], step, delta=0.02 * step)

    def test_nonsense_is_one_line(self):
        for arguments, words in ((["--seconds", 1], "FILE.json"), ([self.folder / "x.json", "--base", "h100x8"], "--from-trace"),
                                 ([self.folder / "x.json", "--from-trace", "none.json", "--base", "h100x8"], "none.json"),
                                 ([self.folder / "x.json", "--ranks", 1], "--ranks"),
                                 ([self.folder / "x.json", "--ranks", 2, "--from-trace", "t.json", "--base", "h100x8"],
                                  "--ranks is without effect with --from-trace")):
            done = self.calibrate(*arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(words, done.stderr)

    def test_a_trace_is_not_overwritten_by_what_comes_of_it(self):
        trace = self.folder / "step.json"
        self.time(4, "--trace", trace)
        content = trace.read_bytes()
        done = self.calibrate(trace, "--from-trace", f"{self.folder}/./step.json", "--base", "h100x8")
        self.assertEqual((done.returncode, trace.read_bytes()), (2, content))
        self.assertIn("are the same file", done.stderr)


class Figures(Toy):
    def test_scaling_is_drawn_or_says_what_is_missing(self):
        figure = self.folder / "scaling.svg"
        for options in ([], ["--slow", "rank=5:2x"], ["--replicas", 2, "--outer-every", 10]):
            done = plan_runs.run(TOOL, "--mlp", "1024x1024", "--world", 6, "--batch", 64, "--time", "--machine", "2-cores",
                                 "--plot", figure, *options)
            if done.returncode == 0:
                self.assertIn("<svg", figure.read_text())
                figure.unlink()
            else:
                self.assertIn("matplotlib", done.stderr, options)


class Nonsense(Toy):
    def refuses(self, *arguments, **changed):
        return refused("--mlp", "1024x1024x1024", "--time", "--machine", self.machine(**changed), *arguments)

    def test_machines(self):
        self.assertIn("\"memory\" takes a number from 1 to 1e+21, not -1", self.refuses(memory=-1))
        self.assertIn("host: \"latency\" is missing", self.refuses(host={"bandwidth": 1}))
        self.assertIn("unknown key \"speed\"", self.refuses(speed=1))
        self.assertIn("each size is larger than the one before it", self.refuses(memory=[[10, 1], [10, 2]]))
        self.assertIn("\"ranks_per_host\" takes a whole number, not 2.5", self.refuses(ranks_per_host=2.5))
        self.assertIn("toy has no network for 16 ranks on hosts of 4: its file lacks \"network\"",
                      self.refuses("--world", 16))
        self.assertIn("toy has no rate for products in bf16", self.refuses("--precision", "bf16"))
        self.assertIn("\"collectives\" takes direct, ring or two-level", self.refuses(collectives="magic"))
        text = self.folder / "text.json"
        text.write_text("no machine")
        self.assertIn("text.json: is no machine", refused("--mlp", "8x8", "--time", "--machine", text))

    def test_options(self):
        self.assertIn("--time needs --machine", refused("--mlp", "8x8", "--time"))
        self.assertIn("--profile needs --time", refused("--mlp", "8x8", "--machine", "h100x8", "--profile", "x"))
        self.assertIn("--fastest needs --fit", self.refuses("--fastest"))
        self.assertIn("--time with --fit needs --fastest", self.refuses("--fit", "1GB"))
        self.assertIn("--draw and --compare with --time exclude each other", self.refuses("--compare", "--draw"))
        self.assertIn("--whatif takes bandwidth, latency and compute", self.refuses("--whatif", "luck=2x"))
        self.assertIn("--whatif takes factors", self.refuses("--whatif", "bandwidth=-2x"))
        self.assertIn("nothing is done at a rate of 0", self.refuses("--whatif", "bandwidth=0"))
        self.assertIn("--whatif takes factors from 1e-6x to 1e6x", self.refuses("--whatif", "compute=1e-320x"))
        self.assertIn("--whatif changes compute twice", self.refuses("--whatif", "compute=1e6x,compute=1e6x"))
        self.assertIn("--slow takes rank=3:1.2x", self.refuses("--slow", "rank=3"))
        self.assertIn("rank 7 cannot be slow: there are 4", self.refuses("--world", 4, "--slow", "rank=7:2x"))
        self.assertIn("--jitter", self.refuses("--jitter", "-5%"))
        self.assertIn("--replicas 3 does not divide", self.refuses("--world", 4, "--replicas", 3))

    def test_what_is_read_is_not_overwritten(self):
        units, machine = self.folder / "units.json", pathlib.Path(self.machine())
        units.write_text('{"units": [{"name": "u", "parameters": [{"name": "w", "shape": [8, 8]}]}]}')
        for path, option in ((units, "--units"), (machine, "--machine")):
            content = path.read_bytes()
            words = refused("--units", units, "--time", "--machine", machine, "--trace", f"{self.folder}/./{path.name}")
            self.assertIn(f"--trace would overwrite the file of {option}, {path}", words)
            self.assertEqual(path.read_bytes(), content)

    def test_a_profile_of_another_model(self):
        path = self.folder / "step.json"
        self.time(1, "--trace", path)
        self.assertIn("the profile has no forward window 1 of layers.2",
                      refused("--mlp", "8x8x8x8", "--time", "--machine", self.machine(), "--profile", path))


class Documentation(unittest.TestCase):
    def test_docs_show_what_the_tool_prints(self):
        examples = list(plan_runs.shown_in_docs("tessera plan"))
        self.assertEqual(len(examples), 2)
        for arguments, shown in examples:
            self.assertTrue(plan_runs.run(TOOL, *arguments).stdout.endswith(shown), arguments)

    def test_the_machine_of_the_docs_is_one(self):
        page = (pathlib.Path(__file__).parents[2] / "docs" / "cost.md").read_text(encoding="utf-8")
        machine = page.split("```json\n")[1].split("```")[0]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "docs.json"
            path.write_text(machine)
            self.assertGreater(plan(*LLAMA, "--machine", path, "--world", 16)["step_seconds"], 0)


if __name__ == "__main__":
    unittest.main()
