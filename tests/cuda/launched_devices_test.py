#!/usr/bin/env python3
"""Processes with emulated CUDA devices that mpirun or torchrun's variables have started: their ranks meet at rank 0's
rendezvous, have the devices of their host in turn, and end when one of them is killed.

usage: launched_devices_test.py PROGRAM [MPIRUN]
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "comm"))
import launched  # noqa: E402
import mpi_job  # noqa: E402

SECONDS = 100  # for a machine with other things to do
KILLED = ("process of rank 2 has ended", "rank 2 with PID.* signal 9", r"rank 2 has left")


def with_mpirun(mpirun, ranks, command):
    return mpi_job.Job(mpirun, ranks, command).finish(SECONDS)[:2]


def with_torchruns_variables(ranks, command):
    with launched.Ranks(command, ranks) as job:
        codes, _ = job.wait(SECONDS)
        return max(abs(code) for code in codes.values()), "".join(job.output(rank) for rank in range(ranks))


def check(start, by, program):
    command = [program, "--device", "cuda", "--timeout", "20"]
    for ranks in (1, 2, 3):
        code, output = start(ranks, command)
        assert code == 0 and f"{ranks} ranks with devices" in output, output
        assert output.count("tessera:") == 1 and f"processes of {by}, each on a CUDA device" in output, output
    code, output = start(3, [program, "kill", *command[1:]])
    assert code != 0 and any(re.search(each, output, re.DOTALL) for each in KILLED), output
    code, output = start(2, [program, "gather", *command[1:]])
    assert code != 0 and "the tests' NCCL lives in one process" in output, output
    print(f"{by}: ranks meet, and one that is killed ends the job")


def main(program, *mpirun):
    check(with_torchruns_variables, "torchrun", program)
    for launcher in mpirun:
        check(lambda ranks, command: with_mpirun(launcher, ranks, command), "Open MPI's mpirun", program)


if __name__ == "__main__":
    main(*sys.argv[1:])
