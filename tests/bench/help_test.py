#!/usr/bin/env python3
"""The page of --help shows a program's options.

usage: help_test.py PROGRAM...
"""
import subprocess
import sys


def main():
    for program in sys.argv[1:]:
        page = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
        assert "\n  --" in page, f"{program}: no options in\n{page}"


main()
