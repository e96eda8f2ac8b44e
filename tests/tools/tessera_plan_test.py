#!/usr/bin/env python3
"""The tool `tessera plan`: right bytes, a verified plan, a drawing; and one line that names the option when it is bad.

usage: tessera_plan_test.py TESSERA
"""
import subprocess
import sys
import unittest

import plan_runs

TOOL = sys.argv.pop(1)
BAD_OPTIONS, FAILED = 2, 1
MODEL = ["--mlp", "64x128x128x10"]
HUGE = "99999999999999999999999999"


def tessera(*arguments):
    return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


def plan(*arguments):
    return plan_runs.plan(TOOL, *arguments)


def round_up(value, step):
    return -(-value // step) * step


def shard(layer, ranks, alignment=128):
    """Elements of a layer's shard: weight and bias on multiples of 128, then equal shards on multiples of 128."""
    inputs, outputs = layer
    flat = round_up(inputs * outputs, alignment) + round_up(outputs, alignment)
    return round_up(-(-flat // ranks), alignment)


class TesseraPlan(unittest.TestCase):
    layers = [(64, 128), (128, 128), (128, 10)]

    def test_bytes_are_those_of_the_layout(self):
        for ranks in [1, 2, 3, 7, 64]:
            for strategy, copies in [("fsdp", 1), ("ddp", ranks)]:
                for optimizer, states in [("adamw", 2), ("sgd", 1)]:
                    found = plan(*MODEL, "--world", ranks, "--strategy", strategy, "--optimizer", optimizer)
                    kept = 4 * copies * sum(shard(layer, ranks) for layer in self.layers)
                    self.assertEqual(found["categories"]["parameters"], round_up(kept, 4096))
                    self.assertEqual(found["categories"]["gradients"], round_up(kept, 4096))
                    self.assertEqual(found["categories"]["optimizer"], round_up(states * kept, 4096))
                    self.assertEqual(found["peak"], sum(found["categories"].values()))
                    self.assertLessEqual(found["live"], found["peak"])

    def test_muon_has_whole_matrices_and_tells_what_travels(self):
        gpt2 = ["--model", "gpt2-124m", "--precision", "bf16", "--batch", 1, "--world", 4, "--strategy", "fsdp"]
        adamw, muon = [plan(*gpt2, "--optimizer", name) for name in ["adamw", "muon"]]
        self.assertEqual(muon["optimizer_states"], ["momentum", "v"])
        # Matrices of 12 blocks, of 12 x 768 x 768 elements each, have no second moments; the rest is padding of vectors' ones.
        saved = adamw["categories"]["optimizer"] - muon["categories"]["optimizer"]
        self.assertAlmostEqual(saved / (12 * 12 * 768 * 768 * 4 / 4), 1, delta=0.01)
        # Four blocks are a group. Each rank has its shares of their matrices in bf16, and what it owns of them; of two groups at a time.
        matrices = 4 * 12 * 768 * 768 * 2 // 4
        self.assertGreater(muon["categories"]["staging"], adamw["categories"]["staging"] + 4 * matrices)
        self.assertLess(muon["categories"]["staging"], adamw["categories"]["staging"] + 5 * matrices)
        text = tessera("plan", *gpt2, "--optimizer", "muon").stdout
        self.assertRegex(text, r"redistribute\s+6 ")
        self.assertNotIn("redistribute", tessera("plan", *gpt2).stdout)

    def test_muon_takes_the_memory_that_its_products_want_on_the_machine(self):
        """cuBLASLt wants 32 MiB beside products of these shapes, the CPU three tiles of 512 x 512 floats. Beside them stand a product and two square
        matrices for each of those that are worked on at once: as many as fit into 32 MiB and 4 MiB."""
        gpt2 = ["--model", "gpt2-124m", "--precision", "bf16", "--world", 4, "--optimizer", "muon"]
        staging = {machine: plan(*gpt2, "--machine", machine)["categories"]["staging"] for machine in ["2-cores", "h100x8"]}
        self.assertEqual(plan(*gpt2)["categories"]["staging"], staging["2-cores"])
        each = [2 * 768 * (2 * 768 + longer) for longer in [768, 3 * 768, 4 * 768]]
        on_gpu = (32 << 20) + max((32 << 20) // one * one for one in each)
        on_cpu = 3 * 512 * 512 * 4 + max(each)
        self.assertAlmostEqual(staging["h100x8"] - staging["2-cores"], on_gpu - on_cpu, delta=4096)
        self.assertIn("--machine is without effect", tessera("plan", *MODEL, "--machine", "h100x8").stderr)
        self.assertEqual(tessera("plan", *gpt2, "--machine", "h100x8").stderr, "")

    def test_moments_of_8_bits_have_a_byte_each_and_a_scale_for_256_of_them(self):
        for ranks in [1, 2, 3, 7]:
            for strategy, copies in [("fsdp", 1), ("ddp", ranks)]:
                found = plan(*MODEL, "--world", ranks, "--strategy", strategy, "--optimizer", "adamw8bit")
                kept = [copies * shard(layer, ranks, 256) for layer in self.layers]
                self.assertEqual(found["optimizer_states"], ["m", "m_scale", "v", "v_scale"])
                self.assertEqual(found["categories"]["parameters"], round_up(4 * sum(kept), 4096))
                buffers = sum(2 * (round_up(each, 512) + round_up(each // 64, 512)) for each in kept)
                self.assertAlmostEqual(found["categories"]["optimizer"], buffers, delta=4096)
                self.assertTrue(found["verified"]["sound"])
        text = tessera("plan", *MODEL, "--optimizer", "adamw8bit").stdout
        self.assertIn("states of the optimizer: m (u8), m_scale (fp32, one of 256 elements), v (u8)", text)
        gpt2 = ["--model", "gpt2-124m", "--world", 8]
        wide, narrow = [plan(*gpt2, "--optimizer", name)["categories"]["optimizer"] for name in ["adamw", "adamw8bit"]]
        self.assertGreater(wide / narrow, 3.9)
        text = tessera("plan", "--params", "7e9", "--optimizer", "adamw8bit").stdout
        self.assertIn("states m (u8), m_scale (fp32, one of 256 elements), v (u8)", text)

    def test_every_plan_is_verified(self):
        for extra in [[], ["--prefetch", 0], ["--micro-batches", 3, "--accumulate-mode", "local"],
                      ["--reshard-after-forward", "no"], ["--overlap-reduction", "no"], ["--precision", "bf16"]]:
            verified = plan(*MODEL, "--world", 4, *extra)["verified"]
            self.assertTrue(verified["sound"])
            self.assertGreater(verified["states"], 1)
            self.assertGreater(verified["operations"], verified["states"])
            self.assertEqual(verified["violations"], [])

    def test_each_option_changes_the_plan(self):
        base = [*MODEL, "--world", 4, "--micro-batches", 2]
        changes = [[], ["--prefetch", 2], ["--reshard-after-forward", "no"], ["--overlap-reduction", "no"],
                   ["--strategy", "ddp"], ["--strategy", "zero1"], ["--strategy", "zero2"], ["--accumulate-mode", "local"], ["--precision", "bf16"], ["--precision", "bf16", "--masters", "bf16"], ["--optimizer", "sgd"], ["--optimizer", "adamw8bit"], ["--optimizer", "muon"]]
        self.assertEqual(len({plan(*base, *change)["hash"] for change in changes}), len(changes))

    def test_the_text_has_every_category_and_the_verdict(self):
        done = tessera("plan", *MODEL, "--world", 4)
        self.assertEqual(done.returncode, 0)
        self.assertIn("26,122 parameters in 3 units; fsdp on 4 ranks", done.stdout)
        self.assertIn("verified: sound in all", done.stdout)
        for name in ["parameters", "gradients", "optimizer", "parameter_slots", "gradient_slots", "scalars", "peak", "live"]:
            self.assertRegex(done.stdout, rf"(?m)^{name} +\d+ ")
        self.assertNotIn("segment", done.stdout)

    def test_a_mesh_changes_the_plan_and_stands_in_the_headline(self):
        for strategy in ["ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"]:
            of_replicas = [plan(*MODEL, "--world", 6, "--strategy", strategy, "--replicas", replicas) for replicas in [1, 2, 3, 6]]
            self.assertEqual([found["replicas"] for found in of_replicas], [1, 2, 3, 6])
            self.assertEqual(len({found["hash"] for found in of_replicas}), 4, strategy)
            self.assertTrue(all(found["verified"]["sound"] for found in of_replicas))
        done = tessera("plan", *MODEL, "--world", 6, "--strategy", "hsdp", "--replicas", 2)
        self.assertIn("hsdp on 6 ranks (2 replicas of 3), fp32, prefetch 1, 1 micro-batch", done.stdout)
        self.assertNotIn("note:", done.stdout)

    def test_with_one_replica_a_hybrid_strategy_is_fsdp_and_a_note_says_so(self):
        for strategy in ["hsdp", "hfsdp"]:
            options = [*MODEL, "--world", 4, "--strategy", strategy]
            found, fsdp = plan(*options), plan(*MODEL, "--world", 4)
            self.assertEqual((found["categories"], found["traffic"]), (fsdp["categories"], fsdp["traffic"]))
            self.assertIn(f"note: with one replica {strategy} is fsdp; --replicas makes several\n",
                          tessera("plan", *options).stdout)

    def test_the_drawing_names_the_groups_of_a_mesh(self):
        for strategy, lines in [("hsdp", ["all-gather layers.0 over shard", "reduce-scatter layers.1 over shard",
                                          "reduce-scatter layers.1 over replicate", "all-gather sum layers.1 over replicate"]),
                                ("hfsdp", ["all-gather layers.0 over shard", "all-gather layers.0 over replicate"]),
                                ("fsdp", ["all-gather layers.0", "reduce-scatter layers.1 over replicate"])]:
            drawing = tessera("plan", *MODEL, "--world", 6, "--replicas", 2, "--strategy", strategy, "--draw").stdout
            for line in lines:
                self.assertRegex(drawing, rf"(?m){line}( |$)", strategy)

    def test_the_drawing_follows_when_asked_for(self):
        done = tessera("plan", *MODEL, "--world", 4, "--draw")
        self.assertEqual(done.returncode, 0)
        for part in ["segment cold", "segment only", "segment update", "segment evaluation", "all-gather layers.0",
                     "forward window layers.1", "backward window layers.2", "reduce-scatter layers.2", "optimize layers.0"]:
            self.assertIn(part, done.stdout)

    def test_the_largest_worlds_are_planned_too(self):
        self.assertEqual(plan(*MODEL, "--world", 16384)["ranks"], 16384)

    def test_help_names_every_option(self):
        done = tessera("plan", "--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for name in ["--mlp", "--world", "--strategy", "--precision", "--prefetch", "--reshard-after-forward",
                     "--overlap-reduction", "--micro-batches", "--accumulate-mode", "--optimizer", "--draw", "--json", "--model",
                     "--layers", "--dim", "--heads", "--seq", "--vocabulary", "--units", "--params", "--batch",
                     "--activation-checkpointing", "--compare", "--fit", "--replicas"]:
            self.assertIn(name, done.stdout)
        self.assertIn("tessera plan", tessera("--help").stdout)
        self.assertRegex(tessera("--version").stdout, r"^tessera \d+\.\d+\.\d+$")


class BadOptions(unittest.TestCase):
    def assert_refused(self, arguments, words, code=BAD_OPTIONS):
        done = tessera(*arguments)
        self.assertEqual(done.returncode, code, (arguments, done.stdout, done.stderr))
        self.assertEqual(done.stdout, "", arguments)
        self.assertEqual(done.stderr.count("\n"), 1, (arguments, done.stderr))
        self.assertIn(words, done.stderr, arguments)

    def test_a_number_out_of_its_limits_is_named(self):
        for name in ["--world", "--replicas", "--prefetch", "--micro-batches"]:
            for value in ["-1", "abc", "", "1.5", "0x10", "1e3", " 1", "+1", HUGE, "nan"]:
                self.assert_refused(["plan", *MODEL, f"{name}={value}"], name)
        for name in ["--world", "--replicas", "--micro-batches"]:
            self.assert_refused(["plan", *MODEL, name, "0"], name)

    def test_an_unknown_choice_is_named_with_the_choices(self):
        for name, choice in [("--strategy", "ddp|zero1|zero2|fsdp|hsdp|hfsdp"), ("--precision", "fp32|bf16|fp16"), ("--masters", "fp32|bf16"), ("--optimizer", "adamw|adamw8bit|sgd|muon"),
                             ("--accumulate-mode", "local|reduced"), ("--reshard-after-forward", "yes|no|group"),
                             ("--overlap-reduction", "yes|no")]:
            for value in ["xyz", "YES", "0", " yes"]:
                self.assert_refused(["plan", *MODEL, f"{name}={value}"], f"{name} takes {choice}")
            self.assert_refused(["plan", *MODEL, f"{name}="], name)

    def test_outer_steps_are_planned_and_send_less_the_rarer_they_are(self):
        mesh = [*MODEL, "--world", 6, "--replicas", 3, "--strategy", "hsdp"]
        synchronous = plan(*mesh)
        rare = {every: plan(*mesh, "--outer-every", every) for every in [1, 10, 100]}
        for every, found in rare.items():
            self.assertTrue(found["verified"]["sound"])
            self.assertEqual(found["outer_every"], every)
            across = found["traffic"]["moved"] - found["traffic"]["moved_in_replica"]
            once = rare[1]["traffic"]["moved"] - rare[1]["traffic"]["moved_in_replica"]
            self.assertAlmostEqual(across, once / every, delta=2)
        self.assertLess(rare[10]["traffic"]["moved"], synchronous["traffic"]["moved"])
        text = tessera("plan", *mesh, "--outer-every", 10).stdout
        self.assertIn("an outer step every 10", text)
        self.assertIn("reduce-scatter across replicas, every 10 steps", text)
        compared = tessera("plan", *MODEL, "--world", 6, "--replicas", 3, "--outer-every", 10, "--compare").stdout
        self.assertNotIn("hfsdp", compared)

    def test_outer_steps_that_cannot_be_are_refused(self):
        mesh = ["plan", *MODEL, "--world", 6]
        self.assert_refused([*mesh, "--outer-every", 10], "--outer-every is for several replicas: add --replicas")
        self.assert_refused([*mesh, "--replicas", 3, "--outer-fragments", 2], "--outer-fragments needs --outer-every")
        self.assert_refused([*mesh, "--replicas", 3, "--outer-every", 10, "--strategy", "hfsdp"], "use hsdp")

    def test_replicas_that_do_not_divide_the_ranks_are_named_with_them(self):
        for question in [MODEL, [*MODEL, "--compare"], [*MODEL, "--fit", "8GB"], ["--params", "7e9"]]:
            for replicas in [3, 16]:
                self.assert_refused(["plan", *question, "--world", 8, "--replicas", replicas],
                                    f"--replicas {replicas} does not divide the 8 ranks of --world")
        self.assert_refused(["plan", *MODEL, "--replicas", 2], "--replicas 2 does not divide the 1 rank of --world")

    def test_impossible_widths_are_named(self):
        for value in ["", "x", "64", "64x", "x64", "64xx10", "64x-1", "64x0", "64,10", "64x1e3", f"64x{HUGE}", "64X10"]:
            self.assert_refused(["plan", f"--mlp={value}"], "--mlp")

    def test_a_missing_model_is_named(self):
        self.assert_refused(["plan"], "--mlp")

    def test_options_without_value_given_twice_or_unknown_are_named(self):
        for name in ["--mlp", "--world", "--strategy", "--prefetch"]:
            self.assert_refused(["plan", name], name)
        self.assert_refused(["plan", *MODEL, "--world", "2", "--world=2"], "--world is given twice")
        self.assert_refused(["plan", *MODEL, "--ranks", "2"], "--ranks")
        self.assert_refused(["plan", *MODEL, "surplus"], "surplus")
        self.assert_refused(["plan", *MODEL, "--draw", "--json"], "--draw and --json")

    def test_options_that_exclude_each_other_or_have_no_effect_are_named(self):
        for options, words in [
                ([*MODEL, "--model", "llama-7b"], "--model and --mlp exclude"),
                ([*MODEL, "--params", "7e9"], "--mlp and --params exclude"),
                ([*MODEL, "--compare", "--fit", "8GB"], "--compare and --fit exclude"),
                ([*MODEL, "--compare", "--strategy", "ddp"], "--compare and --strategy exclude"),
                ([*MODEL, "--batch", "2"], "--batch is without effect with --mlp"),
                (["--units", "x.json", "--seq", "2"], "--seq is without effect with --units"),
                (["--model", "llama-7b", "--layers", "2"], "--layers is without effect with llama-7b"),
                (["--model", "llama-7b", "--batch", "2"], "--batch is without effect with llama-7b without --time"),
                (["--model", "gpt2-124m", "--mesh", "pipeline=2", "--micro-batches", "2", "--time", "--machine", "h100x8",
                  "--jitter", "5%"], "--jitter is without effect with stages along pipeline"),
                ([*MODEL, "--compare", "--time", "--machine", "h100x8", "--prefetch", "4"],
                 "--prefetch is without effect with --compare and --time, which try several"),
                (["--params", "7e9", "--strategy", "ddp"], "--strategy is without effect with --params"),
                (["--params", "7e9", "--draw"], "--draw is without effect with --params")]:
            self.assert_refused(["plan", *options], words)

    def test_what_another_option_leaves_nothing_to_do_is_told(self):
        whole = "strategy {} keeps every unit whole"
        for options, said in [
                (["--strategy", "ddp", "--prefetch", 4], ["--prefetch is without effect: " + whole.format("ddp")]),
                (["--fit", "8GB", "--strategy", "zero2", "--reshard-after-forward", "no"],
                 ["--reshard-after-forward is without effect: " + whole.format("zero2")]),
                (["--replicas", 2, "--strategy", "hsdp", "--reshard-after-forward", "group"],
                 ["--reshard-after-forward is without effect: group is yes here"]),
                (["--compare", "--reshard-after-forward", "group"], ["--reshard-after-forward is without effect: group is yes here"]),
                (["--accumulate-mode", "local"], ["--accumulate-mode is without effect: a step has one micro-batch"]),
                (["--compare", "--prefetch", 4], []), (["--fit", "8GB", "--replicas", 2, "--reshard-after-forward", "group"], []),
                (["--replicas", 2, "--reshard-after-forward", "group", "--micro-batches", 2, "--accumulate-mode", "local"], [])]:
            done = tessera("plan", *MODEL, "--world", 4, *options)
            lines = done.stderr.splitlines()
            self.assertEqual((done.returncode, len(lines)), (0, len(said)), (options, done.stderr))
            for line, words in zip(lines, said):
                self.assertIn(words, line)

    def test_impossible_models_and_sizes_are_named(self):
        for value in ["gpt2", "", "GPT2-124M", "llama"]:
            self.assert_refused(["plan", f"--model={value}"], "--model")
        self.assert_refused(["plan", "--layers", "2", "--dim", "8"], "--heads")
        self.assert_refused(["plan", "--layers", "2", "--dim", "8", "--heads", "3"], "not a multiple")
        self.assert_refused(["plan", "--model", "gpt2-124m", "--batch", "16777216"], "more than 268435456 tokens")
        for value in ["banana", "", "0", "80G", "80  GB", HUGE]:
            self.assert_refused(["plan", *MODEL, f"--fit={value}"], "--fit")
        for value in ["0", "-1", "many", "nan", "inf", "1e19", "", "7B"]:
            self.assert_refused(["plan", f"--params={value}"], "--params")

    def test_unknown_commands_are_named(self):
        self.assert_refused([], "command")
        self.assert_refused(["train"], "train")
        self.assert_refused(["--help", "plan"], "--help")

    def test_a_model_beyond_counting_cannot_be_planned(self):
        self.assert_refused(["plan", "--mlp", "16777216x16777216x16777216"], "layers.0.bias", FAILED)


if __name__ == "__main__":
    unittest.main()
