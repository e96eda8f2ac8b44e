#!/usr/bin/env python3
"""The page of --help shows a program's options, and what it does not know it refuses by name.

usage: help_test.py PROGRAM...
"""
import subprocess
import sys


def run(program, option):
    return subprocess.run([program, option], capture_output=True, text=True, check=False)


def main():
    for program in sys.argv[1:]:
        page = run(program, "--help")
        assert page.returncode == 0 and not page.stderr, f"{program}: {page}"
        assert "\n  --" in page.stdout or "\nPositionals:" in page.stdout, f"{program}: no options in\n{page.stdout}"
        wrong = run(program, "--surplus")
        assert wrong.returncode != 0 and wrong.stderr.startswith("error: ") and "--surplus" in wrong.stderr, f"{program}: {wrong}"


main()
