#!/usr/bin/env python3
"""bench/memory_per_gpu.py: every row that ran took what was planned, which is what the formula says; rows that did not run say why.

usage: memory_per_gpu_test.py MEMORY_PER_GPU BUILD [--not-measurable]
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM, BUILD = sys.argv[1:3]
MEASURABLE = "--not-measurable" not in sys.argv
sys.argv = sys.argv[:1]
STRATEGIES = ["ddp", "zero1", "zero2", "fsdp"]


def run(*options):
    command = [sys.executable, "-B", PROGRAM, BUILD, *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def rows_of(*options, width=None, layers=3):
    """The rows, and the text; of a perceptron where a width is given."""
    with tempfile.TemporaryDirectory() as folder:
        rows, units = pathlib.Path(folder) / "rows.json", pathlib.Path(folder) / "units.json"
        units.write_text(json.dumps({"units": [{"name": f"layers.{i}", "parameters": [
            {"name": "weight", "shape": [width, width]}, {"name": "bias", "shape": [width]}]} for i in range(layers)]}))
        done = run(*(["--model", units] if width else []), *options, "--json", rows)
        assert done.returncode == 0 and not done.stderr, (done.stdout, done.stderr)
        return json.loads(rows.read_text(encoding="utf-8"))["rows"], done.stdout


def per_parameter(strategy, mixed, ranks, micro_batches, replicas=1):
    """docs/numerics.md, Adam, each strategy's default accumulation mode."""
    if ranks == 1 and micro_batches == 1 and mixed:
        return 16 if strategy in ["ddp", "zero1", "zero2"] else 14  # 2 for the gradient, which nobody adds to
    share = replicas / ranks  # of the ranks of a replica
    gradient = 4 * share
    if strategy == "ddp":
        return 18 if mixed else 16
    if strategy == "fsdp":
        return 12 / ranks + gradient
    if strategy == "hsdp":
        return 12 * share + gradient
    if strategy == "hfsdp":  # of one replica: fsdp
        return 12 / ranks + gradient if replicas == 1 else gradient + (2 * share + 12 / ranks if mixed else 4 * share + 8 / ranks)
    if strategy == "zero1" and micro_batches > 1:
        return 6 + 12 / ranks if mixed else 8 + 8 / ranks
    return gradient + (2 + 12 / ranks if mixed else 4 + 8 / ranks)


class MemoryPerGpu(unittest.TestCase):
    def check(self, row, parameters, micro_batches):
        planned, measured = row["planned"], row["measured"]
        if MEASURABLE:
            self.assertEqual(planned, {**dict.fromkeys(planned, 0), **measured}, row)
            self.assertIn(f"{row['ranks']} real rank" if row["ranks"] <= 8 else f"rank 0 of {row['ranks']}, simulated", row["how"])
        self.assertEqual(planned["peak"], sum(size for name, size in planned.items() if name != "peak"))
        each = per_parameter(row["strategy"], row["precision"] != "fp32", row["ranks"], micro_batches, row["replicas"])
        held = planned["parameters"] + planned["gradients"] + planned["optimizer"]
        if row["strategy"] in ["ddp", "zero1"]:  # sums of micro-batches
            held += planned["accumulation"]
        padding = 3 * 128 * (row["ranks"] + 2)  # of three units, in elements
        self.assertGreaterEqual(held, each * parameters - 1, row)
        self.assertLessEqual(held, each * (parameters + padding) + 3 * 4096, row)

    def test_every_row_that_ran_took_what_was_planned_and_what_the_formula_says(self):
        meshes = [(1, 1), (3, 1), (4, 1), (4, 2), (4, 4), (64, 1), (64, 2), (64, 4)]
        for micro_batches in [1, 3]:
            found, text = rows_of("--ranks", "1,3,4,64", "--replicas", "1,2,4", "--precision", "fp32,bf16", "--micro-batches", micro_batches,
                                  width=512)
            self.assertEqual([(row["strategy"], row["ranks"], row["replicas"]) for row in found],
                             [(strategy, *mesh) for strategy in STRATEGIES + ["hsdp", "hfsdp"] for mesh in meshes] * 2)
            for row in found:
                self.check(row, 3 * (512 * 512 + 512), micro_batches)
            self.assertRegex(text, r"(?m)^\| hfsdp \| bf16 \| 64 \| 4 \|")

    def test_hybrid_rows_have_their_place_in_the_papers_accounting_too(self):
        found, _ = rows_of("--ranks", "8", "--replicas", "2", "--strategy", "hsdp,hfsdp", "--precision", "bf16", "--planned-only", width=512)
        for row, each in zip(found, [16 / 4, 4 / 4 + 12 / 8]):
            self.assertLessEqual(abs(row["paper"] - 3 * (512 * 512 + 512) * each), 1, row)

    def test_what_does_not_fit_is_not_allocated_and_says_so(self):
        found, text = rows_of("--ranks", "4", "--precision", "fp32", width=1 << 20, layers=2)
        self.assertEqual({row["measured"] for row in found}, {None})
        self.assertEqual(text.count("not measured: a rank takes"), 4)

    def test_planned_only_runs_nothing(self):
        found, _ = rows_of("--ranks", "512", "--planned-only", "--batch", 4)
        self.assertEqual({row["how"] for row in found}, {"planned only"})
        activations = {row["precision"]: row["planned"]["activations"] for row in found}
        self.assertGreater(activations["fp32"], activations["bf16"])
        self.assertGreater(activations["bf16"], 1 << 29)

    def test_bad_options_are_refused(self):
        for options, words in [(["--ranks", "4,8", "--replicas", "2,3"], "--replicas 3 divides none of --ranks"),
                               (["--precision", "int8"], "--precision"), (["--strategy", "zero9"], "--strategy"), (["--model", "bert"], "--model")]:
            done = run(*options)
            self.assertNotEqual(done.returncode, 0, options)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
