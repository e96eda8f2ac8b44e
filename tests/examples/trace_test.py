#!/usr/bin/env python3
"""--trace of both trainers: the file holds the steps that were asked for, of every rank; weights are those of a run without it;
nonsense is one line.

usage: trace_test.py TRAIN_MLP TRAIN_GPT [MPIRUN]
"""
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

import bad_input
from bitwise_matrix_test import TEXT

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "comm"))
from mpi_job import Job  # noqa: E402

MLP = ["--hidden", 37, "--depth", 2, "--batch", 5, "--threads", 1]
GPT = ["--layers", 2, "--dim", 12, "--heads", 3, "--seq", 11, "--batch", 2, "--threads", 1, "--sample", 0,
       "--activation-checkpointing", "yes"]


def run(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)


def traced(program, folder, *options):
    path = folder / "trace.json"
    path.unlink(missing_ok=True)
    done = run(program, "--trace", path, "--quiet", *options)
    assert done.returncode == 0, (options, done.stderr)
    trace = json.loads(path.read_text())
    assert sorted(p.name for p in folder.glob("trace.json*")) == ["trace.json"], "something is left beside it"
    return trace


def operations(trace):
    """How often each operation is there: (rank, step, segment, number, micro-batch)."""
    return collections.Counter((event["pid"], about["step"], about["segment"], about["operation"], about["micro_batch"])
                               for event in trace["traceEvents"] if event["ph"] == "X"
                               and event["cat"] not in ("wait", "host") for about in [event["args"]])


def check_once(trace, ranks, steps):
    found = operations(trace)
    assert set(found.values()) == {1}, "an operation is there twice"
    assert {key[0] for key in found} == set(ranks), found
    assert {key[1] for key in found} == set(steps), found
    one = {key[2:] for key in found if key[:2] == (ranks[0], steps[0])}
    assert found.keys() == {(rank, step, *key) for rank in ranks for step in steps for key in one}
    return len(one)


def drawn_operations(program, *options):
    """Numbers of operations by segment, of the drawing."""
    done = run(program, "--draw-plan", *options)
    assert done.returncode == 0, done.stderr
    counts, segment = {}, None
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "segment":
            segment = words[1]
            counts[segment] = 0
        elif segment and len(words) > 2 and words[0] == str(counts[segment]):
            counts[segment] += 1
        elif segment and not words and segment == "evaluation":
            break
    return counts


def check_contents(program, folder, options):
    for strategy in ["ddp", "fsdp"]:
        sharding = [*options, "--strategy", strategy, "--ranks", 2, "--accumulate", 3, "--steps", 7]
        trace = traced(program, folder, *sharding, "--trace-steps", "4-6")
        count = check_once(trace, [0, 1], [4, 5, 6])
        drawn = drawn_operations(program, *sharding)
        assert count == sum(drawn[name] for name in ["first", "middle", "last", "update"]), (count, drawn)


def check_default_steps(program, folder):
    for steps, expected in [(9, [3, 4, 5]), (4, [2, 3, 4]), (1, [1])]:
        check_once(traced(program, folder, *MLP, "--ranks", 2, "--steps", steps), [0, 1], expected)


def check_resumed(program, folder):
    run_of = [*MLP, "--ranks", 2, "--steps", 12, "--checkpoint-dir", folder / "checkpoints"]
    assert run(program, *run_of, "--stop-after", 5).returncode == 0
    path = folder / "trace.json"
    done = run(program, *run_of, "--resume", "--trace", path, "--trace-steps", "5-6")
    assert done.returncode != 0 and "--trace-steps 5-6: this run goes on from step 5" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    check_once(traced(program, folder, *run_of, "--resume"), [0, 1], [8, 9, 10])
    done = run(program, *run_of, "--resume", "--trace", folder / "nothing.json")  # all steps are done
    assert done.returncode == 0 and not (folder / "nothing.json").exists(), done.stderr


def check_bits(program, folder, options):
    def weights(name, *more):
        done = run(program, *options, "--ranks", 2, "--steps", 5, "--quiet", "--dump-weights", folder / name, *more)
        assert done.returncode == 0, done.stderr
        return (folder / name).read_bytes()

    plain = weights("plain")
    trace = ["--trace", folder / "bits.json", "--trace-steps", "1-5"]
    assert weights("traced", *trace) == plain
    assert weights("stressed", *trace, "--test-queue", "--test-delays", 3, "--test-poison") == plain


def check_simulated(program, folder):
    trace = traced(program, folder, *MLP, "--simulate-world", 64, "--rank", 9, "--steps", 5)
    check_once(trace, [9], [3, 4, 5])


def check_processes(mpirun, program, folder):
    path = folder / "trace.json"
    code, output, _ = Job(mpirun, 2, list(map(str, [program, *MLP, "--steps", 5, "--trace", path]))).wait(100)
    assert code == 0, output
    trace = json.loads(path.read_text())
    check_once(trace, [0, 1], [3, 4, 5])
    assert trace["otherData"]["clocks"] == "one host, one clock", trace["otherData"]
    ends = {rank: max(e["ts"] + e["dur"] for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == rank)
            for rank in (0, 1)}
    begins = {rank: min(e["ts"] for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == rank) for rank in (0, 1)}
    assert begins[0] < ends[1] and begins[1] < ends[0], "two ranks of one job run at the same time"


def check_bad_options(program, folder):
    path = folder / "bad.json"
    steps = [*MLP, "--ranks", 2, "--steps", 5]
    cases = bad_input.Cases(program)
    for options, words in [
        (["--trace-steps", "1-2"], ["--trace-steps", "--trace"]),
        *[(["--trace", path, "--trace-steps", text], ["--trace-steps"])
          for text in ["0-2", "3-2", "3", "-3", "3-", "a-b", "1-2-3", " 1-2", "1 - 2", "+1-2", "1-6", "6-7", "",
                       "1-99999999999999999999999", "-1--1"]],
        (["--trace", folder], ["directory"]),
        (["--trace", folder / "missing" / "trace.json"], ["cannot be written"]),
        (["--trace", "/dev/null"], ["regular"]),
        (["--trace", path, "--metrics", path], ["--trace", "--metrics"]),
        (["--trace", path, "--dump-weights", path], ["--trace", "--dump-weights"]),
    ]:
        cases.check([*steps, *options], words, [bad_input.BAD_OPTIONS, bad_input.FAILED])
        assert not path.exists(), options
    data = folder / "data.csv"
    data.write_text("".join(f"{i},{i * i % 7},{i % 3}\n" for i in range(40)))
    before = data.read_bytes()
    cases.check(["--data", data, "--trace", data], ["--trace", "--data"], [bad_input.BAD_OPTIONS])
    assert data.read_bytes() == before
    assert cases.result() == 0


def main():
    mlp, gpt, *mpirun = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text = folder / "text.txt"
        text.write_bytes(TEXT)
        for program, options in [(mlp, MLP), (gpt, [*GPT, "--data", text])]:
            check_contents(program, folder, options)
            check_bits(program, folder, options)
        check_default_steps(mlp, folder)
        check_resumed(mlp, folder)
        check_simulated(mlp, folder)
        check_bad_options(mlp, folder)
        if mpirun:
            check_processes(mpirun[0], mlp, folder)
    print("traces hold what was asked for, once, and change no bit")


if __name__ == "__main__":
    main()
