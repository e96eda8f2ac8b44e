#!/usr/bin/env python3
"""Runs a script with a Python that has PyTorch: the one that the environment variable TESSERA_TORCH_PYTHON names, or else this
one. Exit code 77, which test runners take for a skipped test: it has no PyTorch.

usage: with_torch.py SCRIPT [ARGUMENT...]
"""
import os
import subprocess
import sys

VARIABLE = "TESSERA_TORCH_PYTHON"
SKIPPED = 77


def main(arguments):
    interpreter = os.environ.get(VARIABLE) or sys.executable
    try:
        # A folder of that name where this runs is a package without contents, where PyTorch is not installed.
        found = subprocess.run([interpreter, "-c", "import torch.nn"], capture_output=True, text=True)
    except OSError as error:
        print(f"{VARIABLE}: {interpreter} cannot be started: {error.strerror}")
        return 1
    if found.returncode != 0:
        reason = (found.stderr.strip().splitlines() or [f"exit code {found.returncode}"])[-1]
        print(f"skipped: {interpreter} cannot import torch ({reason}); let {VARIABLE} name a Python that can")
        return SKIPPED
    return subprocess.run([interpreter, "-B", *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
