#!/usr/bin/env python3
"""bench/compare.py --peer mpi, run on buffers that take no time: a row for each collective, with all of its figures.

usage: collectives_test.py COMPARE BUILD MPIRUN
"""
import subprocess
import sys


def main(compare, build, mpirun):
    command = [sys.executable, "-B", compare, build, "--peer", "mpi", "--rounds", "1", "--ranks", "2", "--mib", "1", "--mpirun", mpirun]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("| 2 |")]
    assert [row[1].strip() for row in rows] == ["reduce-scatter", "all-gather", "all-reduce"], done.stdout
    for row in rows:
        assert len(row) == 8 and all(float(figure) > 0 for figure in row[3:]), row


if __name__ == "__main__":
    main(*sys.argv[1:])
