#!/usr/bin/env python3
"""The file of --metrics: one object per step with all its keys, bits that are the numbers' bits, the schedule's rates, and the
memory of every rank in the first object and the last.

usage: metrics_schema_test.py TRAIN_MLP [--not-measurable]     where mmap cannot be interposed, "measured" is null
"""
import math
import struct
import sys
import tempfile

import trainer_runs

KEYS = {"step", "loss", "loss_bits", "grad_norm", "grad_norm_bits", "lr", "samples", "step_seconds", "samples_per_second"}
SHARDED = ["parameters", "gradients", "optimizer"]
ALL_CATEGORIES = {*SHARDED, "activations", "accumulation", "parameter_slots", "gradient_slots", "scalars"}
MODEL = ["--hidden", 37, "--depth", 2, "--batch", 5, "--threads", 1]


def check_step(step, number, samples):
    assert KEYS <= step.keys() <= KEYS | {"accuracy", "held_out_samples", "memory"}, step.keys()
    assert step["step"] == number and step["samples"] == samples, step
    assert struct.pack(">f", step["loss"]).hex() == step["loss_bits"], step
    assert struct.pack(">d", step["grad_norm"]).hex() == step["grad_norm_bits"], step
    assert step["step_seconds"] > 0
    assert math.isclose(step["samples_per_second"], samples / step["step_seconds"], rel_tol=1e-9), step


def check_memory(memory, ranks, measurable):
    """Every category with both figures, and the peak their sum."""
    assert memory.keys() == {"ranks"} and len(memory["ranks"]) == ranks, memory.keys()
    for rank in memory["ranks"]:
        assert rank.keys() == {"categories", "peak", "live", "unplanned"}, rank.keys()
        assert set(rank["categories"]) <= ALL_CATEGORIES and set(SHARDED) <= set(rank["categories"]), rank["categories"]
        for name, both in {**rank["categories"], "peak": rank["peak"]}.items():
            assert both.keys() == {"planned", "measured"}, both
            assert both["measured"] == (both["planned"] if measurable else None), f"{name}: {both}"
            assert both["planned"] > 0, name
        assert rank["peak"]["planned"] == sum(both["planned"] for both in rank["categories"].values())
        assert 0 < rank["live"] <= rank["peak"]["planned"]
        assert "activations" in rank["categories"] and rank["unplanned"]["batches"] > 0


def cosine(step, rate, least, warmup, steps):
    if step <= warmup:
        return rate * step / warmup
    progress = (step - 1 - warmup) / (steps - warmup)
    return least + (rate - least) * (1 + math.cos(math.pi * progress)) / 2


def check_run(program, strategy, measurable):
    options = ["--ranks", 3, "--strategy", strategy, "--accumulate", 2, "--steps", 12, "--eval-every", 5, "--lr", 0.01,
               "--min-lr", 0.001, "--warmup", 4]
    with tempfile.TemporaryDirectory() as folder:
        steps = trainer_runs.train(program, folder, *MODEL, *options)
        stopped = trainer_runs.train(program, folder, *MODEL, *options, "--stop-after", 7)
    assert len(steps) == 12 and len(stopped) == 7
    for number, step in enumerate(steps, start=1):
        check_step(step, number, samples=3 * 5 * 2)
        assert ("memory" in step) == (number in [1, 12]), number
        assert ("accuracy" in step) == (number in [5, 10, 12]), number
        assert math.isclose(step["lr"], cosine(number, 0.01, 0.001, 4, 12), rel_tol=1e-6), step
    for step in [steps[0], steps[-1]]:
        check_memory(step["memory"], ranks=3, measurable=measurable)
    for whole, part in zip(steps, stopped):  # stopping does not change the schedule
        assert [whole[key] for key in ["loss_bits", "grad_norm_bits", "lr"]] == \
            [part[key] for key in ["loss_bits", "grad_norm_bits", "lr"]]
    assert "memory" in stopped[0] and "memory" in stopped[-1]
    return steps[-1]["memory"]["ranks"][0]["categories"]


def check_text(program):
    """What people see: notes on options without effect, accuracy, the table of bytes."""
    done = trainer_runs.run(program, *MODEL, "--ranks", 2, "--strategy", "ddp", "--steps", 4, "--prefetch", 2,
                            "--reshard-after-forward", "no", "--accumulate-mode", "local")
    assert done.returncode == 0 and not done.stderr, done.stderr
    for words in ["--prefetch is without effect", "--reshard-after-forward is without effect",
                  "--accumulate-mode is without effect: a step has one micro-batch", "held-out accuracy",
                  "samples/s", "Bytes per rank", "fsdp", "ddp", "gradient_slots"]:
        assert words in done.stdout, f"{words} not in\n{done.stdout}"
    assert "without effect" not in trainer_runs.run(program, *MODEL, "--steps", 1, "--prefetch", 2, "--accumulate", 2,
                                                        "--accumulate-mode", "local", "--threads", 1, "--test-queue").stdout


def main(program, measurable):
    ddp, fsdp = (check_run(program, strategy, measurable) for strategy in ["ddp", "fsdp"])
    for category in SHARDED:
        assert fsdp[category]["planned"] < 0.6 * ddp[category]["planned"], category
    check_text(program)
    print("schema, schedule and memory hold for ddp and fsdp")


if __name__ == "__main__":
    main(sys.argv[1], measurable="--not-measurable" not in sys.argv[2:])
