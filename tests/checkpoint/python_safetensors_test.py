#!/usr/bin/env python3
"""Python's safetensors opens checkpoints and exports as they are, and files that it wrote are what a trainer starts from.

usage: python_safetensors_test.py TESSERA MAKE_CHECKPOINT [TRAIN_MLP]
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

TOOL, MAKE = sys.argv.pop(1), sys.argv.pop(1)
TRAINER = sys.argv.pop(1) if len(sys.argv) > 1 else None
MODEL = ["--hidden", "12", "--quiet", "--batch", "5"]


def make(folder, split=5_000_000_000):
    done = subprocess.run([MAKE, folder, "100", "0", str(split)], capture_output=True, text=True, check=True)
    return pathlib.Path(done.stdout.strip())


def train(*arguments):
    return subprocess.run([TRAINER, *MODEL, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


class PythonSafetensors(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def test_a_checkpoint_s_files_open_with_their_tensors_and_metadata(self):
        path = make(self.folder)
        with safe_open(path / "model.safetensors", framework="numpy") as file:
            self.assertEqual(file.metadata(), {"writer": "a test", "head.weight": "embedding.weight"})
        tensors = load_file(path / "model.safetensors")
        self.assertEqual({name: tensor.shape for name, tensor in tensors.items()},
                         {"embedding.weight": (1453, 1447), "blocks.0.bias": (7,), "blocks.0.nothing": (0, 5),
                          "blocks.0.scale": (), "blocks.0.weight": (613, 1009)})
        self.assertTrue(all(tensor.dtype == numpy.float32 for tensor in tensors.values()))
        self.assertEqual(len(load_file(path / "optimizer.safetensors")), 10)

    def test_split_files_hold_what_the_whole_one_does(self):
        whole = load_file(make(self.folder / "whole") / "model.safetensors")
        path = make(self.folder / "split", 2_500_000)
        index = json.loads((path / "model.safetensors.index.json").read_text())
        for name, file in index["weight_map"].items():
            with safe_open(path / file, framework="numpy") as opened:
                numpy.testing.assert_array_equal(opened.get_tensor(name), whole[name])

    def test_an_export_in_fp16_is_numpy_s_rounding(self):
        path, out = make(self.folder), self.folder / "out.safetensors"
        subprocess.run([TOOL, "checkpoint", "export", path, out, "--dtype", "fp16"], check=True, capture_output=True)
        expected = load_file(path / "model.safetensors")
        for name, tensor in load_file(out).items():
            self.assertEqual(tensor.dtype, numpy.float16)
            numpy.testing.assert_array_equal(tensor, expected[name].astype(numpy.float16))

    def test_a_trainer_starts_from_a_file_of_python_s_under_its_own_names(self):
        if not TRAINER:
            self.skipTest("built without examples")
        dumped, renamed = self.folder / "dumped.safetensors", self.folder / "renamed.safetensors"
        again, names = self.folder / "again.safetensors", self.folder / "names.json"
        done = train("--steps", 3, "--dump-weights", dumped)
        self.assertEqual(done.returncode, 0, done.stderr)
        tensors = load_file(dumped)
        save_file({f"net/{name}": tensor for name, tensor in tensors.items()}, renamed, metadata={"format": "np"})
        names.write_text(json.dumps({name: f"net/{name}" for name in tensors}))
        # No rate: the weights stay what they were.
        done = train("--steps", 1, "--lr", 0, "--min-lr", 0, "--weight-decay", 0, "--ranks", 3, "--init", renamed,
                     "--init-map", names, "--dump-weights", again)
        self.assertEqual(done.returncode, 0, done.stderr)
        for name, tensor in load_file(again).items():
            numpy.testing.assert_array_equal(tensor, tensors[name])
        done = train("--steps", 1, "--init", renamed)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is missing", done.stderr)

    def test_a_map_without_a_file_and_a_map_that_is_none_are_refused(self):
        if not TRAINER:
            self.skipTest("built without examples")
        names = self.folder / "names.json"
        names.write_text("[]")
        done = train("--steps", 1, "--init-map", names)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--init-map is for the file of --init", done.stderr)
        save_file({"a": numpy.zeros(3, numpy.float32)}, self.folder / "a.safetensors")
        done = train("--steps", 1, "--init", self.folder / "a.safetensors", "--init-map", names)
        self.assertEqual(done.returncode, 1)
        self.assertIn("names.json: expected an object of texts, found a list", done.stderr)


if __name__ == "__main__":
    unittest.main()
