#!/usr/bin/env python3
"""The questions that `tessera plan` answers for real models: traffic, comparison, what fits, parameters alone.

usage: tessera_questions_test.py TESSERA
"""
import itertools
import json
import math
import pathlib
import sys
import tempfile
import time
import unittest

import plan_runs

TOOL = sys.argv.pop(1)
MACHINES = pathlib.Path(__file__).resolve().parents[2] / "tools" / "machines"
STRATEGIES = ["ddp", "zero1", "zero2", "fsdp"]
ON_A_MESH = STRATEGIES + ["hsdp", "hfsdp"]
GPT = ["--layers", 3, "--dim", 64, "--heads", 4, "--seq", 32, "--vocabulary", 256]


def plan(*arguments):
    return plan_runs.plan(TOOL, *arguments)


class Traffic(unittest.TestCase):
    """Against the formulas of docs/numerics.md, for a chain of equal units without padding."""
    units = 5

    def model(self, folder, ranks):
        path = pathlib.Path(folder) / "model.json"
        self.unit_elements = 128 * ranks * 11
        path.write_text(json.dumps({"units": [
            {"name": f"u{u}", "parameters": [{"name": "w", "shape": [128 * ranks, 11]}]} for u in range(self.units)]}))
        return ["--units", path, "--world", ranks]

    def moved(self, strategy, precision, micro_batches, mode, prefetch=1, reshard=True):
        """Bytes of all collectives of a step, whole: (N - 1) / N of them travel."""
        p = w = {"fp32": 4, "bf16": 2}[precision]
        everything = self.units * self.unit_elements
        local = mode == "local" and micro_batches > 1
        reduced = 4 if local else micro_batches * w
        if strategy == "ddp":
            return everything * (reduced + 4)
        if strategy != "fsdp":
            return everything * (reduced + p)
        # The units at the turn stay in their slots: as many as there are slots.
        again = (self.units - min(self.units, 1 + prefetch)) * self.unit_elements if reshard else 0
        return everything * reduced + micro_batches * p * (everything + again)

    def check(self, folder, ranks, **changed):
        options = {"strategy": "fsdp", "precision": "fp32", "micro_batches": 1, "mode": "reduced", **changed}
        found = plan(*self.model(folder, ranks), "--strategy", options["strategy"], "--precision", options["precision"],
                     "--micro-batches", options["micro_batches"], "--accumulate-mode", options["mode"],
                     "--prefetch", options.get("prefetch", 1), "--reshard-after-forward",
                     "yes" if options.get("reshard", True) else "no")["traffic"]
        norms = (8 * self.units + 16) * (ranks - 1)  # and each rank's weight
        self.assertEqual(found["moved"], self.moved(**options) // ranks * (ranks - 1) + norms, (ranks, options))
        self.assertEqual(found["moved"], sum(kind["moved"] for kind in found["collectives"].values()))

    def test_traffic_is_that_of_the_formulas(self):
        with tempfile.TemporaryDirectory() as folder:
            for ranks in [2, 3, 7]:
                for strategy in STRATEGIES:
                    for precision in ["fp32", "bf16"]:
                        for micro_batches in [1, 2, 5]:
                            for mode in ["reduced", "local"]:
                                self.check(folder, ranks, strategy=strategy, precision=precision,
                                           micro_batches=micro_batches, mode=mode)

    def test_traffic_without_resharding_and_with_other_prefetch_depths(self):
        with tempfile.TemporaryDirectory() as folder:
            for prefetch in [0, 2, 7]:
                self.check(folder, 4, prefetch=prefetch)
            self.check(folder, 4, reshard=False, micro_batches=3)

    def test_sizes_of_collectives(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.json"
            path.write_text(json.dumps({"units": [{"name": f"u{u}", "parameters": [{"name": "w", "shape": [256, rows]}]}
                                                  for u, rows in enumerate([1, 9, 3, 2])]}))
            gathers = plan("--units", path, "--world", 2, "--strategy", "zero2")["traffic"]["collectives"]["all-gather"]
            self.assertEqual((gathers["count"], gathers["smallest"], gathers["median"], gathers["largest"]),
                             (4, 1024, 2048, 9216))

    def moved_on_a_mesh(self, mesh, strategy, precision, micro_batches, mode):
        """Bytes of a step by key of the JSON. A replica's place is the same in all of them."""
        replicas, ranks = mesh
        p = w = {"fp32": 4, "bf16": 2}[precision]
        everything = self.units * self.unit_elements
        inside = lambda size: size * (ranks - 1) // ranks
        across = lambda size: size // ranks * (replicas - 1) // replicas
        of_all = lambda size: size * (replicas * ranks - 1) // (replicas * ranks)
        wire = 4 if mode == "local" and micro_batches > 1 else micro_batches * w
        # The units at the turn stay in their two slots.
        gathered = micro_batches * p * (everything + (self.units - 2) * self.unit_elements)
        sums = {"reduce-scatter inside replicas": inside(everything * wire),
                "reduce-scatter across replicas": across(4 * everything)}
        return sums | {"ddp": {"all-gather sum": of_all(4 * everything)}, "zero1": {"all-gather": of_all(p * everything)},
                       "zero2": {"all-gather": of_all(p * everything)}, "fsdp": {"all-gather": of_all(gathered)},
                       "hsdp": {"all-gather inside replicas": inside(gathered),
                                "all-gather sum across replicas": across(4 * everything)},
                       "hfsdp": {"all-gather inside replicas": inside(gathered),
                                 "all-gather across replicas": across(p * everything)}}[strategy]

    def test_traffic_on_a_mesh_is_that_of_the_formulas_by_kind_and_group(self):
        with tempfile.TemporaryDirectory() as folder:
            for replicas, ranks in [(2, 3), (3, 2), (4, 7)]:
                for strategy in ON_A_MESH:
                    for precision, micro_batches, mode in [("fp32", 1, "reduced"), ("bf16", 3, "reduced"), ("bf16", 2, "local")]:
                        found = plan(*self.model(folder, replicas * ranks), "--replicas", replicas, "--strategy", strategy,
                                     "--precision", precision, "--micro-batches", micro_batches, "--accumulate-mode", mode)
                        collectives = found["traffic"]["collectives"]
                        norms = collectives.pop("gather norms")
                        expected = self.moved_on_a_mesh((replicas, ranks), strategy, precision, micro_batches, mode)
                        self.assertEqual({name: each["moved"] for name, each in collectives.items()}, expected,
                                         (replicas, ranks, strategy, precision, micro_batches, mode))
                        self.assertEqual(found["traffic"]["moved"], sum(expected.values()) + norms["moved"])
                        self.assertEqual(found["traffic"]["moved_in_replica"],
                                         sum(moved for name, moved in expected.items() if "inside" in name))
                        self.assertEqual((norms["group"], norms["ranks"]), ("all", replicas * ranks))
                        for name, each in collectives.items():
                            group = "shard" if "inside" in name else "replicate" if "across" in name else "all"
                            self.assertEqual((each["group"], each["ranks"]),
                                             (group, {"shard": ranks, "replicate": replicas, "all": replicas * ranks}[group]))
                            self.assertTrue(name.startswith(each["kind"]))

    def test_replicas_of_one_rank_send_nothing_inside(self):
        for strategy in ON_A_MESH:
            traffic = plan("--mlp", "64x128x10", "--world", 4, "--replicas", 4, "--strategy", strategy)["traffic"]
            self.assertEqual(traffic["moved_in_replica"], 0)
            self.assertEqual({each["group"] for each in traffic["collectives"].values()}, {"all"})
            self.assertNotIn("inside", "".join(traffic["collectives"]))

    def test_one_replica_is_named_nowhere_in_the_traffic(self):
        traffic = plan("--mlp", "64x128x10", "--world", 4)["traffic"]
        self.assertEqual(set(traffic), {"moved", "collectives"})
        for each in traffic["collectives"].values():
            self.assertEqual(set(each), {"count", "smallest", "median", "largest", "moved"})

    def test_the_text_has_kinds_by_group(self):
        text = plan_runs.run(TOOL, "--mlp", "64x128x10", "--world", 6, "--replicas", 2, "--strategy", "hsdp").stdout
        for name in ["all-gather inside replicas", "reduce-scatter inside replicas", "reduce-scatter across replicas",
                     "all-gather sum across replicas"]:
            self.assertRegex(text, rf"(?m)^{name} +\d+ ")

    def test_one_rank_sends_nothing(self):
        self.assertEqual(plan("--mlp", "64x128x10")["traffic"], {"moved": 0, "collectives": {}})


class Models(unittest.TestCase):
    def test_known_models_have_their_sizes(self):
        for name, parameters in [("gpt2-124m", 124475904), ("gpt2-355m", 354871296), ("gpt2-774m", 774090240),
                                 ("gpt2-1558m", 1557686400), ("llama-7b", 6738415616), ("llama-70b", 68976648192)]:
            found = plan("--model", name, "--world", 64, "--precision", "bf16")
            self.assertEqual(found["parameters"], parameters)
            self.assertEqual(found["activations_counted"], name.startswith("gpt2"))
            self.assertEqual(found["categories"]["activations"] > 0, name.startswith("gpt2"))
            self.assertTrue(found["verified"]["sound"])

    def test_what_is_given_wins_over_the_name(self):
        found = plan("--model", "gpt2-124m", "--layers", 1, "--dim", 24, "--heads", 2, "--seq", 8, "--vocabulary", 100)
        self.assertEqual(found["parameters"], (100 + 8) * 24 + 12 * 24 * 24 + 13 * 24 + 2 * 24)

    def test_activations_follow_batch_and_recomputation(self):
        def size(*extra):
            return plan(*GPT, *extra)["categories"]["activations"]
        self.assertGreater(size("--batch", 8), 3 * size("--batch", 2))
        self.assertLess(size("--batch", 8, "--activation-checkpointing", "yes"), size("--batch", 8))
        self.assertIn("not counted", plan_runs.run(TOOL, "--model", "llama-7b").stdout)


class Comparison(unittest.TestCase):
    def test_each_column_is_the_plan_of_its_strategy(self):
        options = [*GPT, "--world", 5, "--precision", "bf16", "--micro-batches", 3]
        compared = plan(*options, "--compare")["strategies"]
        self.assertEqual(list(compared), STRATEGIES)
        for strategy in STRATEGIES:
            self.assertEqual(compared[strategy], plan(*options, "--strategy", strategy))
        text = plan_runs.run(TOOL, *options, "--compare").stdout
        for words in STRATEGIES + ["peak", "live", "sent in a step", "the ZeRO paper's", "all four are sound"]:
            self.assertIn(words, text)

    def test_on_a_mesh_all_six_stand_side_by_side(self):
        options = [*GPT, "--world", 6, "--replicas", 3, "--precision", "bf16", "--micro-batches", 2]
        compared = plan(*options, "--compare")["strategies"]
        self.assertEqual(list(compared), ON_A_MESH)
        for strategy in ON_A_MESH:
            self.assertEqual(compared[strategy], plan(*options, "--strategy", strategy))
        text = plan_runs.run(TOOL, *options, "--compare").stdout
        for words in ON_A_MESH + ["6 ranks (3 replicas of 2)", "beyond its replica", "all six are sound"]:
            self.assertIn(words, text)
        self.assertNotIn("beyond", plan_runs.run(TOOL, *GPT, "--world", 6, "--compare").stdout)


class Fit(unittest.TestCase):
    def test_what_fits_is_what_its_plan_says(self):
        options = [*GPT, "--world", 4, "--precision", "bf16"]
        limit = plan(*options, "--batch", 8, "--strategy", "zero1")["peak"]
        found = plan(*options, "--fit", limit)
        self.assertGreater(len(found["fits"]), 0)
        for entry in found["fits"] + found["does_not_fit"]:
            again = plan(*options, "--strategy", entry["strategy"], "--replicas", entry["replicas"], "--prefetch", entry["prefetch"], "--batch", entry["batch"],
                         "--reshard-after-forward", "yes" if entry["reshard_after_forward"] else "no",
                         "--activation-checkpointing", "yes" if entry["activation_checkpointing"] else "no")
            self.assertEqual((entry["peak"], entry["moved"]), (again["peak"], again["traffic"]["moved"]))
            self.assertEqual(entry in found["fits"], again["peak"] <= limit)
        costs = [entry["moved_per_sample"] for entry in found["fits"]]
        self.assertEqual(costs, sorted(costs))
        self.assertEqual(found["best"]["peak"], found["fits"][0]["peak"])

    def test_meshes_with_slices_parts_and_stages_are_what_their_plans_say(self):
        long = ["--layers", 3, "--dim", 64, "--heads", 4, "--seq", 8192, "--vocabulary", 256]
        options = [*long, "--micro-batches", 2, "--prefetch", 1, "--reshard-after-forward", "yes", "--precision", "bf16"]
        limit = 2 * plan(*options, "--world", 4, "--strategy", "ddp", "--batch", 1)["peak"] // 3
        found = plan(*options, "--world", 4, "--fit", limit, "--meshes")
        entries = [entry for entry in found["fits"] + found["does_not_fit"] if "mesh" in entry]
        self.assertEqual({entry["mesh"] for entry in entries}, {
            "shard 2 x tensor 2", "shard 1 x tensor 4", "pipeline 2 x shard 2", "pipeline 2 x shard 1 x tensor 2",
            "shard 2 x context 2", "shard 1 x context 4", "shard 1 x context 2 x tensor 2", "pipeline 2 x shard 1 x context 2"})
        self.assertEqual({entry in found["fits"] for entry in entries}, {True, False})
        for entry in entries:
            mesh = entry["mesh"].replace(" x ", ",").replace(" ", "=")
            recompute = ["--activation-checkpointing", "yes"] if entry["activation_checkpointing"] else []
            again = plan(*options, "--mesh", mesh, "--strategy", entry["strategy"], "--batch", entry["batch"], *recompute)
            stages = again.get("stages", [again])
            moved = sum(stage["traffic"]["moved"] for stage in stages) // len(stages)
            self.assertEqual((entry["peak"], entry["moved"]), (max(stage["peak"] for stage in stages), moved), entry)
            self.assertEqual(entry in found["fits"], entry["peak"] <= limit)
            inside = [int(axis.partition("=")[2]) for axis in mesh.split(",") if axis.startswith(("tensor", "context"))]
            sharing = len(stages) * math.prod(inside)  # ranks of the same samples
            samples = 2 * 4 // sharing * entry["batch"]  # of a step on all four ranks
            self.assertAlmostEqual(entry["moved_per_sample"], 4 * moved / samples, delta=1)
        # A batch for which a collective would be too large ends the search of that mesh, and so does what a mesh cannot have. Short
        # sequences stay whole.
        everything = plan("--layers", 2, "--dim", 1024, "--heads", 4, "--seq", 512, "--vocabulary", 256, "--micro-batches", 2,
                          "--world", 4, "--strategy", "fsdp", "--fit", "1e6GB", "--meshes", "--prefetch", 1)
        self.assertEqual(everything["impossible"], [])
        self.assertEqual(len({each.get("mesh") for each in everything["fits"]}), 5)
        recomputed = plan(*options, "--world", 4, "--strategy", "fsdp", "--fit", limit, "--meshes", "--activation-checkpointing", "yes")
        self.assertEqual(recomputed["impossible"], [])
        self.assertEqual(len({each.get("mesh") for each in recomputed["fits"] + recomputed["does_not_fit"]}), 9)
        for more in (["--slow", "rank=1:2x"], ["--strategy", "hsdp"], ["--host-memory", "1GB"]):
            done = plan_runs.run(TOOL, *options, "--world", 4, "--fit", limit, "--meshes", "--time", "--machine", "h100x8", "--fastest", *more)
            self.assertEqual(done.returncode, 2, more)
        times = plan(*options, "--world", 4, "--fit", limit, "--meshes", "--time", "--machine", "h100x8", "--fastest")
        self.assertEqual(len(times["settings"]), len(found["fits"]))
        steps = [each["rate"] for each in times["settings"]]
        self.assertEqual(steps, sorted(steps, reverse=True))
        staged = next(each for each in times["settings"] if each.get("mesh") == "pipeline 2 x shard 2")
        recompute = ["--activation-checkpointing", "yes"] if staged["activation_checkpointing"] else []
        alone = plan(*options, "--mesh", "pipeline=2,shard=2", "--strategy", staged["strategy"], "--batch", staged["batch"],
                     *recompute, "--time", "--machine", "h100x8")
        self.assertAlmostEqual(staged["step_seconds"], alone["step_seconds"], delta=1e-12)

    def test_the_limit_is_met_to_the_byte(self):
        options = [*GPT, "--world", 4, "--strategy", "zero2", "--batch", 8, "--activation-checkpointing", "no"]
        peak = plan(*options)["peak"]
        self.assertEqual(len(plan(*options, "--fit", peak)["fits"]), 1)
        self.assertEqual(plan_runs.run(TOOL, *options, "--offload", "none", "--fit", peak - 1).returncode, 1)

    def test_a_larger_batch_than_the_one_found_does_not_fit(self):
        options = [*GPT, "--world", 4, "--strategy", "fsdp", "--prefetch", 1, "--reshard-after-forward", "yes",
                   "--activation-checkpointing", "no"]
        entry, = plan(*options, "--fit", "16MB")["fits"]
        self.assertLessEqual(plan(*options, "--batch", entry["batch"])["peak"], 16e6)
        self.assertGreater(plan(*options, "--batch", 2 * entry["batch"])["peak"], 16e6)

    def test_what_is_given_is_kept(self):
        for entry in plan(*GPT, "--world", 4, "--strategy", "fsdp", "--prefetch", 3, "--batch", 5, "--fit", "1GB")["fits"]:
            self.assertEqual((entry["strategy"], entry["prefetch"], entry["batch"]), ("fsdp", 3, 5))

    def test_hybrid_strategies_are_tried_with_every_number_of_replicas(self):
        options = [*GPT, "--world", 12, "--precision", "bf16", "--fit", "12MB"]
        found = plan(*options)
        entries = found["fits"] + found["does_not_fit"]
        searched = [(entry["strategy"], entry["replicas"]) for entry in entries if entry["replicas"] > 1]
        self.assertEqual(sorted(searched), sorted(itertools.product(["hsdp", "hfsdp"], [2, 3, 4, 6])))
        for entry in entries:
            if entry["replicas"] == 1:
                self.assertIn(entry["strategy"], STRATEGIES)
                continue
            every = plan(*options, "--strategy", entry["strategy"], "--replicas", entry["replicas"])
            self.assertGreater(len(every["fits"] + every["does_not_fit"]), 6)
            self.assertEqual(entry, every["fits"][0])
        text = plan_runs.run(TOOL, *options).stdout
        self.assertRegex(text, r"(?m)^strategy  replicas .* beyond its replica")

    def test_of_what_does_not_fit_the_smallest_stands_for_its_number_of_replicas(self):
        options = ["--model", "llama-70b", "--world", 8, "--precision", "bf16", "--strategy", "hsdp", "--offload", "none"]
        done = plan_runs.run(TOOL, *options, "--fit", "10GB")
        self.assertEqual(done.returncode, 1)
        smallest = plan(*options, "--replicas", 2, "--prefetch", 0)["peak"]
        found = plan(*options, "--fit", smallest)
        self.assertEqual([(entry["replicas"], entry["prefetch"]) for entry in found["fits"]], [(2, 0)])
        self.assertEqual([(entry["replicas"], entry["prefetch"]) for entry in found["does_not_fit"]], [(4, 0)])
        self.assertRegex(done.stderr, "the smallest, hsdp, 2 replicas, prefetch 0")

    def test_replicas_that_are_given_are_kept_with_every_strategy(self):
        found = plan(*GPT, "--world", 8, "--replicas", 4, "--fit", "1GB")
        self.assertEqual({(entry["strategy"], entry["replicas"]) for entry in found["fits"]}, {(s, 4) for s in ON_A_MESH})
        one = plan(*GPT, "--world", 8, "--replicas", 1, "--fit", "1GB")
        self.assertEqual({(entry["strategy"], entry["replicas"]) for entry in one["fits"]}, {(s, 1) for s in STRATEGIES})
        prime = plan(*GPT, "--world", 5, "--strategy", "hsdp", "--fit", "1GB")
        self.assertEqual({entry["replicas"] for entry in prime["fits"]}, {1})

    def test_why_the_others_do_not_fit(self):
        done = plan_runs.run(TOOL, "--model", "llama-70b", "--world", 512, "--precision", "bf16", "--fit", "80GB")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"ddp: needs 1\.13 TiB; optimizer alone takes 514 GiB")
        self.assertRegex(done.stdout, r"zero2: needs \d+ GiB; parameters alone takes")

    def test_what_fits_nowhere_is_an_error_with_its_term(self):
        done = plan_runs.run(TOOL, "--model", "llama-70b", "--world", 2, "--fit", "80 GB")
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1))
        self.assertRegex(done.stderr, "llama-70b fits nowhere into 74.5 GiB on 2 ranks: the smallest, fsdp.*the optimizer's states in the "
                         "host's memory.*alone takes")

    def test_as_few_units_as_will_do_move_to_the_hosts_memory(self):
        options = [*GPT, "--world", 4, "--precision", "bf16", "--strategy", "zero2", "--batch", 8,
                   "--activation-checkpointing", "no"]

        def device(*more):
            report = plan(*options, *more)
            return report["peak"] - report["host"]

        whole = device()
        for kinds in ["optimizer", "optimizer,masters", "optimizer,masters,update"]:
            least, masters = device("--offload", kinds), "masters" in kinds
            limit = least if masters else (whole + least) // 2
            entry, = plan(*options, "--fit", limit)["fits"]
            units = entry["offload"]["units"]
            self.assertEqual((entry["offload"]["masters"], entry["offload"]["update"]), (masters, "update" in kinds))
            self.assertLessEqual(device("--offload", kinds, "--offload-units", units), limit)
            self.assertTrue(units == 1 or device("--offload", kinds, "--offload-units", units - 1) > limit)
            self.assertGreater(entry["transferred"], 0)
            text = plan_runs.run(TOOL, *options, "--fit", limit).stdout
            self.assertIn("Nothing fits with everything on the device", text)
            self.assertRegex(text, r"from the host to the device \S+ \S+ in each step, and back")
            self.assertEqual(": host, updated there " in text, "update" in kinds)
        self.assertNotIn("offload", plan(*options, "--fit", whole)["fits"][0])

    def test_what_moves_is_in_the_tables_and_takes_its_time(self):
        options = ["--model", "gpt2-124m", "--world", 4, "--precision", "bf16", "--batch", 1, "--strategy", "zero2",
                   "--activation-checkpointing", "no"]
        timed = ["--time", "--machine", "h100x8"]
        here, there = plan(*options, *timed), plan(*options, "--offload", "optimizer,masters", *timed)
        states = here["categories"]["optimizer"]
        self.assertEqual((here["host"], there["categories"]["optimizer"]), (0, 0))
        self.assertGreater(there["host"], states)
        self.assertEqual(there["traffic"]["fetched"], there["traffic"]["evicted"])
        self.assertAlmostEqual(there["traffic"]["fetched"], 1.5 * states, delta=0.01 * states)
        # Both directions at once at best; at worst one after the other, and the update with them.
        copy = there["traffic"]["fetched"] / 5e10
        self.assertGreater(there["step_seconds"] - here["step_seconds"], 0.5 * copy)
        self.assertLess(there["step_seconds"] - here["step_seconds"], 3 * copy)
        self.assertEqual(there["time"]["seconds_of_moving"], there["step_seconds"] - here["step_seconds"])
        self.assertNotIn("seconds_of_moving", here["time"])
        # Gradients go, 2 or 4 bytes of a parameter, and 2 come back, where states and masters are 12.
        on_host = [*options, "--offload", "optimizer,masters,update", "--time", "--machine"]
        updated = plan(*on_host, "h100x8")
        self.assertAlmostEqual(updated["traffic"]["fetched"], states / 4, delta=0.01 * states)
        self.assertLessEqual(updated["traffic"]["evicted"], 0.51 * states)
        self.assertLess(updated["peak"] - updated["host"], there["peak"] - there["host"])
        machine = json.loads((MACHINES / "h100x8.json").read_text())
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder) / "other.json"
            other.write_text(json.dumps(machine | {"host_update": 10 * machine["host_update"]}))
            self.assertLess(plan(*on_host, other)["step_seconds"], there["step_seconds"])
            for machine_of, words in [(other, True), ("h100x8", False)]:
                quickest = plan_runs.run(TOOL, *options, "--time", "--machine", machine_of, "--fastest", "--fit",
                                         there["peak"] - there["host"]).stdout
                self.assertEqual(", updated there" in quickest, words)
            del machine["host_update"]
            other.write_text(json.dumps(machine))
            self.assertIn('add "host_update"', plan_runs.run(TOOL, *on_host, other).stderr)
            # Settings that cannot be timed stand back; alone, they are refused.
            search = ["--time", "--machine", other, "--fastest", "--fit"]
            alone = plan_runs.run(TOOL, *options, *search, updated["peak"] - updated["host"])
            self.assertIn('add "host_update"', alone.stderr)
            zero1 = ["zero1" if option == "zero2" else option for option in options]
            moved = plan(*zero1, "--offload", "optimizer,masters")
            all_strategies = [option for option in options if option not in ("--strategy", "zero2")]
            wide = plan(*all_strategies, *search, moved["peak"] - moved["host"] - 1)
            self.assertEqual({setting["strategy"] for setting in wide["settings"]} & {"zero1", "fsdp"}, {"fsdp"})
        fastest = [*options, *timed, "--fastest", "--fit", there["peak"] - there["host"]]
        self.assertGreater(plan(*fastest)["best"]["time"]["seconds_of_moving"], 0)
        self.assertRegex(plan_runs.run(TOOL, *fastest).stdout, "copies to the device's memory and back cost .*s of the step")
        text = plan_runs.run(TOOL, *GPT, "--world", 4, "--offload", "optimizer", "--compare").stdout
        self.assertRegex(text, "(?m)^offloaded .*\n(.*\n)*on the device .*\nto the device and back ")

    def test_updates_ahead_of_the_norm_take_memory_and_are_tried_where_it_is_there(self):
        options = ["--model", "gpt2-124m", "--world", 4, "--precision", "bf16", "--batch", 2, "--strategy", "zero2",
                   "--activation-checkpointing", "yes"]
        moved = plan(*options, "--offload", "optimizer,masters")
        machine = json.loads((MACHINES / "h100x8.json").read_text())
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder) / "other.json"
            other.write_text(json.dumps(machine | {"host_update": 5 * machine["host_update"]}))
            timed = ["--time", "--machine", other]
            behind, ahead, for_good = (plan(*options, "--offload", f"optimizer,masters,update{when}", *timed)
                                       for when in ["", ",ahead", ",ahead-for-good"])
            self.assertEqual((ahead["host"], for_good["host"]), (behind["host"] + moved["host"], behind["host"]))
            self.assertLess(for_good["step_seconds"], ahead["step_seconds"])
            self.assertLess(ahead["step_seconds"], behind["step_seconds"])
            search = [*options, *timed, "--fastest", "--fit", behind["peak"] - behind["host"]]
            for memory, best in [(ahead["host"], ahead), (ahead["host"] - 1, behind)]:
                first = plan(*search, "--host-memory", memory)["settings"][0]
                self.assertEqual((first["host"], first["step_seconds"]), (best["host"], best["step_seconds"]))
            self.assertIn("updated there ahead of the norm", plan_runs.run(TOOL, *search).stdout)
            given = plan_runs.run(TOOL, *search, "--offload", "optimizer,masters,update").stdout
            self.assertNotIn("ahead of the norm", given)

    def test_masters_of_tensors_that_an_optimizer_sees_whole_stay(self):
        options = ["--mlp", "64x128x128x10", "--world", 2, "--optimizer", "muon", "--precision", "bf16", "--strategy", "fsdp"]
        there = plan(*options, "--prefetch", 0, "--offload", "optimizer")
        fits = plan(*options, "--prefetch", 0, "--fit", there["peak"] - there["host"])["fits"]
        self.assertEqual({(entry["offload"]["masters"], entry["offload"]["to"]) for entry in fits}, {(False, "host")})
        self.assertIn("fits nowhere", plan_runs.run(TOOL, *options, "--fit", 1000).stderr)

    def test_inputs_of_blocks_that_are_recomputed_go_to_the_host(self):
        options = ["--model", "gpt2-124m", "--world", 2, "--precision", "bf16", "--batch", 2, "--activation-checkpointing", "yes"]
        here, there = plan(*options), plan(*options, "--offload", "activations")
        block = 2 * 1024 * 768 * 2
        self.assertEqual(there["categories"]["offloaded"], 12 * block)
        self.assertEqual(here["categories"]["activations"] - there["categories"]["activations"], (13 - 2 - 2) * block)
        self.assertEqual((there["traffic"]["evicted"], there["traffic"]["fetched"]), (10 * block, 10 * block))
        limit = there["peak"] - there["host"]
        search = ["--model", "gpt2-124m", "--world", 2, "--precision", "bf16", "--strategy", "fsdp", "--prefetch", 1,
                  "--reshard-after-forward", "yes", "--activation-checkpointing", "yes", "--offload", "activations"]
        self.assertEqual([entry["batch"] for entry in plan(*search, "--fit", limit)["fits"]], [2])
        # The search moves them where that is less than states, and both where neither is enough.
        search = [*search[:-2], "--batch", 8]

        def device(*what):
            report = plan(*search, *what)
            return report["peak"] - report["host"]

        inputs = device("--offload", "activations")
        for kinds, masters in [("activations", False), ("optimizer,masters,update,activations", True)]:
            limit = device("--offload", kinds)
            entry, = plan(*search, "--fit", limit)["fits"]
            units = entry["offload"]["units"]
            self.assertEqual((entry["offload"]["activations"], entry["offload"]["masters"]), (True, masters))
            self.assertLess(1, units)
            self.assertLessEqual(device("--offload", kinds, "--offload-units", units), limit)
            self.assertGreater(device("--offload", kinds, "--offload-units", units - 1), limit)
        entry, = plan(*search, "--fit", device() - 2**20)["fits"]
        self.assertEqual(entry["offload"], {"activations": True, "masters": False, "update": False, "units": 5, "to": "host"})
        self.assertEqual(entry["transferred"], 2 * 2 * 4 * block)  # of four blocks, but for the last two
        text = plan_runs.run(TOOL, *search, "--fit", inputs).stdout
        self.assertIn("as little as will do moves to the host's memory", text)
        self.assertRegex(text, r"activations of \d+ units: host")
        refused = plan_runs.run(TOOL, *options[:-2], "--offload", "activations")
        self.assertIn("take a GPT with --activation-checkpointing yes", refused.stderr)

    def test_what_stands_on_disk_is_in_the_tables_and_takes_the_disks_time(self):
        options = ["--model", "gpt2-124m", "--world", 4, "--precision", "bf16", "--batch", 1, "--strategy", "zero2",
                   "--activation-checkpointing", "no"]
        disk = ["--offload", "optimizer,masters", "--offload-to", "disk:/scratch"]
        there = plan(*options, *disk)
        self.assertEqual((there["host"], there["disk"]), (0, there["categories"]["on_disk"]))
        self.assertEqual(there["traffic"]["from_disk"], there["traffic"]["fetched"])
        self.assertEqual(there["traffic"]["to_disk"], there["traffic"]["evicted"])
        text = plan_runs.run(TOOL, *options, *disk).stdout
        self.assertIn(", the optimizer's states and masters on disk", text)
        self.assertRegex(text, r"(?m)^on disk .*\n(.*\n)*from the disk to the device \S+ \S+ in each step, and back")
        refused = plan_runs.run(TOOL, *options, *disk, "--time", "--machine", "h100x8")
        self.assertIn('add "to_disk"', refused.stderr)
        with tempfile.TemporaryDirectory() as folder:
            machine = pathlib.Path(folder) / "with-disk.json"
            here = json.loads((MACHINES / "h100x8.json").read_text())
            machine.write_text(json.dumps(here | {"to_disk": 2e9}))
            timed = ["--time", "--machine", machine]
            seconds = plan(*options, *disk, *timed)["step_seconds"] - plan(*options, *timed)["step_seconds"]
        copy = there["traffic"]["fetched"] / 2e9
        self.assertGreater(seconds, 0.5 * copy)
        self.assertLess(seconds, 3 * copy)

    def test_what_has_no_place_in_the_hosts_memory_moves_to_the_disk(self):
        options = [*GPT, "--world", 4, "--precision", "bf16", "--strategy", "zero2", "--batch", 8, "--activation-checkpointing", "no"]
        whole, least = plan(*options), plan(*options, "--offload", "optimizer")
        fit = [*options, "--fit", (whole["peak"] + least["peak"] - least["host"]) // 2]
        disk = ["--offload-to", "disk:/scratch"]

        def moved(*more):
            entry, = plan(*fit, *more)["fits"]
            return entry["offload"]["to"], entry["host"], entry["disk"], entry["offload"]["units"]

        place, host, _, units = moved()
        self.assertEqual(place, "host")
        self.assertEqual(moved("--host-memory", host), ("host", host, 0, units))
        self.assertEqual(moved(*disk, "--host-memory", host), ("host", host, 0, units))
        there = plan(*options, "--offload", "optimizer", "--offload-units", units, *disk)["disk"]
        self.assertGreaterEqual(there, host)  # on blocks of the disk
        self.assertEqual(moved(*disk), ("disk", 0, there, units))
        place, less, _, fewer = moved("--host-memory", host - 1)  # without slots, because the host's processors update
        self.assertEqual((place, less < host, fewer < units), ("host", True, True))
        self.assertEqual(moved(*disk, "--host-memory", less - 1), ("disk", 0, there, units))
        refused = plan_runs.run(TOOL, *fit, "--host-memory", less - 1)
        self.assertRegex(refused.stderr, r"fits nowhere .*needs .* of the host's memory, and has .*--offload-to disk:FOLDER")
        self.assertIn("needs --fit", plan_runs.run(TOOL, *options, "--host-memory", host).stderr)
        self.assertIn("moves to the disk", plan_runs.run(TOOL, *fit, *disk).stdout)
        timed = ["--time", "--fastest", "--machine"]
        self.assertIn('add "to_disk"', plan_runs.run(TOOL, *fit, *disk, *timed, "h100x8").stderr)
        with tempfile.TemporaryDirectory() as folder:
            machine = pathlib.Path(folder) / "with-disk.json"
            machine.write_text(json.dumps(json.loads((MACHINES / "h100x8.json").read_text()) | {"to_disk": 2e9}))
            text = plan_runs.run(TOOL, *fit, *disk, *timed, machine).stdout
            seconds = plan(*fit, *disk, *timed, machine)["best"]["time"]["seconds_of_moving"]
        self.assertRegex(text, "copies from the disk and back cost .*s of the step")
        self.assertGreater(seconds, 0.5 * host / 2e9)

    def test_sizes_are_read_as_people_write_them(self):
        for text, size in [("1GB", 10**9), ("1GiB", 2**30), ("1.5 MiB", 3 * 2**19), ("2000000", 2000000), ("7000KB", 7000000)]:
            self.assertEqual(plan("--mlp", "8x8", "--fit", text)["limit"], size)

    def test_the_largest_models_take_seconds(self):
        start = time.monotonic()
        for name in ["gpt2-1558m", "llama-70b"]:
            first, second = (plan("--model", name, "--world", 512, "--precision", "bf16", "--fit", "80GiB") for _ in range(2))
            self.assertEqual(first, second)
        self.assertLess(time.monotonic() - start, 60.0, "each of four answers takes about half a second")


class ParametersAlone(unittest.TestCase):
    def test_the_zero_papers_figure(self):
        found = plan("--params", "7.5e9", "--world", 64)["bytes"]
        for strategy, gigabytes in [("ddp", 120), ("zero1", 31.4), ("zero2", 16.6), ("fsdp", 1.88)]:
            self.assertEqual(float(f"{found[strategy]['zero_paper'] / 1e9:.3g}"), gigabytes)
        text = plan_runs.run(TOOL, "--params", "7.5e9", "--world", 64).stdout
        for words in ["120 GB", "31.4 GB", "16.6 GB", "1.88 GB"]:
            self.assertIn(words, text)

    def test_ours_are_the_table_of_numerics(self):
        ranks = 10
        found = plan("--params", 1000, "--world", ranks)["bytes"]
        n = 1 / ranks
        for strategy, each in {"ddp": (16, 18, 16, 18), "zero1": (4 + 12 * n, 2 + 16 * n, 8 + 8 * n, 6 + 12 * n),
                               "zero2": (4 + 12 * n, 2 + 16 * n, 4 + 12 * n, 2 + 16 * n), "fsdp": (16 * n,) * 4}.items():
            keys = ["fp32", "mixed", "fp32_accumulating", "mixed_accumulating"]
            for key, bytes_each in zip(keys, each):
                self.assertAlmostEqual(found[strategy][key], 1000 * bytes_each, places=6, msg=(strategy, key))

    def test_on_a_mesh_ours_are_the_formulas_of_each_extent(self):
        ranks, replicas = 12, 3
        found = plan("--params", 1000, "--world", ranks, "--replicas", replicas)
        self.assertEqual(found["replicas"], replicas)
        n, s = 1 / ranks, replicas / ranks
        expected = {"ddp": (16, 18, 16, 18), "zero1": (4 + 4 * s + 8 * n, 2 + 4 * s + 12 * n, 8 + 8 * n, 6 + 12 * n),
                    "zero2": (4 + 4 * s + 8 * n, 2 + 4 * s + 12 * n) * 2, "fsdp": (4 * s + 12 * n,) * 4,
                    "hsdp": (16 * s,) * 4, "hfsdp": (8 * s + 8 * n, 6 * s + 12 * n) * 2}
        self.assertEqual(list(found["bytes"]), ON_A_MESH)
        for strategy, each in expected.items():
            for key, bytes_each in zip(["fp32", "mixed", "fp32_accumulating", "mixed_accumulating"], each):
                self.assertAlmostEqual(found["bytes"][strategy][key], 1000 * bytes_each, places=6, msg=(strategy, key))
        papers = [16, 4 + 12 * n, 2 + 14 * n, 16 * n, 16 * s, 4 * s + 12 * n]
        for strategy, paper in zip(ON_A_MESH, papers):
            self.assertAlmostEqual(found["bytes"][strategy]["zero_paper"], 1000 * paper, places=6)
        text = plan_runs.run(TOOL, "--params", 1000, "--world", ranks, "--replicas", replicas).stdout
        for words in ["12 ranks (3 replicas of 4)", *ON_A_MESH]:
            self.assertIn(words, text)
        self.assertEqual(list(plan("--params", 1000, "--world", ranks)["bytes"]), STRATEGIES)


class Drawings(unittest.TestCase):
    def test_comparisons_and_fits_are_drawn_too(self):
        for question, drawings in [(["--compare"], 4), (["--compare", "--replicas", 2], 6), (["--fit", "1GB"], 1)]:
            text = plan_runs.run(TOOL, *GPT, "--world", 2, *question, "--draw").stdout
            self.assertEqual(text.count("\nsegment cold"), drawings)


if __name__ == "__main__":
    unittest.main()
