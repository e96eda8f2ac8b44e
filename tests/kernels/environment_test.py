#!/usr/bin/env python3
"""A variable chooses what computes, and a wrong value is an error that names it and lists the right ones.

usage: environment_test.py PROBE VARIABLE FIRST     FIRST: a value that every machine has
"""
import os
import subprocess
import sys


def main():
    probe, variable, first = sys.argv[1:]

    def answer(wish):
        result = subprocess.run([probe, variable], env={**os.environ, variable: wish}, capture_output=True, text=True)
        return result.returncode, result.stdout.strip()

    assert answer(first) == (0, first), answer(first)
    for wrong in ["", "avx", first.upper(), "avx1024"]:
        code, text = answer(wrong)
        assert code == 2 and f'{variable}="{wrong}"' in text and f"available: {first}" in text, (code, text)
    for available in text.split("available: ")[1].split(", "):
        assert answer(available) == (0, available), answer(available)


main()
