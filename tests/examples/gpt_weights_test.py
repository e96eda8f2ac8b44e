#!/usr/bin/env python3
"""A GPT's weights have GPT-2's names, and start another run on any number of ranks, with any strategy and precision.

usage: gpt_weights_test.py TRAIN_GPT
"""
import pathlib
import sys
import tempfile

import trainer_runs

DIM, SEQ, LAYERS = 12, 7, 2
MODEL = ["--layers", LAYERS, "--dim", DIM, "--heads", 3, "--seq", SEQ, "--batch", 5, "--threads", 1, "--eval-every", 0]
NOTHING_LEARNED = ["--steps", 1, "--lr", 0]  # the step changes nothing, so the dump must be the file it began with


def shapes():
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


def main(program):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        first = folder / "first.safetensors"
        trainer_runs.train(program, folder, *MODEL, "--ranks", 3, "--steps", 200, "--lr", 0.01, "--dump-weights", first)
        tensors = trainer_runs.read_safetensors(first)
        assert {name: shape for name, (shape, _) in tensors.items()} == dict(shapes()), tensors.keys()
        runs = 0
        for ranks in [1, 2, 5]:
            losses = set()
            for strategy, precision in [("ddp", "fp32"), ("zero1", "fp32"), ("zero2", "fp32"), ("fsdp", "fp32"),
                                        ("fsdp", "bf16"), ("fsdp", "fp16")]:
                again = folder / "again.safetensors"
                steps = trainer_runs.train(program, folder, *MODEL, *NOTHING_LEARNED, "--ranks", ranks, "--strategy",
                                           strategy, "--precision", precision, "--init", first, "--dump-weights", again)
                assert trainer_runs.read_safetensors(again) == tensors, f"{ranks} ranks, {strategy}, {precision}"
                assert steps[0]["loss"] < 3.5, "a trained model was expected"
                if precision == "fp32":
                    losses.add(steps[0]["loss_bits"])
                runs += 1
            assert len(losses) == 1, f"{ranks} ranks: {losses}"
        check_heads(program, folder, first)
    print(f"{runs} round trips, bit for bit")


def check_heads(program, folder, dumped):
    """No tensor tells how many attention heads weights are for, but the files that this program writes do."""
    trainer_runs.train(program, folder, *MODEL, *NOTHING_LEARNED, "--checkpoint-dir", folder / "saved")
    saved = folder / "saved/step-00000001/model.safetensors"
    for weights in [dumped, saved]:
        options = [4 if before == "--heads" else option for before, option in zip([None, *MODEL], MODEL)]
        done = trainer_runs.run(program, *options, *NOTHING_LEARNED, "--init", weights)
        assert done.returncode == 1 and 'its "heads" is "3", the model\'s is 4' in done.stderr, done.stderr


if __name__ == "__main__":
    main(sys.argv[1])
