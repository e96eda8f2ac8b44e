#!/usr/bin/env python3
"""A build without MPI says so in one line when mpirun starts it, and runs as ever when it is started alone.

usage: mpi_without_test.py MPIRUN PROGRAM
"""
import subprocess
import sys

from mpi_job import Job


def main():
    mpirun, program = sys.argv[1:3]
    code, output, _ = Job(mpirun, 2, [program, "nothing"]).wait(60)
    said = [line for line in output.splitlines() if "no MPI half" in line]
    assert code != 0 and len(said) == 1 and said[0].startswith("error: "), output
    assert "rank 0 of 2" in said[0] and "-Dmpi=enabled" in said[0], said
    alone = subprocess.run([program, "nothing", "--ranks", "3"], capture_output=True, text=True, timeout=60, check=False)
    assert alone.returncode == 0 and alone.stderr == "", alone


if __name__ == "__main__":
    main()
