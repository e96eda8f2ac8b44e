#!/usr/bin/env python3
"""Four sharded ranks learn a rhyme by heart, and go on with it; in mixed precision, and on ids of 16 bits, too.

usage: gpt_learns_test.py TRAIN_GPT
"""
import pathlib
import re
import struct
import sys
import tempfile

import trainer_runs

# 67 bytes, so that sequences of 24 begin at every one of them.
RHYME = "Double, double toil and trouble; Fire burn, and caldron bubble.... "
MODEL = ["--layers", 2, "--dim", 32, "--heads", 2, "--seq", 24, "--batch", 4, "--ranks", 4, "--steps", 300, "--lr", 0.01,
         "--threads", 1, "--eval-every", 0]


def main(program):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text, ids = folder / "rhyme.txt", folder / "rhyme.bin"
        text.write_text(200 * RHYME, encoding="ascii")
        ids.write_bytes(b"".join(struct.pack("<H", 3 * ord(c)) for c in 200 * RHYME))
        for options in [["--data", text], ["--data", ids], ["--data", text, "--precision", "bf16"],
                        ["--data", text, "--precision", "fp16", "--fp32-units", "final", "--dropout", 0.05],
                        ["--data", text, "--strategy", "zero2", "--activation-checkpointing", "yes"]]:
            steps = trainer_runs.train(program, folder, *MODEL, *options)
            loss = steps[-1]["held_out_loss"]
            print(f"{' '.join(map(str, options[1:]))}: loss {steps[0]['loss']:.3f} to {loss:.3f} on held-out text")
            assert loss < 0.15, "the rhyme is not known by heart"
        done = trainer_runs.run(program, *MODEL, "--data", text, "--prompt", "Double, double", "--sample", 60,
                                "--temperature", 0)
        written = re.search(r"^  \| (Double.*)$", done.stdout, re.MULTILINE)
        print(written and written.group(1))
        assert written and written.group(1) in 3 * RHYME, done.stdout + done.stderr


if __name__ == "__main__":
    main(sys.argv[1])
