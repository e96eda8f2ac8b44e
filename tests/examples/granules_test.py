#!/usr/bin/env python3
"""--granules: weights, losses, norms and evaluations have the same bits on any number of ranks and with any strategy, in
short steps of which some ranks have nothing, and where a run was stopped and resumed on other ranks; what cannot is refused.

usage: granules_test.py TRAIN_MLP TRAIN_GPT TRAIN_VISION
"""
import hashlib
import pathlib
import random
import sys
import tempfile
import unittest

import made_images
import process_runs  # noqa: F401  (finds launched)
import trainer_runs
from launched import Ranks

TRAIN_MLP, TRAIN_GPT, TRAIN_VISION = sys.argv[1:4]
JOBS = [(1, 1, "fsdp"), (2, 1, "zero2"), (3, 1, "ddp"), (5, 1, "zero1"), (4, 2, "hsdp"), (6, 3, "fsdp")]  # ranks, replicas, strategy
GRANULES = ["--granules", 6, "--hash-weights", "--clip", 0.5, "--seed", 3]
# The last step of an epoch has samples for four or five of the six granules, of which the last is short.
MLP = ["--hidden", 11, "--depth", 1, "--batch", 90, "--epochs", 2, "--eval-every", 2]
GPT = ["--layers", 1, "--dim", 12, "--heads", 3, "--seq", 8, "--dropout", 0.2, "--batch", 7, "--epochs", 2, "--eval-every", 3,
       "--eval-batches", 1, "--sample", 0]
VISION = ["--width", 4, "--batch", 4, "--epochs", 2, "--shift", 1, "--flip", "yes"]
NETWORKS = ["cnn", "resnet18"]
CLOCK = {"step_seconds", "samples_per_second", "tokens_per_second", "images_per_second", "memory"}


def without_time(steps):
    return [{name: value for name, value in step.items() if name not in CLOCK} for step in steps]


class Granules(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, program, *options):
        """The lines of the metrics without times, and the hash of the file of weights."""
        weights = self.folder / "weights.safetensors"
        steps = trainer_runs.train(program, self.folder, *GRANULES, *options, "--dump-weights", weights)
        return without_time(steps), hashlib.md5(weights.read_bytes()).hexdigest()

    def check_ranks(self, program, *options, jobs=JOBS):
        expected = None
        for ranks, replicas, strategy in jobs:
            found = self.train(program, *options, "--ranks", ranks, "--replicas", replicas, "--strategy", strategy)
            expected = expected or found
            for mine, theirs in zip(found[0], expected[0], strict=True):
                self.assertEqual(mine, theirs, (ranks, replicas, strategy))
            self.assertEqual(found[1], expected[1], (ranks, replicas, strategy))
        hashes = [step["weights_hash"] for step in expected[0] if not step.get("skipped")]
        self.assertEqual(len(set(hashes)), len(hashes))
        return expected

    def text(self):
        path = self.folder / "text.txt"
        path.write_bytes(bytes(random.Random(3).choices(b"abcdefgh ", k=8 * 201)))
        return path

    def images(self):
        made_images.write_mnist(self.folder, 90, 30)
        return f"mnist:{self.folder}"

    def test_a_perceptron(self):
        steps, _ = self.check_ranks(TRAIN_MLP, *MLP)
        self.assertEqual([step["samples"] for step in steps], [540, 540, 358] * 2)
        self.assertTrue(any("accuracy" in step for step in steps))

    def test_a_language_model_with_dropout(self):
        for precision in ("fp32", "bf16", "fp16"):
            steps, _ = self.check_ranks(TRAIN_GPT, *GPT, "--data", self.text(), "--precision", precision)
            self.assertEqual([step["samples"] for step in steps], [42, 42, 42, 42, 22] * 2)
            self.assertTrue(any("held_out_loss_bits" in step for step in steps))

    def test_networks_with_augmentation(self):
        data = self.images()
        for model in NETWORKS:
            steps, _ = self.check_ranks(TRAIN_VISION, *VISION, "--model", model, "--data", data)
            self.assertEqual([step["samples"] for step in steps], [24, 24, 24, 18] * 2)
            self.assertTrue(any("held_out_loss_bits" in step for step in steps))

    def test_steps_are_skipped_alike(self):
        """The dynamic loss scale of fp16 begins too high for these batch norms."""
        steps, _ = self.check_ranks(TRAIN_VISION, *VISION, "--model", "resnet18", "--data", self.images(), "--precision", "fp16",
                                    jobs=JOBS[:4])
        self.assertIn(True, [step["skipped"] for step in steps])

    def test_ranks_that_are_processes(self):
        expected = self.train(TRAIN_MLP, *MLP)
        weights, metrics = self.folder / "processes.safetensors", self.folder / "processes.jsonl"
        command = [TRAIN_MLP, *GRANULES, *MLP, "--dump-weights", weights, "--metrics", metrics, "--quiet"]
        with Ranks([str(each) for each in command], 3) as job:
            codes, _ = job.wait(trainer_runs.SECONDS)
            said = "".join(map(job.output, range(3)))
        self.assertEqual(set(codes.values()), {0}, said)
        self.assertEqual(without_time(trainer_runs.read_metrics(metrics)), expected[0])
        self.assertEqual(hashlib.md5(weights.read_bytes()).hexdigest(), expected[1])

    def test_other_granules_are_the_same_steps_within_rounding(self):
        """Six granules of 15 samples, and one micro-batch of 90."""
        plain = ["--hidden", 11, "--depth", 1, "--epochs", 2, "--seed", 3, "--clip", 0.5, "--threads", 1]
        whole = trainer_runs.train(TRAIN_MLP, self.folder, *plain, "--batch", 90)
        parts = trainer_runs.train(TRAIN_MLP, self.folder, *plain, "--batch", 15, "--granules", 6, "--ranks", 4)
        for mine, theirs in zip(parts, whole, strict=True):
            self.assertEqual(mine["samples"], theirs["samples"])
            for figure in ("loss", "grad_norm"):
                self.assertAlmostEqual(mine[figure] / theirs[figure], 1, delta=1e-4, msg=(mine["step"], figure))

    def test_a_run_goes_on_on_other_ranks(self):
        saved = self.folder / "saved"
        job = [*GPT, "--data", self.text()]
        straight = self.train(TRAIN_GPT, *job, "--ranks", 2)
        stops = [(3, 3, "fsdp"), (5, 6, "ddp"), (1, 8, "zero1"), (4, 10, "fsdp")]
        for ranks, stop, strategy in stops:
            found = self.train(TRAIN_GPT, *job, "--ranks", ranks, "--strategy", strategy, "--stop-after", stop,
                               "--checkpoint-dir", saved, "--resume")
        # Each of the runs evaluates after its last step, and adds its lines to those of the runs before.
        held_out = ("held_out_loss", "held_out_loss_bits", "held_out_samples")
        for mine, theirs in zip(found[0], straight[0], strict=True):
            self.assertEqual({**theirs, **{name: mine.get(name) for name in held_out if name not in theirs and name in mine}},
                             mine)
        self.assertEqual(found[1], straight[1])

    def test_a_run_with_other_granules_is_not_resumed(self):
        saved = self.folder / "saved"
        job = ["--hidden", 5, "--depth", 1, "--steps", 4, "--checkpoint-dir", saved]
        done = trainer_runs.run(TRAIN_MLP, *job, "--granules", 4, "--batch", 8, "--stop-after", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        for options, words in [(["--granules", 3, "--batch", 8], "was saved with --granules 4, and this run has --granules 3"),
                               (["--granules", 4, "--batch", 9], "was saved with --batch 8, and this run has --batch 9"),
                               (["--granules", 4, "--batch", 8, "--threads", 2], "was saved with --threads 1")]:
            refused = trainer_runs.run(TRAIN_MLP, *job, "--resume", *options)
            self.assertEqual(refused.returncode, 1, refused.stdout)
            self.assertIn(words, refused.stderr)
        told = trainer_runs.run(TRAIN_MLP, *job, "--resume", "--batch", 8, "--stop-after", 3)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertIn("it was saved with --granules 4, and this run has none", told.stdout)
        told = trainer_runs.run(TRAIN_MLP, *job, "--resume", "--batch", 8, "--granules", 4)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertIn("it was saved without --granules", told.stdout)

    def test_what_cannot_have_the_same_bits_is_refused(self):
        for options, words in [
            (["--accumulate", 2], "--granules and --accumulate exclude each other"),
            (["--accumulate-mode", "local"], "--accumulate-mode local adds up on each rank first"),
            (["--ranks", 4, "--replicas", 2, "--outer-every", 5], "--granules does not go with --outer-every"),
            (["--simulate-world", 4], "--granules does not go with --simulate-world"),
            (["--ranks", 5], "--granules 4: of 5 ranks 1 would have none to compute; take at most 4 ranks"),
        ]:
            refused = trainer_runs.run(TRAIN_MLP, "--granules", 4, *options)
            self.assertEqual(refused.returncode, 2, options)
            self.assertIn(words, refused.stderr)
        refused = trainer_runs.run(TRAIN_VISION, "--granules", 4, "--model", "resnet18", "--sync-batch-norm")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--sync-batch-norm does not go with --granules", refused.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
