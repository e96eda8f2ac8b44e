#!/usr/bin/env python3
"""The metrics of train_gpt: tokens per second, held-out loss with its bits, loss scale in fp16, activations as planned.

usage: gpt_metrics_test.py TRAIN_GPT [--not-measurable]     where mmap cannot be interposed, "measured" is null
"""
import math
import struct
import sys
import tempfile

import trainer_runs

SEQ = 11
MODEL = ["--dim", 12, "--heads", 3, "--seq", SEQ, "--batch", 24, "--threads", 1, "--ranks", 3,
         "--accumulate", 2, "--steps", 6, "--eval-every", 4]
KEYS = {"step", "loss", "loss_bits", "grad_norm", "grad_norm_bits", "lr", "samples", "step_seconds",
        "samples_per_second", "tokens_per_second"}
EVALUATED = {"held_out_loss", "held_out_loss_bits", "held_out_samples"}


def check_run(program, *options, layers=2, extra=frozenset()):
    with tempfile.TemporaryDirectory() as folder:
        steps = trainer_runs.train(program, folder, "--layers", layers, *MODEL, *options)
    assert len(steps) == 6
    for step in steps:
        number = step["step"]
        expected = KEYS | extra | (EVALUATED if number in [4, 6] else set()) | ({"memory"} if number in [1, 6] else set())
        assert step.keys() == expected, step.keys() ^ expected
        assert math.isclose(step["tokens_per_second"], SEQ * step["samples_per_second"], rel_tol=1e-9), step
        if number in [4, 6]:
            assert struct.pack(">d", step["held_out_loss"]).hex() == step["held_out_loss_bits"], step
            assert abs(step["held_out_loss"] - step["loss"]) < 0.5, step
    assert 5.0 < steps[0]["loss"] < 6.0, "256 bytes begin near ln 256"
    return steps


def activation_bytes(steps, measurable):
    sizes = set()
    for step in [steps[0], steps[-1]]:
        for rank in step["memory"]["ranks"]:
            both = rank["categories"]["activations"]
            assert both["measured"] == (both["planned"] if measurable else None), both
            sizes.add(both["planned"])
    assert len(sizes) == 1, sizes
    return sizes.pop()


def check_text(program):
    """What people see: held-out loss, text, notes."""
    done = trainer_runs.run(program, "--layers", 2, *MODEL, "--sample", 20, "--prompt", "Prompt!", "--fp32-units", "final", "--loss-scale",
                            8)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.count("| Prompt!") == 2, done.stdout  # with the first evaluation, and at the end
    for words in ["tokens/s", "held-out loss", "--loss-scale is without effect", "--fp32-units is without effect"]:
        assert words in done.stdout, f"{words} not in\n{done.stdout}"
    types = trainer_runs.run(program, "--layers", 2, *MODEL, "--show-types", "--precision", "bf16", "--fp32-units", "final").stdout
    table = {line.split()[0]: line.split()[1:4] for line in types.splitlines() if " fp32 " in line and "bytes" not in line}
    # The table is used twice, so its gradients add up on the rank and travel in fp32.
    assert table["embedding"] == ["bf16", "bf16", "fp32"] and table["blocks.0"] == ["bf16", "bf16", "bf16"], types
    assert table["final"] == ["fp32", "fp32", "fp32"], types
    staged = trainer_runs.run(program, "--layers", 2, "--dim", 12, "--heads", 3, "--seq", SEQ, "--batch", 2, "--threads", 1, "--steps", 1,
                              "--sample", 0, "--ranks", 2, "--mesh", "pipeline=2", "--accumulate", 2, "--show-types").stdout
    table = [line.split()[0] for line in staged.splitlines() if " fp32 " in line and "bytes" not in line]
    assert {"embedding", "blocks.0", "blocks.1", "final"} <= set(table), staged
    types = trainer_runs.run(program, "--layers", 2, *MODEL, "--show-types",
                             variables={"TESSERA_INSTRUCTION_SET": "portable"}).stdout
    assert "rows with portable; products of fp32 " in types and "; 1 thread\n" in types, types
    assert "|" not in trainer_runs.run(program, "--layers", 2, *MODEL, "--sample", 0).stdout


def main(program, measurable):
    whole = activation_bytes(check_run(program), measurable)
    half = activation_bytes(check_run(program, "--precision", "bf16"), measurable)
    recomputed = activation_bytes(check_run(program, "--activation-checkpointing", "yes"), measurable)
    assert half < whole and recomputed < 0.6 * whole, (whole, half, recomputed)
    deep = ["--activation-checkpointing", "yes"]
    here, there = check_run(program, *deep, layers=6), check_run(program, *deep, "--offload", "activations", layers=6)
    bits = [[(step["loss_bits"], step["grad_norm_bits"]) for step in steps] for steps in (here, there)]
    assert bits[0] == bits[1], bits
    # Seven inputs and outputs of blocks stand there, or two of them and two slots.
    kept, moved = activation_bytes(here, measurable), activation_bytes(there, measurable)
    assert kept - moved > 2 * 4 * 24 * SEQ * 12, (kept, moved)
    scaled = check_run(program, "--precision", "fp16", extra={"loss_scale", "skipped"})
    assert all(step["loss_scale"] > 0 and step["skipped"] in [True, False] for step in scaled)
    fixed = check_run(program, "--precision", "fp16", "--loss-scale", 512, extra={"loss_scale", "skipped"})
    assert {step["loss_scale"] for step in fixed} == {512}
    check_text(program)
    print(f"activations: fp32 {whole}, bf16 {half}, recomputed {recomputed} bytes")


if __name__ == "__main__":
    main(sys.argv[1], measurable="--not-measurable" not in sys.argv[2:])
