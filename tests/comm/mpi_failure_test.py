#!/usr/bin/env python3
"""A rank of several processes throws, exits, is killed, is stopped, leaves or runs with other options: the job ends
within the deadline, its output names the rank and what it did, and neither processes nor shared memory are left.

usage: mpi_failure_test.py MPIRUN PROGRAM [ROUNDS]
TESSERA_TEST_MATRIX=reduced leaves out what takes a minute: a rank that never comes to the job's start.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from mpi_job import Job, environment

DEADLINE = 2  # --timeout of the ranks, seconds
START_DEADLINE = 60  # of MPI_Init: processes that are started together do not come together
SLACK = 60  # for what is not a rank's wait: starting, ending, a machine with other things to do

# A rank does one of these, and the output must have one of its patterns: mpirun may be quicker than the other ranks.
FAILURES = {
    "throw": ["error: rank {last}: train.bin: empty"],
    "abort": ["error: rank {last}: the disk is full"],
    "exit": [r"error: .*rank {last}.* called exit\(\)", "exit.*without calling .finalize."],
    "quick-exit": ["process of rank {last} has ended", r"Process name: \[\[\d+,1\],{last}\]\s+Exit code: +3",
                   "rank {last} with PID"],
    "kill": ["process of rank {last} has ended", r"rank {last} with PID.* signal 9"],
    "stop": ["waited up to 2 s in all-gather \"blocks.3\".* for rank {last}, which did not come"],
    "options": ["error: rank \\d: the plan must be equal: ranks? 0.* said 42; rank {last} said 17"],
    "leave": ["rank {last} has left the job while"],
    "kill-last": ["the process of rank {last} ended before it left the job", r"rank {last} with PID.* signal 9"],
    "stop-last": ["waited up to 2 s for rank {last}, which has not left the job and does nothing"],
    "stop-at-end": ["waited up to 2 s in MPI_Finalize for the other processes"],
}


def check_failure(mpirun, program, processes, what):
    job = Job(mpirun, processes, [program, what, "--timeout", str(DEADLINE)])
    code, output, seconds = job.finish(DEADLINE + SLACK)
    assert code != 0, f"{what}: the job failed, but its exit code is 0\n{output}"
    wanted = [pattern.format(last=processes - 1) for pattern in FAILURES[what]]
    assert any(re.search(pattern, output, re.DOTALL) for pattern in wanted), \
        f"{what} with {processes} processes: none of {wanted} in\n{output}"
    print(f"{what}, {processes} processes: ended after {seconds:.1f} s with {code}")


def check_success(mpirun, program, processes, what="nothing", timeout=60):
    code, output, _ = Job(mpirun, processes, [program, what, "--timeout", str(timeout)]).finish(DEADLINE + SLACK)
    assert code == 0, output
    assert output.count("tessera:") == 1, f"one line says how the job was started\n{output}"


def check_output(mpirun, program):
    """Rank 0 speaks for all; warnings carry the rank; logs have what each rank said."""
    with tempfile.TemporaryDirectory() as folder:
        code, output, _ = Job(mpirun, 3, [program, "output", "--log-dir", folder]).finish(DEADLINE + SLACK)
        assert code == 0, output
        assert output.count("printed by") == 1 and "printed by rank 0" in output, output
        for rank in range(3):
            assert f"warning: rank {rank}: slow" in output, output
            log = (pathlib.Path(folder) / f"rank-{rank}.log").read_text(encoding="utf-8")
            assert f"rank {rank} begins" in log and "warning: slow" in log and "ended" in log, log
            assert rank == 0 or f"printed by rank {rank}" in log, log


def check_ranks_option(mpirun, program):
    code, output, _ = Job(mpirun, 2, [program, "nothing", "--ranks", "2"]).finish(DEADLINE + SLACK)
    assert code != 0 and output.count("leave --ranks out") == 1, output


def check_disagreement(program):
    """A launcher's variables around a process that is alone for MPI: neither of the two sizes is taken for granted."""
    for rank, size in (("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")):
        variables = environment() | {rank: "1", size: "3"}
        ran = subprocess.run([program, "nothing"], env=variables, capture_output=True, text=True, timeout=DEADLINE + SLACK,
                             check=False)
        assert ran.returncode != 0 and "as rank 1 of 3, but MPI says that it is rank 0 of 1" in ran.stderr, ran
        print(f"{size}=3 around one process: {ran.stderr.strip()}")


def check_rank_that_never_starts(mpirun, program):
    stopped = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then exec sleep 300; fi; exec "$0" "$@"'
    job = Job(mpirun, 2, ["sh", "-c", stopped, program, "nothing", "--timeout", str(DEADLINE)])
    job.program = program
    code, output, seconds = job.finish(START_DEADLINE + SLACK)
    assert code != 0 and re.search(r"rank 0 waited up to 60 s in MPI_Init_thread for the other processes", output), output
    print(f"a rank that never starts: ended after {seconds:.1f} s with {code}")


def main():
    mpirun, program = sys.argv[1:3]
    if os.environ.get("TESSERA_TEST_MATRIX") != "reduced":
        check_rank_that_never_starts(mpirun, program)
    for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 1):
        for processes in (1, 2, 4):
            check_success(mpirun, program, processes)
        check_success(mpirun, program, 2, "work-last", DEADLINE)
        check_disagreement(program)
        check_output(mpirun, program)
        check_ranks_option(mpirun, program)
        for what in FAILURES:
            for processes in (2, 3):
                check_failure(mpirun, program, processes, what)


if __name__ == "__main__":
    main()
