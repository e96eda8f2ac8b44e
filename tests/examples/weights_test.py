#!/usr/bin/env python3
"""Weights written by one run start another, on any number of ranks, with any strategy and precision, bit for bit; a GPT's have
GPT-2's names, and its files say how many heads they are for.

usage: weights_test.py TRAIN_MLP|TRAIN_GPT
"""
import math
import pathlib
import struct
import sys
import tempfile

import trainer_runs

DIM, SEQ, LAYERS = 12, 7, 2
COMMON = ["--batch", 5, "--threads", 1, "--eval-every", 0]
MLP = ["--hidden", 37, "--depth", 2, *COMMON]
GPT = ["--layers", LAYERS, "--dim", DIM, "--heads", 3, "--seq", SEQ, *COMMON]
MLP_SHAPES = {"input.weight": [37, 64], "input.bias": [37], "hidden.0.weight": [37, 37], "hidden.0.bias": [37],
              "hidden.1.weight": [37, 37], "hidden.1.bias": [37], "output.weight": [10, 37], "output.bias": [10]}
NOTHING_LEARNED = ["--steps", 1, "--lr", 0]  # the step changes nothing, so the dump must be the file it began with


def gpt_shapes():
    yield "embedding.wte.weight", [256, DIM]
    yield "embedding.wpe.weight", [SEQ, DIM]
    for layer in range(LAYERS):
        for name, out, width in [("attn.c_attn", 3 * DIM, DIM), ("attn.c_proj", DIM, DIM), ("mlp.c_fc", 4 * DIM, DIM),
                                 ("mlp.c_proj", DIM, 4 * DIM)]:
            yield f"blocks.{layer}.{name}.weight", [out, width]
            yield f"blocks.{layer}.{name}.bias", [out]
        for name in ["ln_1", "ln_2"]:
            yield f"blocks.{layer}.{name}.weight", [DIM]
            yield f"blocks.{layer}.{name}.bias", [DIM]
    yield "final.weight", [DIM]
    yield "final.bias", [DIM]


def check_round_trips(program, folder, model, shapes, trained_loss):
    """Returns the file that the runs began with."""
    first, again = folder / "first.safetensors", folder / "again.safetensors"
    trainer_runs.train(program, folder, *model, "--ranks", 3, "--steps", 200, "--lr", 0.01, "--dump-weights", first)
    tensors = trainer_runs.read_safetensors(first)
    assert {name: shape for name, (shape, _) in tensors.items()} == shapes, tensors.keys()
    for tensor, (shape, content) in tensors.items():
        values = struct.unpack(f"<{math.prod(shape)}f", content)
        assert all(map(math.isfinite, values)) and any(values), tensor
    for ranks in [1, 2, 3, 7]:
        losses = set()
        for strategy, precision in [("ddp", "fp32"), ("zero1", "fp32"), ("zero2", "fp32"), ("fsdp", "fp32"), ("fsdp", "bf16"),
                                    ("fsdp", "fp16")]:
            steps = trainer_runs.train(program, folder, *model, *NOTHING_LEARNED, "--ranks", ranks, "--strategy", strategy,
                                       "--precision", precision, "--init", first, "--dump-weights", again)
            assert trainer_runs.read_safetensors(again) == tensors, f"{ranks} ranks, {strategy}, {precision}"
            assert steps[0]["loss"] < trained_loss, "a trained model was expected"
            if precision == "fp32":
                losses.add(steps[0]["loss_bits"])
        assert len(losses) == 1, f"{ranks} ranks: {losses}"
    return first


def check_replaced(program, folder, model, first):
    """A dump may replace the file that the run began with."""
    before = trainer_runs.read_safetensors(first)
    trainer_runs.train(program, folder, *model, "--ranks", 2, "--steps", 3, "--init", first, "--dump-weights", first)
    assert trainer_runs.read_safetensors(first) != before
    assert sorted(path.suffix for path in folder.iterdir()) == [".jsonl"] + 2 * [".safetensors"], "files left behind"


def check_heads(program, folder, dumped):
    """No tensor tells how many attention heads weights are for, but the files that this program writes do."""
    trainer_runs.train(program, folder, *GPT, *NOTHING_LEARNED, "--checkpoint-dir", folder / "saved")
    saved = folder / "saved/step-00000001/model.safetensors"
    for weights in [dumped, saved]:
        options = [4 if before == "--heads" else option for before, option in zip([None, *GPT], GPT)]
        done = trainer_runs.run(program, *options, *NOTHING_LEARNED, "--init", weights)
        assert done.returncode == 1 and 'its "heads" is "3", the model\'s is 4' in done.stderr, done.stderr


def main(program):
    is_gpt = pathlib.Path(program).name == "train_gpt"
    model, shapes, trained_loss = (GPT, dict(gpt_shapes()), 3.5) if is_gpt else (MLP, MLP_SHAPES, 1.0)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        first = check_round_trips(program, folder, model, shapes, trained_loss)
        check_replaced(program, folder, model, first)
        if is_gpt:
            check_heads(program, folder, first)
    print("24 round trips, bit for bit")


if __name__ == "__main__":
    main(sys.argv[1])
