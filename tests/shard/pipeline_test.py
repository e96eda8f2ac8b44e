#!/usr/bin/env python3
"""Stages of a pipeline on ranks that are processes: the weights have the bits of those on threads, and where a rank stalls
or dies in a message, every other one ends within the deadline and is told who waited for whom.

usage: pipeline_test.py PIPELINE_RANKS [MPIRUN]
"""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "comm"))
import launched  # noqa: E402
import mpi_job  # noqa: E402

DEADLINE = 2  # --timeout of the ranks, seconds
SECONDS = 60  # for a machine with other things to do

# The first of three stages stalls, or the last one dies, while the others wait for messages. Each has several streams
# that wait, any of which may say first that its neighbour did not come.
STALLED = [r'waited up to 2 s in broadcast "d?x\d" \(communicator (for|back)ward messages over pipeline pairs from \d, #\d+\) '
           r'for rank \d, which did not come']
DEAD = [r'process of rank 2 has ended (while rank 1 waited in broadcast "d?x2"|before rank 1 could open its memory)']
KILLED_BY_MPIRUN = [r"rank 2 with PID.* signal 9"]  # mpirun may be quicker than the other ranks
# Rank 3 of three stages of two slices each dies: the other slice waits for a sum, the others of its place for messages.
DEAD_SLICE = [r'process of rank 3 has ended while rank \d waited in (broadcast "d?x\d"|reduce-scatter "layer1\.sum")',
              r"process of rank 3 has ended before rank \d could open its memory"]


def on_threads(ranks, *command):
    ran = subprocess.run([*command, "--ranks", str(ranks)], capture_output=True, text=True, timeout=SECONDS, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def on_processes(ranks, *command):
    """A rank that was stopped is not waited for. The least of the exit codes' sizes: 0 where a rank ended well."""
    with launched.Ranks(list(command), ranks) as job:
        codes, _ = job.wait(SECONDS, range(1, ranks) if "stop" in command else None)
        return min(abs(code) for code in codes.values()), "".join(job.output(rank) for rank in range(ranks))


def with_mpirun(mpirun):
    def start(ranks, *command):
        return mpi_job.Job(mpirun, ranks, command).finish(SECONDS)[:2]
    return start


def check_failure(start, patterns, program, stages, slices, *what):
    command = [program, str(stages), str(slices), *what]
    code, output = start(stages * slices, *command, "--timeout", str(DEADLINE))
    assert code != 0 and any(re.search(each, output) for each in patterns), f"{command}: {code}, none of {patterns} in\n{output}"


def weights(start, program, slices):
    code, output = start(4, program, "2", slices)
    assert code == 0, output
    found = re.findall(r"^[0-9a-f]{8}$", output, re.MULTILINE)
    assert len(found) == 50, output
    return found


def main(program, *mpirun):
    expected = {slices: weights(on_threads, program, slices) for slices in ["1", "2"]}
    check_failure(on_threads, STALLED, program, 3, 1, "sleep", "0")
    check_failure(on_threads, ["rank 2: train.bin: empty"], program, 3, 1, "throw", "2")
    check_failure(on_threads, ["rank 3: train.bin: empty"], program, 3, 2, "throw", "3")
    for start, dead in [(on_processes, DEAD), *((with_mpirun(each), DEAD + KILLED_BY_MPIRUN) for each in mpirun)]:
        assert all(weights(start, program, slices) == expected[slices] for slices in expected), "other weights than on threads"
        check_failure(start, STALLED, program, 3, 1, "stop", "0")
        check_failure(start, dead, program, 3, 1, "kill", "2")
    check_failure(on_processes, DEAD_SLICE, program, 3, 2, "kill", "3")


if __name__ == "__main__":
    main(*sys.argv[1:])
