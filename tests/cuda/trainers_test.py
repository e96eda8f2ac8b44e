#!/usr/bin/env python3
"""The trainers on a CUDA device, real or emulated: every strategy has the same weights bit for bit, losses follow the CPU's,
a run in two pieces is the run in one, and what they say of the device is so.

usage: trainers_test.py TRAIN_GPT TRAIN_MLP TRAIN_VISION     exits with 77 where there is no device
"""
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
import made_images  # noqa: E402
import trainer_runs  # noqa: E402

SKIPPED = 77
REDUCED = os.environ.get("TESSERA_TEST_MATRIX") == "reduced"
TEXT = b"To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 12
GPT = ["--layers", 2, "--dim", 15, "--heads", 3, "--seq", 11, "--batch", 2, "--dropout", 0.1, "--lr", 0.01, "--seed", 3,
       "--threads", 1, "--eval-every", 0, "--sample", 0]
MLP = ["--hidden", 13, "--depth", 1, "--batch", 3, "--lr", 0.01, "--seed", 3, "--threads", 1, "--eval-every", 0]
# Sums in another order, and exponentials of another library: bounds on relative differences of losses.
BOUND = {"fp32": 1e-4, "bf16": 3e-2}


class OnCuda(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.text = self.folder / "text.txt"
        self.text.write_bytes(TEXT)

    def tearDown(self):
        self.temporary.cleanup()

    def train(self, program, *options, device="cuda"):
        """(losses, weights)"""
        weights = self.folder / "weights.safetensors"
        lines = trainer_runs.train(program, self.folder, "--device", device, *options, "--dump-weights", weights)
        return [line["loss"] for line in lines], trainer_runs.read_safetensors(weights)

    def gpt(self, *options, device="cuda"):
        return self.train(TRAIN_GPT, *GPT, "--data", self.text, *options, device=device)

    def check_follows(self, found, expected, precision):
        self.assertEqual(len(found), len(expected))
        for mine, theirs in zip(found, expected):
            self.assertLessEqual(abs(mine - theirs), BOUND[precision] * abs(theirs))

    def test_strategies_of_the_gpt_are_bitwise_equal_and_follow_the_cpu(self):
        for precision, ranks in [("fp32", 1), ("bf16", 3)] if REDUCED else itertools.product(["fp32", "bf16"], [1, 3]):
            common = ["--steps", 4, "--precision", precision, "--ranks", ranks]
            losses, weights = self.gpt(*common, "--strategy", "ddp")
            on_cpu, _ = self.gpt(*common, "--strategy", "ddp", device="cpu")
            self.check_follows(losses, on_cpu, precision)
            self.assertLess(losses[-1], losses[0])
            for strategy in ["zero1", "zero2", "fsdp"]:
                with self.subTest(precision=precision, ranks=ranks, strategy=strategy):
                    self.assertEqual(self.gpt(*common, "--strategy", strategy), (losses, weights))

    def test_slices_of_the_gpt_and_parts_of_its_sequences_follow_the_cpu(self):
        for axis, precision in itertools.product(["tensor", "context"], ["bf16"] if REDUCED else ["fp32", "bf16"]):
            model = [12 if option == 11 else option for option in GPT]  # tokens, which three parts divide
            common = [*model, "--data", self.text, "--steps", 3, "--precision", precision, "--mesh", f"shard=1,{axis}=3"]
            losses, _ = self.train(TRAIN_GPT, *common)
            self.check_follows(losses, self.train(TRAIN_GPT, *common, device="cpu")[0], precision)

    def test_accumulation_and_recomputation_leave_the_bits_alone(self):
        common = ["--steps", 3, "--ranks", 2, "--accumulate", 2, "--accumulate-mode", "local"]
        expected = self.gpt(*common, "--strategy", "ddp")
        self.assertEqual(self.gpt(*common, "--activation-checkpointing", "yes", "--test-poison", "--test-touch"), expected)

    def test_the_mlp_learns_as_on_the_cpu_with_each_optimizer(self):
        for optimizer in ["adamw", "adamw8bit", "sgd"]:
            common = [*MLP, "--steps", 8, "--ranks", 2, "--optimizer", optimizer]
            losses, weights = self.train(TRAIN_MLP, *common, "--strategy", "fsdp")
            on_cpu, _ = self.train(TRAIN_MLP, *common, "--strategy", "fsdp", device="cpu")
            self.check_follows(losses, on_cpu, "fp32")
            self.assertEqual(self.train(TRAIN_MLP, *common, "--strategy", "zero2"), (losses, weights))

    def test_networks_on_images_are_bitwise_equal_and_follow_the_cpu(self):
        made_images.write_mnist(self.folder, 60, 12, side=8)
        others = [["zero2"], ["fsdp"]] if REDUCED else [["zero2", "fsdp"]] * 2
        for model, precision, strategies, more in [("cnn", "bf16", others[0], ["--width", 4]),
                                                   ("resnet18", "fp32", others[1], ["--width", 4, "--sync-batch-norm"]),
                                                   ("vit-s", "bf16", [], ["--width", 6])]:
            common = ["--data", f"mnist:{self.folder}", "--model", model, "--batch", 3, "--steps", 3, "--ranks", 2,
                      "--precision", precision, "--lr", 0.01, "--optimizer", "sgd", "--threads", 1, *more]
            losses, weights = self.train(TRAIN_VISION, *common, "--strategy", "ddp")
            on_cpu, _ = self.train(TRAIN_VISION, *common, "--strategy", "ddp", device="cpu")
            self.check_follows(losses, on_cpu, precision)
            for strategy in strategies:
                with self.subTest(model=model, strategy=strategy):
                    self.assertEqual(self.train(TRAIN_VISION, *common, "--strategy", strategy), (losses, weights))

    def test_granules_have_the_same_bits_on_any_number_of_ranks(self):
        """A batch norm and dropout among them; hashes of the weights are of the device's."""
        made_images.write_mnist(self.folder, 60, 12, side=8)
        images = ["--data", f"mnist:{self.folder}", "--model", "resnet18", "--width", 4, "--batch", 3]
        for program, options in [(TRAIN_GPT, [*GPT, "--data", self.text]), (TRAIN_VISION, images)]:
            found = []
            for ranks, strategy in [(1, "fsdp"), (3, "ddp")]:
                weights, common = self.folder / "weights.safetensors", ["--steps", 2, "--granules", 4, "--device", "cuda"]
                lines = trainer_runs.train(program, self.folder, *options, *common, "--ranks", ranks, "--strategy", strategy,
                                           "--hash-weights", "--dump-weights", weights)
                figures = [[line.get(name) for name in ("loss_bits", "grad_norm_bits", "held_out_loss_bits", "tensor_hashes")]
                           for line in lines]
                found.append((figures, trainer_runs.read_safetensors(weights)))
            self.assertNotEqual(found[0][0][0][3], found[0][0][1][3])
            self.assertEqual(found[1][0], found[0][0])
            self.assertTrue(found[1][1] == found[0][1], "weights differ")

    def test_a_run_in_two_pieces_is_the_run_in_one(self):
        common = ["--steps", 6, "--ranks", 2, "--precision", "bf16"]
        whole_losses, whole_weights = self.gpt(*common)
        checkpoints = ["--checkpoint-dir", self.folder / "checkpoints", "--save-every", 3]
        self.gpt(*common, *checkpoints, "--stop-after", 3)
        losses, weights = self.gpt(*common, *checkpoints, "--resume")
        self.assertEqual(weights, whole_weights)
        self.assertEqual(losses[-3:], whole_losses[-3:])

    def test_nccl_has_the_weights_of_ranks_that_read_each_other(self):
        common = ["--steps", 3, "--ranks", 2, "--precision", "bf16"]
        expected = self.gpt(*common)
        weights = self.folder / "over_nccl.safetensors"
        metrics = self.folder / "over_nccl.jsonl"
        done = trainer_runs.run(TRAIN_GPT, *GPT, "--data", self.text, "--device", "cuda", "--backend", "nccl", *common,
                                "--metrics", metrics, "--dump-weights", weights)
        if "--backend nccl: " in done.stderr or "NCCL" in done.stderr and done.returncode:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tessera: 2 ranks, threads of one process, on CUDA devices; ", done.stderr)
        self.assertIn("threads of this process, on CUDA devices", done.stdout)
        self.assertIn("sums in rank order", done.stderr)
        losses = [line["loss"] for line in trainer_runs.read_metrics(metrics)]
        self.assertEqual((losses, trainer_runs.read_safetensors(weights)), expected)

    def test_a_process_of_mpirun_plans_for_its_device(self):
        of_mpirun = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
        done = trainer_runs.run(TRAIN_GPT, *GPT, "--data", self.text, "--device", "cuda", "--steps", 1, "--test-queue",
                                variables=of_mpirun)
        if "no MPI half" in done.stderr:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ["--threads", "--test-queue"]:
            self.assertIn(f"note     {name} is without effect", done.stdout)

    def test_tf32_is_for_devices(self):
        common = [*MLP, "--steps", 2, "--precision", "tf32", "--device"]
        found = {device: trainer_runs.run(TRAIN_MLP, *common, device) for device in ["cuda", "cpu"]}
        self.assertEqual(found["cuda"].returncode, 0, found["cuda"].stderr)
        self.assertIn("fp32, products in tf32", found["cuda"].stdout)
        self.assertEqual(found["cpu"].returncode, 2)
        self.assertIn("--precision tf32: the CPU's products have no such type", found["cpu"].stderr)

    def test_text_is_written_and_evaluations_are_the_cpus(self):
        options = [*GPT[:-4], "--data", self.text, "--steps", 2, "--eval-every", 1, "--sample", 5, "--device"]
        found = [trainer_runs.run(TRAIN_GPT, *options, device) for device in ["cuda", "cpu"]]
        for done in found:
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("held-out loss", done.stdout)
        self.assertIn("on CUDA devices", found[0].stdout)
        self.assertNotIn("on CUDA devices", found[1].stdout)
        self.assertIn("threads of this process, on the CPU; strategy fsdp", found[1].stdout)


def has_device(program):
    done = subprocess.run([program, "--device", "cuda", "--steps", "1", "--quiet"], capture_output=True, text=True, check=False)
    if "--device cuda: " in done.stderr:
        print("skipped:", done.stderr.strip())
        return False
    return True


if __name__ == "__main__":
    TRAIN_GPT, TRAIN_MLP, TRAIN_VISION = sys.argv[1:4]
    if not has_device(TRAIN_MLP):
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1])
