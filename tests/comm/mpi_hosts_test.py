#!/usr/bin/env python3
"""Several hosts: network namespaces joined by veth links, TCP between them, shared memory inside. The conformance suite
holds, training gives the bits of ranks that are threads, failures end the job, and nothing is left: no namespace, no
process, no shared memory. Skipped, with the reason, where namespaces cannot be made.

usage: mpi_hosts_test.py MPIRUN CONFORMANCE FAILING_RANK [TRAIN_GPT]
TESSERA_TEST_MATRIX=reduced leaves one shape of each kind and one setting of each.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import mpi_job

SKIPPED = 77
AGENT = pathlib.Path(__file__).parent / "netns_agent.sh"
NETWORK = "10.77.0"
SHAPES = [(2, 1, 2), (1, 1, 1)]  # ranks on each host
MESH_SHAPES = [(1, 2, 3)]  # rows and columns with all their ranks on one host, with some, and with one on each
FLAT = [["--strategy", "fsdp", "--precision", "bf16"], ["--strategy", "fsdp", "--precision", "fp32"],
        ["--strategy", "ddp", "--precision", "fp32"]]
MESHES = [["--replicas", "2", "--strategy", "hsdp", "--precision", "bf16"],
          ["--replicas", "3", "--strategy", "hfsdp", "--precision", "fp32"],
          ["--replicas", "2", "--strategy", "zero2", "--precision", "fp32", "--outer-every", "4", "--outer-fragments", "2"]]
TRAINING = ["--layers", "2", "--dim", "15", "--heads", "3", "--seq", "11", "--batch", "2", "--steps", "10", "--lr", "0.01",
            "--threads", "1", "--sample", "0", "--prefetch", "2"]


class CannotMake(Exception):
    pass


def ip(*arguments):
    done = subprocess.run(["ip", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotMake(f"ip {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


class Hosts:
    """Namespaces PREFIX1, PREFIX2, …, each with an address, on a bridge that stands in a namespace of its own."""

    def __init__(self, count):
        self.prefix = f"tessera{os.getpid()}h"
        self.names = [f"{self.prefix}{number}" for number in range(1, count + 1)]
        self.hub = f"{self.prefix}ub"
        self.addresses = [f"{NETWORK}.{number}" for number in range(1, count + 1)]

    def __enter__(self):
        try:
            self.make()
        except CannotMake:
            self.remove()
            raise
        return self

    def make(self):
        ip("netns", "add", self.hub)
        ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.hub, "link", "set", "bridge", "up")
        for name, address in zip(self.names, self.addresses):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            port = "port" + address.rsplit(".", 1)[1]
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self.hub)
            ip("-n", self.hub, "link", "set", port, "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        subprocess.run(["unshare", "--uts", "true"], check=True)

    def remove(self):
        for name in [*self.names, self.hub]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def __exit__(self, *_):
        self.remove()

    def job(self, mpirun, shape, command, order="slot"):
        """A job with shape[i] ranks on host i, numbered host by host or in turns ("node"); mpirun runs on the first."""
        places = ",".join(f"{address}:{ranks}" for address, ranks in zip(self.addresses, shape))
        settings = {"plm_rsh_agent": str(AGENT), "btl_tcp_if_include": f"{NETWORK}.0/24",
                    "oob_tcp_if_include": f"{NETWORK}.0/24", "plm_rsh_no_tree_spawn": "1"}
        launch = [str(AGENT), self.addresses[0], mpirun, "--host", places]
        for name, value in settings.items():
            launch += ["--mca", name, value]
        os.environ["TESSERA_NETNS"] = self.prefix
        return mpi_job.Job([*launch, "--map-by", order, "-x", "LSAN_OPTIONS", "-x", "ASAN_OPTIONS"], sum(shape), command)


def checked(job, seconds=500):
    return job.finish(seconds)[:2]


def check_conformance(hosts, mpirun, program, shapes):
    for shape in shapes:
        code, output = checked(hosts.job(mpirun, shape, [program]))
        assert code == 0 and f"properties with {sum(shape)} processes" in output, output
        print(f"hosts with {shape} ranks: {output.strip().splitlines()[-1]}")


def crash_of_mpirun(code, output):
    """Open MPI 4.1's mpirun itself may die where a rank is killed, while it passes on what that rank's library says."""
    return code == 128 + signal.SIGSEGV and "libopen-rte" in output


def check_failures(hosts, mpirun, program):
    for what, wanted in {"throw": "error: rank 2: train.bin: empty", "stop": "rank 2, which did not come",
                         "stop-last": "waited up to 2 s for rank 2, which has not left the job and does nothing",
                         "kill": "rank 2"}.items():
        for _ in range(3):
            code, output = checked(hosts.job(mpirun, (1, 1, 1), [program, what, "--timeout", "2"]))
            if not crash_of_mpirun(code, output):
                break
        assert code != 0 and wanted in output, f"{what}: {code}\n{output}"
    code, output = checked(hosts.job(mpirun, (1, 1, 1), [program, "work-last", "--timeout", "2"]))
    assert code == 0, f"work-last: {code}\n{output}"
    print("a rank that throws, stops or is killed ends the job on all hosts, and so does one that stops when all others have left")


def check_training(hosts, mpirun, program, settings_of):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        text = folder / "text.txt"
        text.write_bytes(b"To be, or not to be, that is the question.\n" * 60)
        for shape, settings in settings_of.items():
            for setting in settings:
                options = [*TRAINING, "--data", str(text), *setting]
                subprocess.run([program, *options, "--quiet", "--ranks", str(sum(shape)), "--dump-weights",
                                folder / "threads"], check=True, timeout=120)
                code, output = checked(hosts.job(mpirun, shape, [program, *options, "--quiet", "--dump-weights",
                                                                 str(folder / "hosts")]))
                assert code == 0 and f"{sum(shape)} ranks on {len(shape)} hosts" in output, output
                same = (folder / "threads").read_bytes() == (folder / "hosts").read_bytes()
                assert same, f"{setting}, hosts with {shape} ranks: other weights than with threads"
                print(f"hosts with {shape} ranks, {' '.join(setting)}: the weights of threads, bit for bit")


def check_order(hosts, mpirun, program):
    """Whoever interleaves hosts is told what a mesh loses by it, and nobody else is."""
    for order, warned in {"slot": False, "node": True}.items():
        options = ["--layers", "1", "--dim", "8", "--heads", "1", "--seq", "8", "--batch", "1", "--steps", "1", "--sample", "0",
                   "--threads", "1", "--replicas", "2", "--strategy", "hsdp"]
        code, output = checked(hosts.job(mpirun, (2, 2), [program, *options], order))
        assert code == 0 and output.count("warning: rank 0: 2 of 2 groups \"shard\"") == warned, f"{order}:\n{output}"
        a, b = hosts.names[:2]
        assert not warned or f"(ranks 0, 2 on {a}; ranks 1, 3 on {b})" in output, output
    print("hosts that the launcher interleaves are named")


def main(*arguments):
    mpirun, conformance, failing_rank, *train_gpt = arguments
    some = slice(0, 1 if os.environ.get("TESSERA_TEST_MATRIX") == "reduced" else None)
    settings_of = {shape: settings[some] for shapes, settings in [(SHAPES, FLAT), (MESH_SHAPES, MESHES)] for shape in shapes[some]}
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        print("skipped: network namespaces need the programs ip and unshare")
        return SKIPPED
    try:
        with Hosts(3) as hosts:
            check_conformance(hosts, mpirun, conformance, settings_of)
            check_failures(hosts, mpirun, failing_rank)
            for program in train_gpt:
                check_order(hosts, mpirun, program)
                check_training(hosts, mpirun, program, settings_of)
    except (CannotMake, subprocess.CalledProcessError) as reason:
        if isinstance(reason, subprocess.CalledProcessError) and reason.cmd[0] != "unshare":
            raise
        print(f"skipped: network namespaces cannot be made here ({reason})")
        return SKIPPED
    left = [name for name in ip("netns", "list").split() if name.startswith(hosts.prefix)]
    assert not left, f"namespaces left: {left}"
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
