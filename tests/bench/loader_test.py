#!/usr/bin/env python3
"""bench/loader.py on few pictures: a row for each network and number of threads, and a wait that is a part of its step.

usage: loader_test.py LOADER BUILD
"""
import subprocess
import sys


def main(loader, build):
    done = subprocess.run([sys.executable, "-B", loader, build, "--images", "40", "--batch", "4", "--threads", "1,2", "--rounds", "1"],
                          capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert [row[:2] for row in rows] == [["cnn", "1"], ["cnn", "2"], ["resnet18", "1"], ["resnet18", "2"]], done.stdout
    assert all(0 <= float(row[3]) < float(row[2]) for row in rows), done.stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
