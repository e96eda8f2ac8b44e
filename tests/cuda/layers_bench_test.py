"""bench/cuda_layers prints a figure for every layer, on the emulated device, and its peer in PyTorch one for each of them.

usage: layers_bench_test.py CUDA_LAYERS PEER
"""
import importlib.util
import os
import subprocess
import sys
import unittest

SKIPPED = 77
LAYERS, PEER = sys.argv[1:3]
TORCH = os.environ.get("TESSERA_TORCH_PYTHON")
SMALL = ["--batch", "2", "--seq", "9", "--dim", "32", "--heads", "2", "--vocabulary", "50", "--rounds", "1", "--launches", "2"]
PRODUCTS = ["c_attn", "c_proj", "c_fc", "mlp_proj", "head"]
NAMES = ["attention/forward", "attention/backward",
         *(f"products/{name}/{way}" for name in PRODUCTS for way in ["forward", "backward"]),
         "layer_norm/forward", "layer_norm/backward", "loss/forward", "loss/backward", "loss/at_once",
         "embedding/forward", "embedding/backward"]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def figures(text, prefix):
    """Names, without the prefix, and units."""
    lines = [line.split() for line in text.splitlines() if line.startswith(prefix)]
    assert all(float(value) > 0 for _, value, _ in lines), text
    return [(name.removeprefix(prefix), unit) for name, _, unit in lines]


def units(names):
    return [(name, "TFLOP/s" if name.startswith(("attention", "products")) else "GB/s") for name in names]


class Layers(unittest.TestCase):
    def test_every_layer_has_a_figure(self):
        done = run(LAYERS, *SMALL)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(figures(done.stdout, "cuda_layers/"), units(NAMES))

    def test_one_layer_alone(self):
        done = run(LAYERS, *SMALL, "--only", "attention")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(figures(done.stdout, "cuda_layers/"), units(NAMES[:2]))

    def test_a_layer_that_is_none_is_named(self):
        done = run(LAYERS, *SMALL, "--only", "pooling")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--only pooling: there are attention, products, layer_norm, loss and embedding", done.stderr)

    def test_the_peer_has_the_same_figures(self):
        done = run(TORCH or sys.executable, "-B", PEER, "--device", "cpu", *SMALL)
        if TORCH is None and importlib.util.find_spec("torch") is None:
            self.assertEqual(done.returncode, SKIPPED)
            return
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(figures(done.stdout, "torch/"), units(NAMES))

    def test_the_peer_says_what_it_takes(self):
        done = run(sys.executable, "-B", PEER, "--help")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--only NAME", done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
