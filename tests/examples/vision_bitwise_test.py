#!/usr/bin/env python3
"""train_vision has the same bits under every strategy: losses, norms, what it tells of held-out images, and weights; for
networks with and without batch norm and with attention, in three precisions, over ranks, meshes and micro-batches, and with the test modes.
In each run the planned bytes are those measured.

usage: vision_bitwise_test.py TRAIN_VISION
"""
import sys
import tempfile

import bitwise_runs
import made_images

STRATEGIES = ["ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"]
MODES = ["--test-queue", "--test-delays", 5, "--test-poison", "--test-touch"]
CLIP = 0.01
CASES = [  # model, options
    ("cnn", ["--ranks", 3, "--batch", 5]),
    ("cnn", ["--ranks", 4, "--replicas", 2, "--batch", 3, "--accumulate", 2, "--accumulate-mode", "local"]),
    ("cnn", ["--ranks", 2, "--batch", 6, "--precision", "bf16", "--accumulate", 2, "--accumulate-mode", "reduced"]),
    ("cnn", ["--ranks", 2, "--batch", 6, "--precision", "fp16", "--loss-scale", 64]),
    ("resnet18", ["--ranks", 3, "--batch", 4, "--accumulate", 2, "--accumulate-mode", "reduced"]),
    ("resnet18", ["--ranks", 2, "--batch", 4, "--precision", "bf16"]),
    ("resnet18", ["--ranks", 4, "--replicas", 2, "--batch", 3, "--sync-batch-norm"]),
    ("vit-s", ["--ranks", 3, "--batch", 4, "--lr", 0.02]),
]


def main():
    (program,) = sys.argv[1:]
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        made_images.write_mnist(folder, 120, 31)
        for model, case in CASES:
            options = ["--data", f"mnist:{folder}", "--model", model, "--width", 4, "--steps", 12, "--eval-every", 5,
                       "--threads", 1, "--shift", 1, *case]
            reference = bitwise_runs.outcome(program, [*options, "--strategy", "ddp"], CLIP)
            for strategy in STRATEGIES[1:]:
                modes = MODES if strategy == "fsdp" else []
                found = bitwise_runs.outcome(program, [*options, "--strategy", strategy, *modes], CLIP)
                different = bitwise_runs.difference(reference, found)
                if different:
                    failures.append(f"{model} {case}, {strategy}: {different}")
    print("\n".join(failures) or f"{len(CASES)} cases, {len(STRATEGIES)} strategies each: equal bits")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
