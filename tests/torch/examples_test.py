#!/usr/bin/env python3
"""The examples of torch: the perceptron learns on any number of ranks, and the convolutional network gives the same under
two strategies. That one needs Debian's dataset-fashion-mnist; without it its part is skipped (exit code 77).

usage: examples_test.py TORCH_MLP TRAIN_CNN_TORCH
"""
import gzip
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=200)


def check_perceptron(program):
    for ranks in [1, 3, 17]:
        done = run(program, "--ranks", ranks)
        assert done.returncode == 0, done.stderr
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
        assert len(losses) == 5 and losses[-1] < 0.5 * losses[0], (ranks, losses)


def check_damaged_data(program):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "train-images-idx3-ubyte.gz")
        file.write_bytes(gzip.compress(struct.pack(">I3I", 0x803, 2, 2, 2)))
        done = run(program, "--data", folder)
        assert done.returncode == 1 and done.stderr.startswith(f"error: {file}: says that 8 bytes follow"), done


def check_strategies(program):
    arguments = ["--samples", 1000, "--epochs", 1, "--ranks", 2]
    printed = {}
    for strategy in ["ddp", "fsdp"]:
        done = run(program, *arguments, "--strategy", strategy)
        assert done.returncode == 0, done.stderr
        printed[strategy] = re.search(r"loss [\d.]+  held-out accuracy ([\d.]+)", done.stdout)
        # The two convolutions and what they give to 64 images are kept: more than 20 MiB.
        activations = re.search(r"torch's activations +([\d.]+) MiB", done.stdout)
        assert float(activations.group(1)) > 20 and "all of the above" in done.stdout, done.stdout
    assert len({match.group() for match in printed.values()}) == 1, printed
    assert float(printed["ddp"].group(1)) > 0.3, printed


def main():
    perceptron, network = sys.argv[1:]
    check_perceptron(perceptron)
    check_damaged_data(network)
    if not DATA.is_dir():
        print("skipped: dataset-fashion-mnist is not here (scripts/install-packages --torch installs it)")
        return 77
    check_strategies(network)
    return 0


if __name__ == "__main__":
    sys.exit(main())
