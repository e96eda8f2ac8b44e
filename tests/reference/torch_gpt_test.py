#!/usr/bin/env python3
"""train_gpt and PyTorch train the same GPT from the same weights on the same samples: losses and gradient norms of 20 steps agree
to 1e-5. Adam with decoupled weight decay of all but biases and norms, clipping, warm-up and cosine.

usage: torch_gpt_test.py TRAIN_GPT

The test proves that it would see a mistake, by references that make one.
"""
import math
import sys
import tempfile

import torch

import torch_gpt
import trainer_runs

TOLERANCE = 1e-5  # rounding in fp32 leaves less than a tenth of it
STEPS, WARMUP, RATE, LEAST_RATE, DECAY, CLIP = 20, 5, 0.005, 0.0005, 0.3, 1.6
OPTIONS = ["--strategy", "fsdp", "--precision", "fp32", "--optimizer", "adamw", "--steps", STEPS, "--warmup", WARMUP,
           "--lr", RATE, "--min-lr", LEAST_RATE, "--weight-decay", DECAY, "--clip", CLIP]
RUNS = [(1, 20, 1), (2, 10, 1), (2, 2, 5)]  # ranks, batch, accumulate


def rate_of(step):
    """Counted from 1: linear up to RATE at step WARMUP, then half a cosine that begins there and whose end, LEAST_RATE,
    would be that of the step after the last."""
    if step <= WARMUP:
        return RATE * step / WARMUP
    part = (step - 1 - WARMUP) / (STEPS - WARMUP)
    return LEAST_RATE + (RATE - LEAST_RATE) * (1 + math.cos(math.pi * part)) / 2


def is_matrix(name, value):
    return value.dim() > 1


def reference(setting, *, decays=is_matrix, rate=rate_of, clip=CLIP, optimizer=torch.optim.AdamW, factor=1.0, gelu="tanh"):
    """(loss, gradient norm) of each step. The arguments are what a mistake changes; `factor` is the gradients'."""
    model = torch_gpt.Gpt(gelu)
    model.load_state_dict(setting.weights)
    named = list(model.named_parameters())
    groups = [{"params": [value for name, value in named if decays(name, value)], "weight_decay": DECAY},
              {"params": [value for name, value in named if not decays(name, value)], "weight_decay": 0.0}]
    update = optimizer(groups, betas=(0.9, 0.999), eps=1e-8)
    steps = []
    for step in range(1, STEPS + 1):
        for group in update.param_groups:
            group["lr"] = rate(step)
        update.zero_grad()
        loss = model.loss(setting.sequences)
        (loss * factor).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        update.step()
        steps.append((loss.item(), norm.item()))
    return steps


MISTAKES = {
    "weight decay of biases": {"decays": lambda name, value: value.dim() > 1 or name.endswith("bias")},
    "weight decay of norms": {"decays": lambda name, value: value.dim() > 1 or not name.endswith("bias")},
    "weight decay of nothing": {"decays": lambda name, value: False},
    "weight decay within Adam's moments": {"optimizer": torch.optim.Adam},
    "no clipping": {"clip": math.inf},
    "the rate of the step before": {"rate": lambda step: rate_of(step - 1)},
    "gradients 1% too large": {"factor": 1.01},
    "gradients of a sum over 2 ranks": {"factor": 2.0},
    "the exact GELU": {"gelu": "none"},
}


def distances(expected, found):
    """The largest relative distance of losses, and that of norms."""
    return [max(abs(a - b) / abs(a) for a, b in zip(one, other, strict=True))
            for one, other in zip(zip(*expected), zip(*found), strict=True)]


def clips(expected):
    """How many steps were clipped: all or none would show less than some."""
    return sum(norm > CLIP for _, norm in expected)


def main(program):
    torch.set_num_threads(1)
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        setting = torch_gpt.Setting(folder)
        expected = reference(setting)
        print(f"PyTorch {torch.__version__}: losses {expected[0][0]:.4f} to {expected[-1][0]:.4f}, norms "
              f"{expected[0][1]:.2f} to {expected[-1][1]:.2f}, {clips(expected)} of {STEPS} steps clipped")
        for ranks, batch, accumulate in RUNS:
            steps = trainer_runs.train(program, folder, *OPTIONS, *setting.options(ranks, batch, accumulate))
            loss, norm = distances(expected, [(step["loss"], step["grad_norm"]) for step in steps])
            name = f"{ranks} ranks x batch {batch} x {accumulate} micro-batches"
            print(f"{name}: losses {loss:.1e}, gradient norms {norm:.1e}")
            if not max(loss, norm) <= TOLERANCE:
                failures.append(name)
    if not STEPS / 4 <= clips(expected) < STEPS:
        failures.append("some steps must be clipped, and some not")
    for name, mistake in MISTAKES.items():
        loss, norm = distances(expected, reference(setting, **mistake))
        print(f"{name} would be: losses {loss:.1e}, gradient norms {norm:.1e}")
        if not max(loss, norm) > 5 * TOLERANCE:
            failures.append(f"{name} would go unseen")
    print("\n".join(f"FAILED: {failure}" for failure in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
