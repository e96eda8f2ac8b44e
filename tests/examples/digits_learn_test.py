#!/usr/bin/env python3
"""Four sharded ranks learn real digits: more than 90 % of those held out are read right after a short run.

usage: digits_learn_test.py TRAIN_MLP
"""
import sys
import tempfile

import trainer_runs


def main(program):
    for strategy in ["fsdp", "ddp"]:
        with tempfile.TemporaryDirectory() as folder:
            steps = trainer_runs.train(program, folder, "--ranks", 4, "--strategy", strategy, "--epochs", 8,
                                       "--hidden", 128, "--depth", 2, "--lr", 0.003, "--threads", 1)
        accuracy = steps[-1]["accuracy"]
        print(f"{strategy}: {len(steps)} steps, loss {steps[0]['loss']:.3f} to {steps[-1]['loss']:.3f}, "
              f"held-out accuracy {accuracy:.3f}")
        assert accuracy > 0.9, accuracy
        assert 2.0 < steps[0]["loss"] < 2.6, "ten classes begin near ln 10"


if __name__ == "__main__":
    main(sys.argv[1])
