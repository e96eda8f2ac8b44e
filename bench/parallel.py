#!/usr/bin/env python3
"""Tensor and pipeline parallel steps of a GPT on two ranks beside PyTorch's, in turn in one run: the same initial weights and samples.

usage: parallel.py BUILD [--torch PYTHON] [--rounds N] [--steps N] [--tiny]

tensor: train_gpt --mesh tensor=2 beside DTensor's column- and row-wise layers with sequence parallel norms and a loss over the vocabulary;
pipeline: train_gpt --mesh pipeline=2 beside torch.distributed.pipelining, 1F1B on both; zero-bubble: the same with --schedule zb-h1 beside
PyTorch's 1F1B. PyTorch has gloo, the fused AdamW and a heap that is kept. Prints for each how far losses are apart, both times of a step and
their ratio, of which more is better for Tessera.

PYTHON is an interpreter that has PyTorch; default: the environment variable TESSERA_TORCH_PYTHON, else this one.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import turns

RANKS, SAMPLES, MICRO_BATCHES, WARM_UP, RATE = 2, 24, 8, 3, 1e-3
SHAPE, TINY = {"layers": 4, "width": 256, "heads": 4, "seq": 128}, {"layers": 2, "width": 16, "heads": 2, "seq": 8}
STAGES = ["--mesh", "pipeline=2", "--batch", SAMPLES // MICRO_BATCHES, "--accumulate", MICRO_BATCHES]
CASES = {"tensor": ["--mesh", "tensor=2", "--batch", SAMPLES], "pipeline": [*STAGES, "--schedule", "1f1b"],
         "zero-bubble": [*STAGES, "--schedule", "zb-h1"]}
TOLERANCE = 1e-5


def text_of(shape):
    """So long that the samples that train_gpt does not hold out, a twentieth, are those of one step: each step sees the same, in any order."""
    wanted = SAMPLES * shape["seq"] + 1
    length = next(length for length in range(wanted, 2 * wanted) if length - length // 20 == wanted)
    return bytes(random.Random(1).choices(b"abcdefgh ,.\n", weights=range(1, 13), k=length))


class Contest:
    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.shape = TINY if options.tiny else SHAPE
        self.text, self.weights = self.folder / "text.txt", self.folder / "weights.safetensors"
        self.text.write_bytes(text_of(self.shape))
        self.train("tensor", "--dump-weights", self.weights, steps=1, rate=0)  # the initial ones, which are those of a seed
        self.distance = dict.fromkeys(CASES, 0.0)
        self.meetings = 0

    def train(self, case, *more, steps, rate=RATE):
        """(seconds, losses) of train_gpt's steps."""
        shape = [word for key, value in self.shape.items() for word in ("--dim" if key == "width" else f"--{key}", value)]
        _, lines = turns.trained([pathlib.Path(self.options.build) / "trainer/gpt/train_gpt", *shape, *CASES[case], "--data", self.text, "--threads",
                                  1, "--steps", steps, "--lr", rate, "--min-lr", rate, "--warmup", 0, "--weight-decay", 0, "--clip", 0, "--eval-every",
                                  0, "--eval-batches", 1, "--sample", 0, *more])
        return [line["step_seconds"] for line in lines], [line["loss"] for line in lines]

    def peer(self, case, steps):
        """The same of PyTorch: the time of rank 0, and the losses of the rank that has them."""
        self.meetings += 1
        meeting = self.folder / f"meeting-{self.meetings}"
        command = [self.options.torch, "-B", __file__, "--peer", case, "--steps", steps, "--text", self.text, "--weights", self.weights,
                   "--meeting", meeting, *(["--tiny"] if self.options.tiny else [])]
        ranks = [subprocess.Popen([*map(str, command), "--rank", str(rank)], env=turns.environment(turns.HEAP_KEPT), stdout=subprocess.PIPE,
                                  text=True) for rank in range(RANKS)]
        found = [json.loads(rank.communicate()[0].splitlines()[-1]) for rank in ranks]
        return found[0]["seconds"], found[-1]["losses"]

    def measure(self, case):
        steps = WARM_UP + self.options.steps
        ours, peer = self.train(case, steps=steps), self.peer(case, steps)
        apart = max(abs(a - b) / abs(b) for a, b in zip(ours[1], peer[1], strict=True))
        self.distance[case] = max(self.distance[case], apart)
        return tuple(statistics.median(seconds[WARM_UP:]) for seconds, _ in (ours, peer))


def compare(options):
    python = options.torch = options.torch or os.environ.get("TESSERA_TORCH_PYTHON") or sys.executable
    version = turns.torch_version(python)
    if version is None or subprocess.run([python, "-c", "import torch.distributed.pipelining"], capture_output=True).returncode != 0:
        print(f"skipped: {python} has no PyTorch with pipelines")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        contest = Contest(options, folder)
        results = turns.in_turns(options.rounds, CASES, contest.measure)
    print(f"PyTorch {version}, {RANKS} ranks of one thread, {SAMPLES} samples of {contest.shape}")
    for case, rounds in results.items():
        ours, peer, ratio = turns.against_peer(rounds)
        print(f"{case}: losses {contest.distance[case]:.1e} apart, {1e3 * ours:.1f} ms a step, PyTorch {1e3 * peer:.1f} ms, ratio {ratio:.2f}")
    return 1 if max(contest.distance.values()) > TOLERANCE else 0


# ---- the peer: one process for each rank ----

def samples(options, shape):
    import torch
    text, seq = pathlib.Path(options.text).read_bytes(), shape["seq"]
    rows = torch.tensor([list(text[i * seq:i * seq + seq + 1]) for i in range(SAMPLES)])
    return rows[:, :-1], rows[:, 1:]


def tensor_steps(model, shape, batch):
    """Yields a function that makes a step, and the parameters. Rows of q, k and v are dealt to ranks by heads; residual paths and norms have
    this rank's tokens of each sequence."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module)
    from torch.nn import functional
    width, heads = shape["width"], shape["heads"] // RANKS
    for block in model.blocks:
        for values in block.attn["c_attn"].parameters():
            values.data = values.data.view(3, RANKS, width // RANKS, -1).transpose(0, 1).reshape(values.shape)
    model.head = nn.Linear(width, model.wte.num_embeddings, bias=False)
    table = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    first = ColwiseParallel(input_layouts=Shard(1))
    second = RowwiseParallel(output_layouts=Shard(1))
    plan = {"wte": table, "wpe": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)), "final": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)}
    for index in range(len(model.blocks)):
        plan |= {f"blocks.{index}.{name}": how for name, how in
                 {"ln_1": SequenceParallel(), "attn.c_attn": first, "attn.c_proj": second, "ln_2": SequenceParallel(), "mlp.c_fc": first,
                  "mlp.c_proj": second}.items()}
    parallelize_module(model, init_device_mesh("cpu", (RANKS,)), plan)
    model.head.weight = model.wte.weight
    ids, targets = batch

    def block_of(block, x):
        parts = block.attn["c_attn"](block.ln_1(x)).chunk(3, dim=2)
        q, k, v = (part.view(SAMPLES, shape["seq"], heads, -1).transpose(1, 2) for part in parts)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(SAMPLES, shape["seq"], -1)
        x = x + block.attn["c_proj"](out)
        return x + block.mlp["c_proj"](functional.gelu(block.mlp["c_fc"](block.ln_2(x)), approximate="tanh"))

    def step():
        with loss_parallel():
            x = model.wte(ids) + model.wpe(torch.arange(shape["seq"]))
            for block in model.blocks:
                x = block_of(block, x)
            loss = functional.cross_entropy(model.head(model.final(x)).flatten(0, 1), targets.flatten())
            loss.backward()
        return loss.full_tensor().item()

    return step, model.parameters()


def pipeline_steps(model, rank, batch):
    """The first stage has the tables, the last one the norm and, tied to it, the head: they add up that table's gradients."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.nn import functional
    half = len(model.blocks) // 2

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe, self.blocks = model.wte, model.wpe, model.blocks[:half]

        def forward(self, ids):
            x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return x

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.final, self.wte = model.blocks[half:], model.final, model.wte

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return functional.linear(self.final(x), self.wte.weight)

    part = (First if rank == 0 else Last)()
    schedule = Schedule1F1B(PipelineStage(part, rank, RANKS, torch.device("cpu")), MICRO_BATCHES,
                            loss_fn=lambda logits, targets: functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))

    def step():
        losses = []
        schedule.step(batch[0]) if rank == 0 else schedule.step(target=batch[1], losses=losses)
        dist.all_reduce(part.wte.weight.grad)
        return torch.stack(losses).mean().item() if losses else 0.0

    return step, part.parameters()


def run_peer(options):
    import torch
    import torch.distributed as dist

    import peer
    torch.set_num_threads(1)
    shape = TINY if options.tiny else SHAPE
    dist.init_process_group("gloo", init_method=f"file://{options.meeting}", rank=options.rank, world_size=RANKS)
    model = peer.Gpt(argparse.Namespace(vocabulary=256, **shape))
    peer.load_weights(model, options.weights)
    batch = samples(options, shape)
    steps = tensor_steps(model, shape, batch) if options.peer == "tensor" else pipeline_steps(model, options.rank, batch)
    step, parameters = steps
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0, fused=True)
    seconds, losses = [], []
    for _ in range(options.steps):
        begin = time.perf_counter()
        losses.append(step())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": seconds, "losses": losses}), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads have been seen to abort a process that ends in order


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?")
    for name in ["torch", "peer", "text", "weights", "meeting"]:
        parser.add_argument(f"--{name}")
    for name, value in {"rounds": 5, "steps": 20, "rank": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    return run_peer(options) if options.peer else compare(options)


if __name__ == "__main__":
    sys.exit(main())
