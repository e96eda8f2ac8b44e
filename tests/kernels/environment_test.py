#!/usr/bin/env python3
"""TESSERA_INSTRUCTION_SET chooses the kernels, and a wrong value is an error that names it and lists the right ones.

usage: environment_test.py PROBE
"""
import os
import subprocess
import sys


def answer(probe, wish):
    result = subprocess.run([probe], env={**os.environ, "TESSERA_INSTRUCTION_SET": wish}, capture_output=True, text=True)
    return result.returncode, result.stdout.strip()


def main():
    probe = sys.argv[1]
    assert answer(probe, "portable") == (0, "portable"), answer(probe, "portable")
    for wrong in ["", "avx", "PORTABLE", "avx1024"]:
        code, text = answer(probe, wrong)
        assert code == 2 and f'TESSERA_INSTRUCTION_SET="{wrong}"' in text and "available: portable" in text, (code, text)
    for available in text.split("available: ")[1].split(", "):
        assert answer(probe, available) == (0, available), answer(probe, available)


main()
