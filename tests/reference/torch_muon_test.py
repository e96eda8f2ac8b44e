#!/usr/bin/env python3
"""train_gpt and PyTorch train the same GPT by Muon from the same weights on the same samples: 50 steps of torch.optim.Muon for the
matrices of blocks and AdamW for everything else have the same losses to 1e-4, on one rank and on several.

usage: torch_muon_test.py TRAIN_GPT

The test proves that it would see a mistake, by references that make one. PyTorch before 2.9 has no Muon: skipped (77).
"""
import math
import sys
import tempfile

import torch

import torch_gpt
import trainer_runs

TOLERANCE = 1e-4  # both orthogonalise in bf16, and round at other places
STEPS, WARMUP, RATE, LEAST_RATE, DECAY, CLIP = 50, 5, 0.004, 0.0004, 0.2, 1.6
OPTIONS = ["--precision", "fp32", "--optimizer", "muon", "--steps", STEPS, "--warmup", WARMUP, "--lr", RATE, "--min-lr", LEAST_RATE,
           "--weight-decay", DECAY, "--clip", CLIP]
RUNS = [("fsdp", 1, 20, 1), ("ddp", 2, 10, 1), ("fsdp", 2, 2, 5), ("zero2", 5, 4, 1)]  # strategy, ranks, batch, accumulate


def rate_of(step):
    """Counted from 1: linear up to RATE at step WARMUP, then half a cosine."""
    if step <= WARMUP:
        return RATE * step / WARMUP
    part = (step - 1 - WARMUP) / (STEPS - WARMUP)
    return LEAST_RATE + (RATE - LEAST_RATE) * (1 + math.cos(math.pi * part)) / 2


def of_block(name, value):
    return value.dim() == 2 and name.startswith("blocks.")


def reference(setting, *, by_muon=of_block, scale="match_rms_adamw", nesterov=True, momentum=0.95, coefficients=(3.4445, -4.7750, 2.0315)):
    """The loss of each step. The arguments are what a mistake changes."""
    model = torch_gpt.Gpt("tanh")
    model.load_state_dict(setting.weights)
    named = list(model.named_parameters())
    rest = [(name, value) for name, value in named if not by_muon(name, value)]
    groups = [{"params": [value for _, value in rest if value.dim() > 1], "weight_decay": DECAY},
              {"params": [value for _, value in rest if value.dim() == 1], "weight_decay": 0.0}]
    muon = torch.optim.Muon([value for name, value in named if by_muon(name, value)], weight_decay=DECAY, momentum=momentum,
                            nesterov=nesterov, ns_coefficients=coefficients, adjust_lr_fn=scale)
    adamw = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(1, STEPS + 1):
        for group in muon.param_groups + adamw.param_groups:
            group["lr"] = rate_of(step)
        model.zero_grad()
        loss = model.loss(setting.sequences)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        muon.step()
        adamw.step()
        losses.append(loss.item())
    return losses


MISTAKES = {
    "AdamW for the matrices of blocks": {"by_muon": lambda name, value: value.dim() == 2 and name.startswith("blocks.0.attn.c_proj")},
    "embeddings by Muon": {"by_muon": lambda name, value: value.dim() == 2},
    "the original scale": {"scale": "original"},
    "no Nesterov": {"nesterov": False},
    "momentum 0.9": {"momentum": 0.9},
    "another polynomial": {"coefficients": (3.0, -3.2, 1.2)},
}


def distance(expected, found):
    return max(abs(a - b) / abs(a) for a, b in zip(expected, found, strict=True))


def main(program):
    if not hasattr(torch.optim, "Muon"):
        print(f"skipped: PyTorch {torch.__version__} has no Muon")
        return 77
    torch.set_num_threads(1)
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        setting = torch_gpt.Setting(folder)
        expected = reference(setting)
        print(f"PyTorch {torch.__version__}: losses {expected[0]:.4f} to {expected[-1]:.4f}")
        for strategy, ranks, batch, accumulate in RUNS:
            steps = trainer_runs.train(program, folder, *OPTIONS, "--strategy", strategy, *setting.options(ranks, batch, accumulate))
            loss = distance(expected, [step["loss"] for step in steps])
            name = f"{strategy}, {ranks} ranks x batch {batch} x {accumulate} micro-batches"
            print(f"{name}: losses {loss:.1e}")
            if not loss <= TOLERANCE:
                failures.append(name)
        for name, mistake in MISTAKES.items():
            loss = distance(expected, reference(setting, **mistake))
            print(f"{name} would be: losses {loss:.1e}")
            if not loss > 5 * TOLERANCE:
                failures.append(f"{name} would go unseen")
    print("\n".join(f"FAILED: {failure}" for failure in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
