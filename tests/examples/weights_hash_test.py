#!/usr/bin/env python3
"""--hash-weights: hashes are of the weights alone, by their definition, whatever the strategy and however many ranks hold a
parameter; `tessera verify-bits` finds by them where two runs part.

usage: weights_hash_test.py TRAIN_MLP TESSERA
"""
import pathlib
import sys
import tempfile
import unittest

import trainer_runs

TRAIN_MLP, TESSERA = sys.argv[1:3]
MLP = ["--hidden", 13, "--depth", 1, "--threads", 1]


def hash_of(content):
    """By the definition in trainer/src/weights_hash.hpp."""
    most = 2**64 - 1
    total = 0
    for place in range(len(content) // 4):
        x = ((place + 1) * 0x9e3779b97f4a7c15 & most) ^ int.from_bytes(content[4 * place:4 * place + 4], "little")
        x = (x ^ x >> 33) * 0xff51afd7ed558ccd & most
        x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53 & most
        total += x ^ x >> 33
    return total & most


class Hashes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, *options):
        """(hash of all weights, hashes of tensors) after each step."""
        steps = trainer_runs.train(TRAIN_MLP, self.folder, *MLP, "--hash-weights", *options)
        return [(step["weights_hash"], step["tensor_hashes"]) for step in steps]

    def check_alike(self, runs):
        self.assertEqual(len({whole for whole, _ in runs[0]}), len(runs[0]))
        for run in runs[1:]:
            self.assertEqual(run, runs[0])

    def test_each_element_counts_once_by_its_bits(self):
        weights = self.folder / "weights.safetensors"
        found = [self.train("--steps", 3, "--ranks", 3, "--strategy", strategy, "--dump-weights", weights)
                 for strategy in ("ddp", "zero1", "zero2", "fsdp")]
        self.check_alike(found)
        _, tensors = found[0][-1]
        self.assertEqual({name: int(text, 16) for name, text in tensors.items()},
                         {name: hash_of(content) for name, (_, content) in trainer_runs.read_safetensors(weights).items()})

    def test_replicas_of_a_parameter_count_once(self):
        self.check_alike([self.train("--steps", 3, "--ranks", 4, "--replicas", 2, "--strategy", strategy)
                          for strategy in ("ddp", "fsdp", "hsdp", "hfsdp")])

    def test_replicas_that_differ_count_each(self):
        outer = ["--steps", 3, "--ranks", 4, "--replicas", 2, "--outer-every", 2]
        self.check_alike([self.train(*outer, "--strategy", strategy) for strategy in ("ddp", "zero2", "fsdp")])

    def test_two_runs_are_verified(self):
        for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
            done = trainer_runs.run(TRAIN_MLP, *MLP, "--steps", 4, "--quiet", "--hash-weights", "--seed", seed,
                                    "--metrics", self.folder / f"{name}.jsonl")
            self.assertEqual(done.returncode, 0, done.stderr)
        same = trainer_runs.run(TESSERA, "verify-bits", self.folder / "a.jsonl", self.folder / "b.jsonl")
        self.assertEqual(same.returncode, 0, same.stdout + same.stderr)
        self.assertIn("equal: 4 steps, steps 1 to 4, have the same bits: samples, learning rate, loss, gradient norm, accuracy, "
                      "and the weights of 6 tensors", same.stdout)
        other = trainer_runs.run(TESSERA, "verify-bits", self.folder / "a.jsonl", self.folder / "c.jsonl")
        self.assertEqual(other.returncode, 1, other.stdout + other.stderr)
        self.assertIn("weights part at step 1, in 6 of 6 tensors", other.stdout)

    def test_hashes_want_metrics_and_whole_tensors(self):
        for options, words in [([], "--hash-weights needs --metrics"),
                               (["--metrics", self.folder / "m.jsonl", "--simulate-world", 3],
                                "--hash-weights does not go with --simulate-world")]:
            refused = trainer_runs.run(TRAIN_MLP, "--hash-weights", *options)
            self.assertEqual(refused.returncode, 2)
            self.assertIn(words, refused.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
