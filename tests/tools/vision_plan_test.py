#!/usr/bin/env python3
"""What `tessera plan` plans for a network on images is what train_vision runs: the same hash, activations and buffers and all.
Options that such a network does not have are refused.

usage: vision_plan_test.py TESSERA TRAIN_VISION
"""
import pathlib
import re
import subprocess
import sys
import tempfile

import plan_runs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
import made_images

# (model, ranks, options of both)
CASES = [("cnn", 1, []), ("cnn", 3, ["--strategy", "ddp", "--precision", "bf16"]), ("resnet18", 2, ["--strategy", "zero2"]),
         ("resnet18", 3, ["--sync-batch-norm"]),
         ("resnet50", 4, ["--strategy", "hsdp", "--replicas", 2]), ("vit-s", 2, ["--optimizer", "sgd", "--prefetch", 2])]


def trained(program, data, model, ranks, options):
    command = [program, "--data", data, "--model", model, "--ranks", ranks, "--batch", 2, "--steps", 1, "--eval-batches", 1,
               "--threads", 1, *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^plan .*; hash ([0-9a-f]{16})$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return found.group(1)


def check_refused(tool):
    for options, words in [(["--model", "resnet18", "--seq", 5], "--seq is without effect with resnet18"),
                           (["--model", "vit-b", "--time", "--machine", "h100x8"], "--time is without effect with vit-b"),
                           (["--model", "vit-b", "--sync-batch-norm"], "--sync-batch-norm is without effect with vit-b"),
                           (["--model", "gpt2-124m", "--classes", 5], "--classes is without effect with gpt2-124m"),
                           (["--mlp", "4x4", "--image-size", 32], "--image-size is without effect with --mlp")]:
        done = subprocess.run([tool, "plan", *map(str, options)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2 and words in done.stderr, done
    done = subprocess.run([tool, "plan", "--model", "vit-b", "--image-size", "100"], capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == 1 and "images of 100 x 100 cannot be cut into patches of 16 x 16" in done.stderr, done


def main(tool, program):
    with tempfile.TemporaryDirectory() as folder:
        made_images.write_cifar10(folder, [8], 4)
        for model, ranks, options in CASES:
            planned = plan_runs.plan(tool, "--model", model, "--image-size", 32, "--classes", 10, "--batch", 2, "--world", ranks,
                                     *options)
            found = trained(program, f"cifar10:{folder}", model, ranks, options)
            assert planned["hash"] == found, (model, ranks, options, planned["hash"], found)
            print(f"{model} on {ranks} ranks: {found}")
    check_refused(tool)


if __name__ == "__main__":
    main(*sys.argv[1:])
