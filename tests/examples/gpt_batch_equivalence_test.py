#!/usr/bin/env python3
"""However six sequences are spread over micro-batches and ranks, train_gpt's losses agree to 1e-5 (batch_equivalence.py).

usage: gpt_batch_equivalence_test.py TRAIN_GPT
"""
import sys

import batch_equivalence

OPTIONS = ["--layers", 2, "--dim", 12, "--heads", 3, "--seq", 13, "--dropout", 0, "--steps", 30]

if __name__ == "__main__":
    sys.exit(batch_equivalence.check(batch_equivalence.Trainer(sys.argv[1], OPTIONS, rate=0.1)))
