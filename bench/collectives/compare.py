#!/usr/bin/env python3
"""Collectives of one host side by side, in one run: threads (the local backend), processes (mpi), and the MPI's own
collectives with its heap kept. Rounds alternate, so that all see the same machine; a figure is the median of the rounds.

usage: compare.py BUILD [--rounds N] [--ranks N,N] [--mib N,N] [--mpirun MPIRUN]    prints a Markdown page
"""
import argparse
import collections
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys

# Without these an MPI gives its temporaries back to the system at each call, and page faults dominate.
HEAP_KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8589934592", "MALLOC_TOP_PAD_": "268435456"}
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl_tcp_if_include": "lo",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


def lines_of(command, extra=None):
    done = subprocess.run(command, env={**os.environ, **(extra or {})}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return [line.split() for line in done.stdout.splitlines()]


def measure(options):
    """{(backend, ranks, collective, MiB): [ms of each round]}"""
    ours = pathlib.Path(options.build) / "bench/collectives"
    peer = pathlib.Path(options.build) / "bench/mpi_collectives"
    sizes = options.mib.split(",")
    times = collections.defaultdict(list)
    for _ in range(options.rounds):
        for ranks in options.ranks.split(","):
            mpirun = [options.mpirun, "-n", ranks]
            for lines in (lines_of([ours, "--ranks", ranks, *sizes]), lines_of([*mpirun, ours, *sizes], OPEN_MPI),
                          lines_of([*mpirun, peer, *sizes], OPEN_MPI | HEAP_KEPT)):
                for backend, count, collective, mebibytes, milliseconds in lines:
                    times[backend, int(count), collective, int(mebibytes)].append(float(milliseconds))
    return times


def table(times):
    figures = {key: statistics.median(values) for key, values in times.items()}
    yield "| ranks | collective | MiB | local, ms | mpi, ms | Open MPI's own, ms | mpi's rate / local's | / Open MPI's |"
    yield "|---|---|---|---|---|---|---|---|"
    for (backend, ranks, collective, mebibytes), mpi in figures.items():
        if backend == "mpi":
            local, peer = figures["local", ranks, collective, mebibytes], figures["peer", ranks, collective, mebibytes]
            yield (f"| {ranks} | {collective} | {mebibytes} | {local:.3g} | {mpi:.3g} | {peer:.3g} | {local / mpi:.2f} | "
                   f"{peer / mpi:.2f} |")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--mib", default="1,16,256")
    parser.add_argument("--mpirun", default="mpirun")
    options = parser.parse_args()
    print(f"`{shlex.join(['bench/collectives/compare.py', *sys.argv[1:]])}`, {os.cpu_count()} cores, "
          f"{platform.system()} {platform.release()}, median of {options.rounds} rounds, each the median of its runs.\n")
    print("\n".join(table(measure(options))))


if __name__ == "__main__":
    main()
