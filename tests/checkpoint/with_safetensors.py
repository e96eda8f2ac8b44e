#!/usr/bin/env python3
"""Runs a script with a Python that has safetensors and numpy: the one that the environment variable
TESSERA_SAFETENSORS_PYTHON names, or else this one. Exit code 77, which test runners take for a skipped test: it has not.

usage: with_safetensors.py SCRIPT [ARGUMENT...]
"""
import os
import subprocess
import sys

VARIABLE = "TESSERA_SAFETENSORS_PYTHON"
SKIPPED = 77


def main(arguments):
    interpreter = os.environ.get(VARIABLE) or sys.executable
    try:
        found = subprocess.run([interpreter, "-c", "import numpy, safetensors.numpy"], capture_output=True, text=True,
                               check=False)
    except OSError as error:
        print(f"{VARIABLE}: {interpreter} cannot be started: {error.strerror}")
        return 1
    if found.returncode != 0:
        reason = (found.stderr.strip().splitlines() or [f"exit code {found.returncode}"])[-1]
        print(f"skipped: {interpreter} cannot import safetensors and numpy ({reason}); let {VARIABLE} name a Python that can")
        return SKIPPED
    return subprocess.run([interpreter, "-B", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
