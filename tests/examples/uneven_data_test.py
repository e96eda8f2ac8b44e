#!/usr/bin/env python3
"""Epochs whose samples divide by nothing: on any number of ranks the trainers train each sample once in an epoch, with the
losses of one rank; --drop-last yes leaves the short step out.

usage: uneven_data_test.py TRAIN_MLP TRAIN_GPT
"""
import pathlib
import random
import sys
import tempfile
import unittest

import process_runs  # noqa: F401  (finds launched)
import trainer_runs
from launched import Ranks, torchrun_variables

TRAIN_MLP, TRAIN_GPT = sys.argv[1:3]
EPOCHS = 2
PLAIN = ["--epochs", EPOCHS, "--optimizer", "sgd", "--lr", 0.05, "--warmup", 0, "--threads", 1, "--eval-every", 0]
MLP = ["--hidden", 11, "--depth", 1]
DIGITS = 1438  # to train on
GPT = ["--layers", 1, "--dim", 12, "--heads", 3, "--seq", 8, "--dropout", 0]
STRATEGIES = ["ddp", "zero1", "zero2", "fsdp"]


def losses(steps):
    return [step["loss"] for step in steps]


def bits(steps):
    return [(step["loss_bits"], step["grad_norm_bits"]) for step in steps]


class UnevenData(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def train(self, program, *options):
        return trainer_runs.train(program, self.folder.name, *PLAIN, *options)

    def check(self, program, options, samples, step, spreads):
        """`spreads`: ranks, batch and micro-batches that take `step` samples a step, all in all."""
        short = samples % step
        self.assertGreater(short, 0)
        one = self.train(program, *options, "--batch", step)
        self.assertEqual([found["samples"] for found in one], ([step] * (samples // step) + [short]) * EPOCHS)
        for ranks, batch, accumulate in spreads:
            self.assertEqual(ranks * batch * accumulate, step)
            of_strategies = []
            for strategy in STRATEGIES:
                found = self.train(program, *options, "--ranks", ranks, "--batch", batch, "--accumulate", accumulate,
                                   "--strategy", strategy, "--accumulate-mode", "reduced")
                self.assertEqual([each["samples"] for each in found], [each["samples"] for each in one])
                for mine, expected in zip(losses(found), losses(one), strict=True):
                    self.assertAlmostEqual(mine / expected, 1, delta=1e-5, msg=(ranks, batch, accumulate, strategy))
                of_strategies.append(bits(found))
            self.assertTrue(all(each == of_strategies[0] for each in of_strategies), (ranks, batch, accumulate))

    def test_digits_on_any_number_of_ranks(self):
        # The short step has 66 of 98 samples: four ranks of seven are full and two have none.
        self.check(TRAIN_MLP, MLP, DIGITS, 98, [(1, 49, 2), (2, 7, 7), (7, 14, 1), (7, 2, 7)])
        self.check(TRAIN_MLP, MLP, DIGITS, 99, [(3, 33, 1), (3, 11, 3)])

    def test_sequences_on_any_number_of_ranks(self):
        text = pathlib.Path(self.folder.name) / "text.txt"
        text.write_bytes(bytes(random.Random(3).choices(b"abcdefgh ", k=8 * 200)))
        options = [*GPT, "--data", text]
        samples = len(self.train(TRAIN_GPT, *options, "--batch", 1)) // EPOCHS
        self.check(TRAIN_GPT, options, samples, 42, [(2, 21, 1), (3, 7, 2), (7, 2, 3)])

    def test_a_rank_may_have_nothing_in_the_last_pass_of_an_evaluation(self):
        """Of 359 held-out digits two ranks have 120, which take eight passes of 17, and one has 119, which take seven."""
        found = [self.train(TRAIN_MLP, *MLP, "--ranks", ranks, "--batch", 51 // ranks)[-1] for ranks in (1, 3)]
        self.assertEqual([each["held_out_samples"] for each in found], [359, 359])
        self.assertEqual(found[0]["accuracy"], found[1]["accuracy"])

    def test_less_data_than_a_step_is_a_short_step(self):
        self.check(TRAIN_MLP, MLP, DIGITS, 2100, [(3, 700, 1), (7, 100, 3)])
        refused = trainer_runs.run(TRAIN_MLP, "--batch", 2100, "--drop-last", "yes")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("takes 2,100 samples for a step, but digits has 1,438 to train on: --drop-last no takes them",
                      refused.stderr)

    def test_the_short_step_is_dropped_where_that_is_asked_for(self):
        found = self.train(TRAIN_MLP, *MLP, "--ranks", 3, "--batch", 33, "--drop-last", "yes")
        self.assertEqual([each["samples"] for each in found], [99] * (DIGITS // 99) * EPOCHS)

    def test_ranks_that_read_other_data_are_told(self):
        for rank in range(2):
            (pathlib.Path(self.folder.name) / f"{rank}.txt").write_text(f"{rank} and all the rest" * 20, encoding="utf-8")
        options = " ".join(map(str, [*GPT, "--steps", 1, "--sample", 0, "--batch", 1, "--quiet"]))
        command = ["sh", "-c", f"exec {TRAIN_GPT} {options} --data {self.folder.name}/$RANK.txt"]
        with Ranks(command, 2, lambda *of: torchrun_variables(*of) | {"TORCHELASTIC_RUN_ID": "one"}) as job:
            codes, _ = job.wait(trainer_runs.SECONDS)
            said = job.output(0) + job.output(1)
        self.assertEqual(codes, {0: 1, 1: 1}, said)
        self.assertIn("the data that ranks train on (--data), by the hash of what each reads, must be equal: rank 0 said", said)

    def test_replicas_that_meet_rarely_take_whole_steps(self):
        outer = ["--ranks", 2, "--replicas", 2, "--outer-every", 4, "--batch", 49]
        found = self.train(TRAIN_MLP, *MLP, *outer)
        self.assertEqual([each["samples"] for each in found], [98] * (DIGITS // 98) * EPOCHS)
        refused = trainer_runs.run(TRAIN_MLP, *outer, "--drop-last", "no")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("--drop-last no does not go with --outer-every", refused.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
