"""Processes with the variables that torchrun or SLURM gives its own, on the loopback interface, as tests need them: with a
deadline, and none is left.
"""
import os
import signal
import socket
import subprocess
import tempfile
import time


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torchrun_variables(rank, ranks, port):
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port)}


def slurm_variables(rank, ranks, port):
    return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(ranks), "SLURM_LOCALID": str(rank),
            "SLURM_JOB_ID": "7", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "node1", "TESSERA_PORT": str(port)}


class Ranks:
    """The started ranks, each a process; `missing` ones never start."""

    def __init__(self, command, ranks, variables=torchrun_variables, missing=()):
        self.ranks = ranks
        self.begin = time.monotonic()
        port = free_port()
        foreign = ("OMPI_", "PMI", "SLURM_", "TESSERA_PORT", "TESSERA_TOKEN")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.outputs = {}
        self.processes = {}
        for rank in range(ranks):
            if rank in missing:
                continue
            self.outputs[rank] = tempfile.TemporaryFile(mode="w+", encoding="utf-8")
            self.processes[rank] = subprocess.Popen(command, env=inherited | variables(rank, ranks, port),
                                                    stdin=subprocess.DEVNULL, stdout=self.outputs[rank],
                                                    stderr=subprocess.STDOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        for output in self.outputs.values():
            output.close()

    def output(self, rank):
        self.outputs[rank].seek(0)
        return self.outputs[rank].read()

    def wait(self, seconds, ranks=None):
        """The exit codes by rank, and the seconds that it took. A rank that takes longer fails the test. None is waited for
        in the system's sense before all have ended, so those that ended first are zombies for the others."""
        waited = list(self.processes) if ranks is None else ranks
        end = time.monotonic() + seconds
        while not all(self.has_ended(rank) for rank in waited):
            if time.monotonic() > end:
                text = "".join(f"-- rank {rank}\n{self.output(rank)}" for rank in self.processes)
                raise SystemExit(f"still running after {seconds} s: {[r for r in waited if not self.has_ended(r)]}\n{text}")
            time.sleep(0.01)
        return {rank: self.processes[rank].wait() for rank in waited}, time.monotonic() - self.begin

    def has_ended(self, rank):
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.processes[rank].pid, flags) is not None
