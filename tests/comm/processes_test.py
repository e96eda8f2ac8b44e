#!/usr/bin/env python3
"""Ranks on the CPU of one host that torchrun or SLURM has started: they run, and when one throws, exits, is killed, is
stopped, leaves, runs with other options or never starts, every other one ends within the deadline with the first cause.

usage: processes_test.py conformance RANKS PROGRAM          PROGRAM on so many ranks, which must all end well
       processes_test.py failures FAILING_RANK [WITHOUT_MPI]
       processes_test.py stores KILLED_AT_STORE             a rank is killed behind each of its stores to shared memory
       processes_test.py torchrun FAILING_RANK              torchrun itself; skipped where no Python has PyTorch
TESSERA_TEST_MATRIX=reduced leaves out what takes a minute: a rank that never starts.
"""
import concurrent.futures
import contextlib
import os
import re
import subprocess
import sys

import launched

DEADLINE = 2  # --timeout of the ranks, seconds
START_DEADLINE = 60  # processes that are started together do not come together
SLACK = 60  # for what is no rank's wait: starting, ending, a machine with other things to do
SKIPPED = 77

# The last rank does one of these, and every other rank's output says between them: the first cause, once.
FAILURES = {
    "throw": "error: rank {last}: train.bin: empty",
    "abort": "error: rank {last}: the disk is full",
    "exit": r"error: rank {last}: the process called exit\(\)",
    "quick-exit": "the process of rank {last} has ended while ranks? 0",
    "kill": "the process of rank {last} has ended while ranks? 0",
    "stop": "waited up to 2 s in all-gather \"blocks.3\".* for rank {last}, which did not come",
    "options": "error: rank \\d: the plan must be equal: ranks? 0.* said 42; rank {last} said 17",
    "leave": "rank {last} has left the job while",
    "kill-last": "the process of rank {last} ended before it left the job",
    "stop-last": "waited up to 2 s for rank {last}, which has not left the job and does nothing",
}
GONE = ("kill", "stop", "kill-last", "stop-last")  # what the last rank does without a word of its own


def check_failure(program, ranks, what):
    last = ranks - 1
    with launched.Ranks([program, what, "--timeout", str(DEADLINE)], ranks) as job:
        others = range(last) if "stop" in what else range(ranks)
        codes, seconds = job.wait(DEADLINE + SLACK, others)
        text = "".join(job.output(rank) for rank in range(ranks))
        assert all(code != 0 for code in codes.values()), f"{what}: {codes}\n{text}"
        pattern = FAILURES[what].format(last=last)
        assert len(re.findall(pattern, text)) == 1, f"{what} with {ranks} ranks: not once {pattern} in\n{text}"
        print(f"{what}, {ranks} ranks: ended after {seconds:.1f} s with {list(codes.values())}")


def check_success(command, ranks, variables=launched.torchrun_variables, seconds=240):
    with launched.Ranks(command, ranks, variables) as job:
        codes, _ = job.wait(seconds)
        text = "".join(job.output(rank) for rank in range(ranks))
        assert not any(codes.values()), f"{codes}\n{text}"
        return text


def check_start(program, variables, by):
    text = check_success([program, "nothing"], 3, variables)
    said = f"tessera: 3 ranks on 1 host, processes of {by}; on this host 3 ranks with "
    assert text.count("tessera:") == 1 and said in text, text
    print(text.strip())


def check_ranks_that_never_start(program):
    """Beside each other: the last rank, which the others have met without, and rank 0, which nobody could meet."""
    with contextlib.ExitStack() as stack:
        command = [program, "nothing", "--timeout", str(DEADLINE)]
        jobs = {missing: stack.enter_context(launched.Ranks(command, 3, missing=[missing])) for missing in (2, 0)}
        patterns = {2: "error: rank \\d: ranks 0, 1 waited up to 60 s in .* for rank 2, which did not come",
                    0: "error: rank 1 waited up to 60 s for rank 0 to answer at 127.0.0.1"}
        for missing, job in jobs.items():
            codes, seconds = job.wait(START_DEADLINE + SLACK)
            text = "".join(job.output(rank) for rank in job.processes)
            assert all(codes.values()) and re.search(patterns[missing], text), f"{codes}\n{text}"
            print(f"rank {missing} never starts: the others ended after {seconds:.1f} s with {list(codes.values())}")


def check_several_hosts(program):
    """Hosts are told apart by their names, among other things: each rank gets one of its own."""
    command = ["unshare", "--uts", "sh", "-c", 'hostname "host$RANK" && exec "$0" "$@"']
    if subprocess.run([*command, "true"], env=os.environ | {"RANK": "0"}, capture_output=True, check=False).returncode != 0:
        print("hosts of other names cannot be made here")
        return
    with launched.Ranks([*command, program, "nothing"], 3) as job:
        codes, _ = job.wait(SLACK)
        text = "".join(job.output(rank) for rank in range(3))
        assert all(codes.values()) and text.count("error:") == 1, text
        assert "the ranks are on 3 hosts" in text and "mpirun -n 3" in text and "srun --mpi=pmix" in text, text
        print(text.strip())


def failures(program, *without_mpi):
    check_start(program, launched.torchrun_variables, "torchrun")
    check_start(program, launched.slurm_variables, "srun")
    for other in without_mpi:
        check_start(other, launched.torchrun_variables, "torchrun")
    check_several_hosts(program)
    for what in FAILURES:
        for ranks in (2, 3):
            check_failure(program, ranks, what)
    if os.environ.get("TESSERA_TEST_MATRIX") != "reduced":
        check_ranks_that_never_start(program)


def stores(program):
    """Whatever the store, the others end, and say who is gone, or what it threw, unless all had left by then."""
    reduced = os.environ.get("TESSERA_TEST_MATRIX") == "reduced"
    for who, throws, each in ((2, False, 1), (0, False, 3 if reduced else 1), (2, True, 3 if reduced else 1)):
        with stored(program, 0, who, throws) as job:
            codes, _ = job.wait(SLACK)
            text = "".join(job.output(rank) for rank in range(RANKS))
        if SKIPPED in codes.values():
            return SKIPPED
        assert throws == any(codes.values()), text
        count = int(re.search(r"stores: (\d+)", text)[1])
        assert count > 20, text
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            ends = list(pool.map(lambda store: killed_behind(program, store, who, throws), range(1, count + 1, each)))
        print(f"{count} stores of rank {who}{', which throws' if throws else ''}: {len(ends)} kills, of which the others told {sum(ends)}")
        assert sum(ends) >= len(ends) - 3, ends
    return 0


RANKS = 3


def stored(program, store, who, throws):
    return launched.Ranks([program, str(store), str(who), *["throw"] * throws, "--timeout", "20"], RANKS)


def killed_behind(program, store, who, throws):
    """Whether the others said who is gone."""
    with stored(program, store, who, throws) as job:
        codes, seconds = job.wait(15, [rank for rank in range(RANKS) if rank != who])
        text = "".join(job.output(rank) for rank in range(RANKS))
        assert len(set(codes.values())) == 1, f"store {store} of rank {who}: {codes}\n{text}"
        if not any(codes.values()):
            return False
        said = f"the process of rank {who} (has )?ended|memory that process {job.processes[who].pid} shares .* cannot be opened"
        assert re.search(said + "|train.bin: empty" * throws, text), f"store {store} of rank {who}, {seconds:.1f} s: {codes}\n{text}"
        return True


def conformance(ranks, program):
    print(check_success([program], int(ranks)), end="")


def torchrun(program):
    python = os.environ.get("TESSERA_TORCH_PYTHON") or sys.executable
    if subprocess.run([python, "-c", "import torch.distributed.run"], capture_output=True, check=False).returncode != 0:
        print(f"skipped: {python} has no PyTorch; let TESSERA_TORCH_PYTHON name a Python that has")
        return SKIPPED
    launcher = [python, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-addr", "127.0.0.1",
                "--master-port", str(launched.free_port()), "--no-python", program]
    for what, code, said in (("nothing", 0, "3 ranks on 1 host, processes of torchrun"),
                             ("kill", 1, "the process of rank 2 has ended")):
        ran = subprocess.run([*launcher, what, "--timeout", str(DEADLINE)], capture_output=True, text=True,
                             timeout=DEADLINE + 2 * SLACK, check=False)
        text = ran.stdout + ran.stderr
        assert (ran.returncode != 0) == (code != 0), text
        assert said in text or (what == "kill" and "Signal 9" in text), text
        print(f"torchrun, {what}: {ran.returncode}")
    return 0


if __name__ == "__main__":
    sys.exit({"conformance": conformance, "failures": failures, "stores": stores, "torchrun": torchrun}[sys.argv[1]](*sys.argv[2:]))
