#!/usr/bin/env python3
"""What `tessera plan` plans for a GPT is what train_gpt runs: the same hash, activations and all, also in stages; and what it
says of a step's time is what a rehearsal with modelled collectives takes.

usage: gpt_plan_test.py TESSERA TRAIN_GPT
"""
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import plan_runs

SHAPE = ["--layers", 2, "--dim", 24, "--heads", 3, "--seq", 11, "--vocabulary", 259]
CONTEXT = ["--layers", 2, "--dim", 24, "--heads", 6, "--seq", 12, "--vocabulary", 259]
PRESET = ["--layers", 1, "--dim", 24, "--heads", 2, "--seq", 7, "--vocabulary", 300]
# (ranks, model, options of both)
CASES = [(1, SHAPE, []), (3, SHAPE, ["--precision", "bf16", "--batch", 5]),
         (2, SHAPE, ["--strategy", "ddp", "--activation-checkpointing", "yes", "--batch", 3]),
         (2, ["--layers", 4, *SHAPE[2:]],
          ["--activation-checkpointing", "yes", "--offload", "activations", "--precision", "bf16", "--batch", 3]),
         (2, SHAPE, ["--strategy", "zero1", "--precision", "fp16", "--accumulate-mode", "reduced"]),
         (2, SHAPE, ["--strategy", "zero2", "--optimizer", "sgd"]),
         (3, SHAPE, ["--prefetch", 2, "--reshard-after-forward", "no"]),
         (4, SHAPE, ["--replicas", 2, "--strategy", "hsdp", "--batch", 2]),
         (6, SHAPE, ["--replicas", 3, "--strategy", "hfsdp", "--precision", "bf16"]),
         (4, SHAPE, ["--replicas", 4, "--strategy", "zero2"]), (6, SHAPE, ["--mesh", "shard=2,tensor=3", "--batch", 2]),
         (6, CONTEXT, ["--mesh", "shard=2,context=3", "--precision", "bf16", "--batch", 2]),
         (4, CONTEXT, ["--mesh", "pipeline=2,context=2", "--activation-checkpointing", "yes"]),
         (3, SHAPE, ["--mesh", "tensor=3", "--precision", "bf16", "--activation-checkpointing", "yes"]), (1, PRESET, ["--batch", 2]),
         (4, SHAPE, ["--mesh", "pipeline=2,shard=2", "--batch", 2]),
         (2, SHAPE, ["--mesh", "pipeline=2", "--precision", "bf16", "--schedule", "gpipe"]),
         (6, SHAPE, ["--mesh", "pipeline=2,tensor=3", "--precision", "bf16", "--schedule", "zb-h1"]),
         (6, SHAPE, ["--mesh", "pipeline=2,tensor=3", "--precision", "bf16", "--activation-checkpointing", "yes"])]


def planned(tool, ranks, model, options):
    found = plan_runs.plan(tool, *model, "--world", ranks, "--micro-batches", 3, *options)
    return (found["stages"][0] if "stages" in found else found)["hash"]


def trained(program, ranks, model, options):
    command = [program, *model, "--ranks", ranks, "--accumulate", 3, *options, "--steps", 1, "--sample", 0, "--threads", 1]
    if "--batch" not in options:
        command += ["--batch", 1]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^plan .*; hash (?:of the first )?([0-9a-f]{16})$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return found.group(1)


LATENCY = 20e-3  # of each collective: far more than this model computes, so that a busy machine changes little
BANDWIDTH = 0.01  # GB/s
REHEARSED = [("fsdp", 0), ("fsdp", 2), ("ddp", 1)]


def rehearsed(program, trace, strategy, prefetch):
    """Seconds of a step of rank 3 of 8."""
    command = [program, *SHAPE, "--batch", 2, "--threads", 1, "--simulate-world", 8, "--rank", 3, "--strategy", strategy,
               "--prefetch", prefetch, "--simulate-latency", LATENCY * 1e6, "--simulate-bandwidth", BANDWIDTH, "--steps", 7,
               "--sample", 0, "--trace", trace, "--trace-steps", "3-6"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    ends = {}
    for event in json.loads(pathlib.Path(trace).read_text())["traceEvents"]:
        if event["ph"] == "X" and event["tid"] == 1 and event["args"].get("segment") == "update":
            step = event["args"]["step"]
            ends[step] = max(ends.get(step, 0), event["ts"] + event["dur"])
    steps = sorted(ends)
    return statistics.median(ends[b] - ends[a] for a, b in zip(steps, steps[1:])) * 1e-6


def check_rehearsals(tool, program, folder):
    machine, trace = pathlib.Path(folder) / "imagined.json", pathlib.Path(folder) / "trace.json"
    machine.write_text(json.dumps({
        "tessera_machine": 1, "name": "imagined", "about": "of --simulate-world", "ranks_per_host": 8, "peak": {},
        "products": {}, "memory": 1e10, "immediate_compute": True, "collectives": "direct",
        "host": {"latency": LATENCY, "bandwidth": BANDWIDTH * 1e9}}))
    for strategy, prefetch in REHEARSED:
        seen = []
        for _ in range(6):  # a rehearsal that other work on the machine disturbed says nothing
            took = rehearsed(program, trace, strategy, prefetch)
            found = plan_runs.plan(tool, *SHAPE, "--batch", 2, "--world", 8, "--strategy", strategy, "--prefetch", prefetch,
                                   "--time", "--machine", machine, "--profile", trace)["step_seconds"]
            assert found > 3 * LATENCY, found
            seen.append((found, took))
            if abs(found / took - 1) < 0.08:
                break
        assert abs(found / took - 1) < 0.08, f"{strategy}, prefetch {prefetch}: predicted and rehearsed, each time: {seen}"


def check_stages(tool, program, folder, axes, ranks_of_stage, rows):
    """What a rank of each stage holds and sends, and how long it stands still, foretold and traced."""
    model, mesh = [*SHAPE, "--batch", 2], ["--mesh", f"pipeline=2,{axes}"]
    found = plan_runs.plan(tool, *model, *mesh, "--micro-batches", 4)
    metrics, trace = pathlib.Path(folder) / "metrics.jsonl", pathlib.Path(folder) / "stages.json"
    command = [program, *model, *mesh, "--accumulate", 4, "--threads", 1, "--steps", 5, "--sample", 0, "--quiet", "--metrics",
               metrics, "--trace", trace]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    ranks = json.loads(metrics.read_text().splitlines()[-1])["memory"]["ranks"]
    for rank, categories in enumerate(ranks):
        planned = found["stages"][rank // ranks_of_stage]["categories"]
        assert all(both["planned"] == planned[name] for name, both in categories["categories"].items()), (rank, planned)
    assert abs(found["bubble"] - 1 / 5) < 1e-9 and found["verified"]["sound"], found
    sent = [stage["traffic"]["collectives"]["messages to other stages"] for stage in found["stages"]]
    assert [each["moved"] for each in sent] == [4 * rows * 24 * 4] * 2, sent
    assert "sum of tied gradients along pipeline" in found["stages"][0]["traffic"]["collectives"], found["stages"][0]["traffic"]
    done = subprocess.run([tool, "trace", "summary", trace, "--json"], capture_output=True, text=True, timeout=60, check=False)
    summary = json.loads(done.stdout)
    assert [rank["rank"] for rank in summary["ranks"]] == list(range(len(ranks))), summary
    assert all(0 < rank["bubble"] < 1 for rank in summary["ranks"]), summary
    assert json.loads(trace.read_text())["otherData"]["micro_batches"] == 4
    names = lambda rank: {each["args"]["unit"] for each in json.loads(trace.read_text())["traceEvents"]
                          if each["ph"] == "X" and each["pid"] == rank and each["cat"] == "window"}
    of_first, of_last = names(ranks_of_stage - 1), names(len(ranks) - 1)
    assert "blocks.0" in of_first and "final" not in of_first and "final" in of_last and "blocks.0" not in of_last


def check_refused(tool):
    for text, options in [("leave --granules or context out", [*SHAPE, "--mesh", "shard=2,context=2", "--granules", 4]),
                          ("only a GPT is cut into stages", ["--mlp", "8x8", "--mesh", "pipeline=2"]),
                          ("leave them on the device", [*SHAPE, "--mesh", "pipeline=2", "--offload", "activations",
                                                        "--activation-checkpointing", "yes"]),
                          ("add up in fp32 before they travel", [*SHAPE, "--mesh", "pipeline=2", "--micro-batches", 2, "--wire", "int8"]),
                          ("without effect with stages", [*SHAPE, "--mesh", "pipeline=2", "--compare"]),
                          ("needs --mesh with several places", [*SHAPE, "--schedule", "gpipe"])]:
        refused = plan_runs.run(tool, *options)
        assert refused.returncode == 2 and text in refused.stderr, refused.stderr


def main(tool, program):
    hashes = []
    for ranks, model, options in CASES:
        named = ["--model", "gpt2-124m", *model] if model is PRESET else model
        hashes.append(planned(tool, ranks, named, options))
        preset = ["--preset", "gpt2-124m", *model] if model is PRESET else model
        assert hashes[-1] == trained(program, ranks, preset, options), (ranks, model, options)
    assert len(set(hashes)) == len(CASES), "each case is another plan"
    with tempfile.TemporaryDirectory() as folder:
        check_stages(tool, program, folder, "shard=2", 2, 2 * 11)
        check_stages(tool, program, folder, "tensor=3", 3, (2 * 11 + 2) // 3)
        check_refused(tool)
        check_rehearsals(tool, program, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
