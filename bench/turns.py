"""What every driver of benchmarks shares: how a program is run, and the one way of timing: contestants take turns in one run, rounds give
medians, and ratios are of one round."""
import argparse
import json
import os
import pathlib
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent
# Where these are set, they choose kernels of another machine.
SLOW = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
# Without these PyTorch and MPI give large temporaries back to the system at each step, and page faults dominate.
HEAP_KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8589934592", "MALLOC_TOP_PAD_": "268435456"}
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl_tcp_if_include": "lo",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
# The largest first: names alone do not say which instructions a virtual processor has.
INSTRUCTIONS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512_BF16", "avx512f": "AVX-512", "avx2": "AVX2"}


def environment(variables=None):
    return {key: value for key, value in os.environ.items() if key not in SLOW} | (variables or {})


def run(command, variables=None, timeout=None, talks=False):
    """Standard output of a command, in this environment but for SLOW, with more variables. Ends the program where the command fails.
    talks: its standard error is progress, to be seen at once. After the timeout it ends with all that it has started."""
    words = list(map(str, command))
    with subprocess.Popen(words, env=environment(variables), stdout=subprocess.PIPE, stderr=None if talks else subprocess.PIPE, text=True,
                          start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode != 0:
        sys.exit(f"{shlex.join(words)} ended with {process.returncode}:\n{output}{errors or ''}")
    return output


def written(command, option):
    """(standard output of a command, the file that this option makes it write)"""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "file"
        return run([*command, option, file]), file.read_text(encoding="utf-8")


def trained(command):
    """(what a trainer says, the metrics of each step)"""
    said, metrics = written(command, "--metrics")
    return said, [json.loads(line) for line in metrics.splitlines()]


def traced(command):
    """What a trainer's trace has."""
    return json.loads(written(command, "--trace")[1])["traceEvents"]


def in_turns(rounds, cases, measure, minutes=float("inf")):
    """{case: what measure(case) gave in each round}. Begins no round that would end after so many minutes, and no case after them;
    leaves out those that it did not come to, and those that take longer than their measure allows."""
    found = {case: [] for case in cases}
    start = time.monotonic()
    for index in range(rounds):
        if index and time.monotonic() - start > 60 * minutes * index / (index + 1):
            print(f"note: {index} of {rounds} rounds, because the machine was slow", file=sys.stderr)
            break
        for case in list(found):
            if time.monotonic() - start > 60 * minutes:
                break
            print(f"round {index + 1} of {rounds}: {case}", file=sys.stderr, flush=True)
            try:
                found[case].append(measure(case))
            except subprocess.TimeoutExpired as late:
                print(f"note: {case} is left out: it takes longer than {late.timeout:g} s", file=sys.stderr)
                del found[case]
    return {case: results for case, results in found.items() if results}


def words(options):
    """A command's words, from options and their values."""
    return [word for option in options.items() for word in option]


def medians(rounds):
    """Of tuples, one of each round, the median at each place."""
    return tuple(statistics.median(values) for values in zip(*rounds))


def against_peer(rounds):
    """(ours, the peer's, ratio) of pairs (ours, the peer's), in seconds or other units of which less is better: the ratio is that of a round."""
    return (*medians(rounds), statistics.median(peer / ours for ours, peer in rounds))


def torch_version(python):
    """Of a Python's PyTorch, or None."""
    try:
        done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            facts = dict(reversed([map(str.strip, line.split(":", 1)) for line in lines if ":" in line]))
    except OSError:
        return platform.machine()
    flags = facts.get("flags", "").split()
    best = next((name for flag, name in INSTRUCTIONS.items() if flag in flags), None)
    return facts.get("model name", platform.machine()) + (f" with {best}" if best else "")


def commit():
    done = subprocess.run(["git", "-C", SOURCE, "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True,
                          check=False)
    return f"commit {done.stdout.strip()}" if done.returncode == 0 else "no commit"


def draw(chart, path):
    """The path of the figure of a chart as tools/plot/plot_chart.py takes it, or None where there is none."""
    for python in filter(None, (os.environ.get("TESSERA_PLOT_PYTHON"), sys.executable, "/usr/bin/python3")):
        done = subprocess.run([python, "-B", SOURCE / "tools/plot/plot_chart.py", "-", path], input=json.dumps(chart), capture_output=True,
                              text=True, check=False)
        if done.returncode == 0:
            return path
    print(f"no figure: {done.stderr.strip()}", file=sys.stderr)
    return None


def numbers(text):
    return [int(part) for part in text.split(",")]


def parsed_with_rest(parser):
    """The options, and in `rest` what stands behind --."""
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    return parser.parse_args(words[:end], argparse.Namespace(rest=words[end + 1:]))


def require_folder_of(parser, page):
    """Says before minutes are spent that a page has no place."""
    if not pathlib.Path(page).absolute().parent.is_dir():
        parser.error(f"{page}: its folder is not there")
