#!/usr/bin/env python3
"""The benchmark memory_per_gpu: every row has its bytes planned, measured where it ran, and by formula; rows that did not run
say why; the same figures stand in table, CSV and JSON; bad options are one line.

usage: memory_per_gpu_test.py MEMORY_PER_GPU [--not-measurable]
"""
import csv
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
MEASURABLE = "--not-measurable" not in sys.argv
sys.argv = sys.argv[:1]
BAD_OPTIONS = 2
STRATEGIES = ["ddp", "zero1", "zero2", "fsdp"]


def run(*options):
    return subprocess.run([PROGRAM, *map(str, options)], capture_output=True, text=True, timeout=120, check=False)


def rows_of(*options):
    """The rows of the JSON, the lines of the CSV, and the text."""
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / name for name in ["rows.json", "rows.csv"]]
        done = run(*options, "--json", files[0], "--csv", files[1])
        assert done.returncode == 0 and not done.stderr, done.stderr
        with open(files[1], encoding="utf-8", newline="") as lines:
            return json.loads(files[0].read_text(encoding="utf-8")), list(csv.DictReader(lines)), done.stdout


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
    def test_every_row_that_ran_took_what_was_planned_and_what_the_formula_says(self):
        for micro_batches in [1, 3]:
            found, _, text = rows_of("--model", "mlp:512x3", "--ranks", "1,3,8,64", "--precision", "fp32,bf16,fp16",
                                     "--accumulate", micro_batches)
            self.assertEqual(len(found["rows"]), 4 * 3 * 4)
            for row in found["rows"]:
                for name, both in {**row["categories"], "peak": row["peak"]}.items():
                    self.assertEqual(both["measured"], both["planned"] if MEASURABLE else None, (name, row))
                self.assertEqual(row["peak"]["planned"], sum(both["planned"] for both in row["categories"].values()))
                expected = found["parameters"] * per_parameter(row["strategy"], row["precision"] != "fp32", row["ranks"],
                                                               micro_batches)
                self.assertLessEqual(abs(row["formula"] - expected), 1)
                held = row["persistent"] + row["categories"]["accumulation"]["planned"]
                if row["strategy"] in ["ddp", "zero1"] or micro_batches == 1:
                    padding = 3 * 128 * (row["ranks"] + 2)  # of three units, in elements
                    self.assertGreaterEqual(held, expected - 1)
                    self.assertLessEqual(held, expected / found["parameters"] * (found["parameters"] + padding) + 3 * 4096)
                if MEASURABLE:
                    how = f"{row['ranks']} real rank" if row["ranks"] <= 8 else f"rank 0 of {row['ranks']}, simulated"
                    self.assertIn(how, row["how"])
            self.assertIn("command", text)
            self.assertIn("machine", text)

    def test_rows_of_a_mesh_take_what_was_planned_and_what_the_formula_says(self):
        for micro_batches in [1, 3]:
            found, _, text = rows_of("--model", "mlp:512x3", "--ranks", "4,6,64", "--replicas", "1,2,3,4", "--precision",
                                     "fp32,bf16", "--accumulate", micro_batches)
            meshes = [(4, 1), (4, 2), (4, 4), (6, 1), (6, 2), (6, 3), (64, 1), (64, 2), (64, 4)]
            self.assertEqual([(row["strategy"], row["ranks"], row["replicas"]) for row in found["rows"]],
                             [(strategy, *mesh) for strategy in STRATEGIES + ["hsdp", "hfsdp"] for mesh in meshes] * 2)
            for row in found["rows"]:
                for name, both in {**row["categories"], "peak": row["peak"]}.items():
                    self.assertEqual(both["measured"], both["planned"] if MEASURABLE else None, (name, row))
                each = per_parameter(row["strategy"], row["precision"] != "fp32", row["ranks"], micro_batches, row["replicas"])
                expected = found["parameters"] * each
                self.assertLessEqual(abs(row["formula"] - expected), 1, row)
                held = row["persistent"]
                if row["strategy"] == "zero1":  # its sums of micro-batches
                    held += row["categories"]["accumulation"]["planned"]
                padding = 3 * 128 * (row["ranks"] + 2)  # of three units, in elements
                self.assertGreaterEqual(held, expected - 1, row)
                self.assertLessEqual(held, each * (found["parameters"] + padding) + 3 * 4096, row)
            self.assertRegex(text, r"(?m)^\| hfsdp +\| bf16 +\| +64 \| +4 \|")

    def test_hybrid_rows_have_their_place_in_the_papers_accounting_too(self):
        found, _, _ = rows_of("--model", "mlp:512x3", "--ranks", "8", "--replicas", "2", "--strategy", "hsdp,hfsdp",
                              "--precision", "bf16", "--planned-only")
        for row, each in zip(found["rows"], [16 / 4, 4 / 4 + 12 / 8]):
            self.assertLessEqual(abs(row["paper"] - found["parameters"] * each), 1, row)

    def test_csv_and_json_have_the_same_figures(self):
        found, lines, _ = rows_of("--model", "mlp:64x2", "--ranks", "2", "--replicas", "1,2", "--precision", "bf16")
        self.assertEqual(len(found["rows"]), 12)
        for row in found["rows"]:
            for name, both in {**row["categories"], "peak": row["peak"]}.items():
                line = [line for line in lines if (line["strategy"], int(line["replicas"]), line["category"]) ==
                        (row["strategy"], row["replicas"], name)]
                self.assertEqual(len(line), 1)
                self.assertEqual(int(line[0]["planned"]), both["planned"])
                self.assertEqual(line[0]["measured"], "" if both["measured"] is None else str(both["measured"]))

    def test_what_does_not_fit_is_not_allocated_and_says_so(self):
        found, _, text = rows_of("--model", "mlp:1048576x2", "--ranks", "4", "--precision", "fp32")
        for row in found["rows"]:
            self.assertIn("not measured", row["how"])
            self.assertIsNone(row["peak"]["measured"])
        self.assertEqual(text.count("not measured: "), 4)

    def test_planned_only_runs_nothing(self):
        found, _, _ = rows_of("--model", "gpt2-124m", "--ranks", "512", "--planned-only", "--batch", 4)
        self.assertEqual({row["how"] for row in found["rows"]}, {"planned only"})
        activations = {row["precision"]: row["categories"]["activations"]["planned"] for row in found["rows"]}
        self.assertGreater(activations["fp32"], activations["bf16"])
        self.assertGreater(activations["bf16"], 1 << 29)

    def test_bad_options_are_one_line(self):
        for options, words in [(["--model", "bert"], "--model"), (["--model", "mlp:8"], "--model mlp:WxD"),
                               (["--model", "mlp:0x3"], "--model mlp:WxD"), (["--ranks", "1,,2"], "--ranks"),
                               (["--ranks", "0"], "--ranks"), (["--replicas", "0"], "--replicas"),
                               (["--replicas", "1,x"], "--replicas"),
                               (["--ranks", "4,8", "--replicas", "2,3"], "--replicas 3 divides none of --ranks 4,8"), (["--precision", "int8"], "--precision"),
                               (["--strategy", "zero9"], "--strategy"), (["--plot", "a.pdf"], "--plot"),
                               (["--model", "mlp:8x1", "--batch", 2], "--batch"), (["--prefetch", "-1"], "--prefetch")]:
            done = run(*options)
            self.assertEqual(done.returncode, BAD_OPTIONS, (options, done.stdout, done.stderr))
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
