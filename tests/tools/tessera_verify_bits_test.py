#!/usr/bin/env python3
"""`tessera verify-bits` on metrics that are written by hand: where two runs part, in which figures and tensors; and what
cannot be compared.

usage: tessera_verify_bits_test.py TESSERA
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = sys.argv.pop(1)
EQUAL, PARTED, UNUSABLE = 0, 1, 2


def step(number, **changes):
    """One line of --metrics with --hash-weights."""
    line = {"step": number, "loss": 1.5, "loss_bits": f"{number:08x}", "grad_norm": 0.25, "grad_norm_bits": f"{number:016x}",
            "lr": 0.1, "samples": 12, "step_seconds": 0.5, "weights_hash": "00",
            "tensor_hashes": {"a.weight": f"{number:016x}", "a.bias": "01", "b.weight": "02"}}
    line.update(changes)
    return line


def hashes(*, weight="03", bias="01"):
    return {"a.weight": weight, "a.bias": bias, "b.weight": "02"}


class VerifyBits(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, steps, end="\n"):
        path = self.folder / name
        path.write_text("\n".join(map(json.dumps, steps)) + end, encoding="utf-8")
        return path

    def verify(self, a, b, code, *options):
        files = [each if isinstance(each, pathlib.Path) else self.write(name, each)
                 for name, each in (("a.jsonl", a), ("b.jsonl", b))]
        done = subprocess.run([TOOL, "verify-bits", *map(str, files), *options], capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stderr == "", code != UNUSABLE, done.stderr)
        return done.stderr if code == UNUSABLE else done.stdout

    def refused(self, a, b, words):
        text = self.verify(a, b, UNUSABLE)
        self.assertRegex(text, r"^tessera: [^\n]*\n$")
        self.assertIn(words, text)

    def test_equal_runs(self):
        runs = [step(n) for n in range(1, 8)]
        text = self.verify(runs, [dict(each, step_seconds=9) for each in runs], EQUAL)
        self.assertIn("equal: 7 steps, steps 1 to 7, have the same bits: samples, learning rate, loss, gradient norm, and the "
                      "weights of 3 tensors", text)
        found = json.loads(self.verify(runs, runs, EQUAL, "--json"))
        self.assertTrue(found["equal"])
        self.assertEqual([found["steps"], found["tensors"], found["figures"], found["weights_step"], found["weights"]],
                         [7, 3, [], None, []])

    def test_what_was_not_compared_is_not_claimed(self):
        bare = [{name: value for name, value in step(n).items() if name not in ("loss_bits", "grad_norm_bits")} for n in (1, 2)]
        text = self.verify(bare, [step(1), step(2)], EQUAL)
        self.assertIn("the same bits: samples, learning rate, and the weights of 3 tensors", text)
        self.refused([step(1, tensor_hashes={})], [step(1, tensor_hashes={})], "the tensor_hashes of step 1 have no tensor")
        cut = self.write("cut.jsonl", [step(1), step(2)], end="")
        self.assertIn("step 1, and a part of another one, which does not count", self.verify(cut, [step(1)], EQUAL))
        self.refused(self.write("line.jsonl", [step(1)], end=""), [step(1)], "its only line has no end")
        self.refused(self.folder, [step(1)], "is a folder")

    def test_the_first_step_and_its_tensors(self):
        a = [step(n) for n in range(1, 8)]
        b = [step(1), step(2), step(3, grad_norm_bits="ff"), step(4, tensor_hashes=hashes(weight="ee", bias="aa")),
             step(5, tensor_hashes=hashes(weight="ee"), loss=2.5, loss_bits="bb"), step(6, grad_norm_bits="ff"), step(7)]
        text = self.verify(a, b, PARTED)
        self.assertIn("gradient norm parts at step 3: A 0.25 (0000000000000003), B 0.25 (ff)", text)
        self.assertIn("weights part at step 4, in 2 of 3 tensors:\n  a.weight\n  a.bias\n", text)
        self.assertIn("loss parts at step 5: A 1.5 (00000005), B 2.5 (bb)", text)
        found = json.loads(self.verify(a, b, PARTED, "--json"))
        self.assertEqual([found["equal"], found["weights_step"], found["weights"]], [False, 4, ["a.weight", "a.bias"]])
        self.assertEqual([(each["figure"], each["step"]) for each in found["figures"]], [("gradient norm", 3), ("loss", 5)])

    def test_a_loss_that_parts_alone(self):
        text = self.verify([step(1), step(2)], [step(1), step(2, loss_bits="00")], PARTED)
        self.assertIn("loss parts at step 2", text)
        self.assertIn("the weights are the same after steps 1 to 2", text)

    def test_steps_that_both_have_are_compared(self):
        text = self.verify([step(n) for n in range(1, 6)], [step(n) for n in range(4, 9)], EQUAL)
        self.assertIn("equal: 2 steps, steps 4 to 5, have the same bits", text)
        self.assertIn("samples parts at step 3: A 12, B 9", self.verify([step(2), step(3)], [step(3, samples=9)], PARTED))

    def test_evaluations_of_one_run_alone_say_nothing(self):
        a = [step(1), step(2, held_out_loss=1.0, held_out_loss_bits="aa")]
        self.verify(a, [step(1), step(2)], EQUAL)
        other = [step(1), step(2, held_out_loss=1.5, held_out_loss_bits="ab")]
        self.assertIn("held-out loss parts at step 2: A 1.0 (aa), B 1.5 (ab)", self.verify(a, other, PARTED))

    def test_a_part_of_a_last_line_counts_as_nothing(self):
        path = self.write("cut.jsonl", [step(1), step(2)])
        path.write_text(path.read_text()[:-9])
        self.assertIn("equal: step 1 has the same bits", self.verify(path, [step(1), step(2)], EQUAL))

    def test_what_cannot_be_compared(self):
        plain = {key: value for key, value in step(2).items() if key != "tensor_hashes"}
        self.refused([step(1), plain], [step(1), step(2)], "step 2 has no hash of the weights: let the run write them with "
                                                           "--hash-weights")
        self.refused([step(1), step(2)], [step(1), plain], "--hash-weights")
        self.refused([step(1)], [step(2), step(3)], "has step 1 and")
        self.refused([step(1)], [step(2), step(3)], "has steps 2 to 3: they have no step in common")
        self.refused([step(1)], [step(1, tensor_hashes={**hashes(), "c.weight": "05"})],
                     "b.jsonl: has the tensor c.weight, which the other file has not: they are of different models")
        self.refused([step(1)], [step(1, tensor_hashes={"a.weight": "00"})], "a.jsonl: has the tensor a.bias")
        self.refused([step(1)], [step(1, tensor_hashes=7)], "the tensor_hashes of step 1 are not what --hash-weights writes")
        self.refused([step(2), step(1)], [step(1)], "line 2 is of step 1, after step 2")
        self.refused([step(1), {"loss": 1}], [step(1)], "line 2 is not a step's metrics")
        self.refused(self.folder / "none.jsonl", [step(1)], "none.jsonl: cannot be opened")
        empty = self.folder / "empty.jsonl"
        empty.write_text("")
        self.refused([step(1)], empty, "empty.jsonl: has no step")

    def test_the_help_page(self):
        done = subprocess.run([TOOL, "verify-bits", "--help"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, EQUAL)
        for words in ("--hash-weights", "--granules", "--json", "Exit code"):
            self.assertIn(words, done.stdout)
        done = subprocess.run([TOOL, "verify-bits"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, UNUSABLE)


if __name__ == "__main__":
    unittest.main()
