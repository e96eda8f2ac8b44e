#!/usr/bin/env python3
"""Starts programs with mpirun as tests need it: as any user, with more processes than cores, over loopback alone, and
with nothing left behind, neither processes nor shared memory.

usage: mpi_job.py --mpirun MPIRUN -n N PROGRAM [ARGUMENT...]    runs it, shows its output, and exits with its code
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

SUPPRESSIONS = pathlib.Path(__file__).parent.parent / "sanitizers" / "lsan-mpi.supp"
# Where Open MPI has its own segments. Each process of a job has it, on other hosts too, and no process of another job.
SEGMENTS_VARIABLE = "OMPI_MCA_btl_vader_backing_directory"


def environment():
    """Open MPI's settings as variables, which an MPI of another make does not mind; and what its own leaks are called."""
    variables = dict(os.environ)
    variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                  "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
                  "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_oob_tcp_if_include": "lo",
                  "OMPI_MCA_orte_base_help_aggregate": "0", "OMPI_MCA_mpi_yield_when_idle": "1"}
    # Leaks are told apart by the library that made them, which must still be there: it stays loaded, and who looks for
    # leaks does it before MPI has ended (mpi_conformance.cpp).
    variables["OMPI_MCA_mca_base_component_disable_dlclose"] = "1"
    asan = [variables.get("ASAN_OPTIONS"), "leak_check_at_exit=0", "fast_unwind_on_malloc=0"]
    variables["ASAN_OPTIONS"] = ":".join(filter(None, asan))
    variables["LSAN_OPTIONS"] = f"suppressions={SUPPRESSIONS}:print_suppressions=0"
    return variables


def processes_of(program, folder):
    """The ids of processes that run the program in the job with this folder: other tests may run the same program."""
    found = []
    mark = f"{SEGMENTS_VARIABLE}={folder}\0".encode()
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if (entry.name.isdigit() and os.readlink(entry / "exe") == os.path.realpath(program)
                    and mark in (entry / "environ").read_bytes()):
                found.append(int(entry.name))
        except OSError:
            pass  # it has ended, or is not ours to look at
    return found


class Job:
    """A started mpirun, in a process group of its own. Open MPI's own segments go to a folder of the job's, because in
    /dev/shm they could be any other job's."""

    def __init__(self, mpirun, processes, command):
        self.program = command[0]
        self.folder = tempfile.TemporaryDirectory()
        self.begin = time.monotonic()
        variables = environment() | {SEGMENTS_VARIABLE: self.folder.name}
        launcher = [mpirun] if isinstance(mpirun, str) else mpirun
        self.process = subprocess.Popen([*launcher, "-n", str(processes), *command], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env=variables, start_new_session=True)

    def wait(self, seconds):
        """The exit code, the output and the seconds that it took. A job that takes longer is ended and fails."""
        try:
            output, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            for left in processes_of(self.program, self.folder.name):
                os.kill(left, signal.SIGKILL)
            output, _ = self.process.communicate()
            sys.exit(f"{self.program}: still running after {seconds} s\n{output}")
        return self.process.returncode, output, time.monotonic() - self.begin

    def segments(self):
        """Ours have no names: they are there while a process has them. These would have."""
        named = [entry.name for entry in pathlib.Path("/dev/shm").glob("*tessera*")]
        return named + [entry.name for entry in pathlib.Path(self.folder.name).iterdir()]

    def left_behind(self, seconds=10):
        """What is there of the job after its end: ids of processes, names of segments. Waits for those that are ending."""
        end = time.monotonic() + seconds
        while True:
            left = processes_of(self.program, self.folder.name), self.segments()
            if not any(left) or time.monotonic() > end:
                return left
            time.sleep(0.05)

    def finish(self, seconds):
        """As wait(); that nothing is left behind is checked."""
        code, output, took = self.wait(seconds)
        processes, shared = self.left_behind()
        assert not processes and not shared, f"left behind: processes {processes}, segments {sorted(shared)}\n{output}"
        return code, output, took


def main():
    arguments = sys.argv[1:]
    if len(arguments) < 5 or arguments[0] != "--mpirun" or arguments[2] != "-n":
        sys.exit(__doc__)
    code, output, _ = Job(arguments[1], int(arguments[3]), arguments[4:]).finish(280)
    print(output, end="")
    sys.exit(code)


if __name__ == "__main__":
    main()
