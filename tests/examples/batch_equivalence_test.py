#!/usr/bin/env python3
"""However six samples are spread over micro-batches and ranks, train_mlp's losses agree to 1e-5 (batch_equivalence.py).

usage: batch_equivalence_test.py TRAIN_MLP
"""
import sys

import batch_equivalence

OPTIONS = ["--hidden", 37, "--depth", 1, "--steps", 20]

if __name__ == "__main__":
    sys.exit(batch_equivalence.check(batch_equivalence.Trainer(sys.argv[1], OPTIONS, rate=0.05)))
