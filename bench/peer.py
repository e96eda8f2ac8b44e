"""The peer: the models of bench/step with PyTorch, on one rank alone, with DDP, or with FSDP2, over gloo; and GPT-2 on one GPU, compiled,
with fused attention and bf16 arithmetic over fp32 weights.

Run by compare.py, one process per rank, with the interpreter that has PyTorch. Prints one JSON object: seconds of each step, and losses.
"""
import argparse
import contextlib
import datetime
import itertools
import json
import os
import struct
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

CLASSES, CHANNELS = 10, 3


class Mlp(nn.Module):
    def __init__(self, options):
        super().__init__()
        width = options.width
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(options.layers))
        self.output = nn.Linear(width, CLASSES)

    def forward(self, x, targets):
        for layer in self.blocks:
            x = functional.gelu(layer(x), approximate="tanh")
        return functional.cross_entropy(self.output(x).float(), targets)

    def place_of(self, name):
        kind, *rest = name.split(".")
        index = {"input": 0, "hidden": 1 + int(rest[0]) if kind == "hidden" else 0}.get(kind)
        return name if kind == "output" else f"blocks.{index}.{rest[-1]}"


class Block(nn.Module):
    def __init__(self, options):
        super().__init__()
        width, self.heads = options.width, options.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attn["c_attn"](self.ln_1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](out.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp["c_proj"](functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.wte = nn.Embedding(options.vocabulary, options.width)
        self.wpe = nn.Embedding(options.seq, options.width)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.final = nn.LayerNorm(options.width)
        for table in (self.wte, self.wpe):  # as GPT-2's; numbers of size 1 would give the tied head logits of size 28
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.final(x), self.wte.weight)
        return functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.reshape(-1))

    @staticmethod
    def place_of(name):
        return name.removeprefix("embedding.")


class Cnn(nn.Module):
    def __init__(self, options):
        super().__init__()
        width, side = options.width, options.side
        self.blocks = nn.ModuleList([nn.Conv2d(CHANNELS, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, padding=1)])
        self.fc = nn.ModuleDict({"hidden": nn.Linear((side // 4) ** 2 * 2 * width, 4 * width),
                                 "output": nn.Linear(4 * width, CLASSES)})

    def forward(self, x, targets):
        for layer in self.blocks:
            x = functional.relu(functional.max_pool2d(layer(x), 2))  # as Tessera's: a quarter of the pixels
        x = functional.relu(self.fc["hidden"](x.permute(0, 2, 3, 1).flatten(1)))
        return functional.cross_entropy(self.fc["output"](x).float(), targets)

    @staticmethod
    def place_of(name):
        return name.replace("conv1.conv", "blocks.0").replace("conv2.conv", "blocks.1")


class Residual(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.downsample = nn.Identity()
        if stride != 1 or before != width:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + self.downsample(x))


class ResNet18(nn.Module):
    def __init__(self, options):
        super().__init__()
        width = options.width
        self.stem = nn.ModuleDict({"conv1": nn.Conv2d(CHANNELS, width, 3, 1, 1, bias=False), "bn1": nn.BatchNorm2d(width)})
        self.blocks = nn.ModuleList(
            Residual(max(width, (width << layer) // (2 - number)), width << layer, 2 if layer and not number else 1)
            for layer in range(4) for number in range(2))
        self.fc = nn.Linear(8 * width, CLASSES)

    def forward(self, x, targets):
        x = functional.relu(self.stem["bn1"](self.stem["conv1"](x)))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.fc(x.mean(dim=(2, 3))).float(), targets)

    @staticmethod
    def place_of(name):
        if not name.startswith("layer"):
            return name
        layer, number, rest = name.removeprefix("layer").split(".", 2)
        return f"blocks.{2 * (int(layer) - 1) + int(number)}.{rest}"


MODELS = {"mlp": Mlp, "gpt": Gpt, "cnn": Cnn, "resnet18": ResNet18}


def load_weights(model, path):
    """The initial weights that bench/step wrote: an 8-byte length, a JSON header, then the tensors in fp32."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    own = dict(itertools.chain(model.named_parameters(), model.named_buffers()))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).view(entry["shape"])
        own.pop(model.place_of(name)).data.copy_(values)
    if missing := [name for name in own if not name.endswith("num_batches_tracked")]:  # which Tessera does not count
        sys.exit(f"the file has no values for {', '.join(missing)}")


def batch_of(options, rank):
    """The formulas of bench/step/mlp.cpp, gpt.cpp and images.hpp."""
    if options.model == "mlp":
        rows = torch.arange(options.batch).view(-1, 1) + rank * options.batch
        x = ((rows * 131 + torch.arange(options.width) * 31) % 257).float() / 128 - 1
        return x, rows.view(-1) % CLASSES
    if options.side:
        images = torch.arange(options.batch).view(-1, 1) + rank * options.batch
        pixels = ((images * 131 + torch.arange(CHANNELS * options.side ** 2) * 31) % 257).float() / 128 - 1
        x = pixels.view(options.batch, options.side, options.side, CHANNELS).permute(0, 3, 1, 2)
        return x if options.channels_last else x.contiguous(), images.view(-1) % CLASSES
    tokens = options.batch * options.seq
    i = torch.arange(tokens + 1) + rank * tokens
    ids = (i * i + 7 * i) // 3 % options.vocabulary
    return ids[:-1].view(options.batch, -1), ids[1:].view(options.batch, -1)


def sharded(model, options):
    if options.parallel == "ddp":
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, find_unused_parameters=False)
    if options.parallel == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        half = torch.bfloat16 if options.precision == "bf16" else None
        for module in model.modules() if half else ():
            if isinstance(module, nn.BatchNorm2d):  # whose moments must be of the parameters' type
                module.running_mean, module.running_var = module.running_mean.to(half), module.running_var.to(half)
        how = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),)),
               "mp_policy": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half)}
        for block in model.blocks:
            fully_shard(block, **how)
        fully_shard(model, **how)
    return model


def optimizer_of(parameters):
    """The fused update where this PyTorch has one for the CPU."""
    settings = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    try:
        return torch.optim.AdamW(parameters, fused=True, **settings)
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(parameters, foreach=True, **settings)


def train(options, rank):
    model = MODELS[options.model](options)
    if options.weights:
        load_weights(model, options.weights)
    if options.channels_last and options.parallel != "fsdp":  # which takes no weights that stand so
        model = model.to(memory_format=torch.channels_last)
    model = sharded(model, options)
    optimizer = optimizer_of(model.parameters())
    batch = batch_of(options, rank)
    casts = options.precision == "bf16" and options.parallel != "fsdp"
    times, losses = [], []
    for _ in range(options.warm_up + options.steps):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16) if casts else contextlib.nullcontext():
            loss = model(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if options.parallel != "single":
            loss = loss.detach().clone()
            dist.all_reduce(loss)
        losses.append(loss.item() / options.ranks)
        times.append(time.perf_counter() - start)
    return times[options.warm_up:], losses


def train_on_a_gpu(options):
    """Batches of a file of 16-bit ids, one after the other."""
    torch.manual_seed(0)
    model = MODELS[options.model](options).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    compiled = torch.compile(model)
    tokens = torch.from_file(options.data, size=os.path.getsize(options.data) // 2, dtype=torch.int16).long() & 0xffff
    size = options.batch * options.seq
    seconds, losses = [], []
    for step in range(options.steps):
        first = step * size % (len(tokens) - size - 1)
        part = tokens[first:first + size + 1].cuda(non_blocking=True)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(part[:-1].view(options.batch, options.seq), part[1:].view(options.batch, options.seq))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    return seconds, losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=list(MODELS), required=True)
    parser.add_argument("--parallel", choices=["single", "ddp", "fsdp"], default="single")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--weights")
    parser.add_argument("--meeting", help="a file that the ranks meet at")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--data", help="a file of tokens, for cuda")
    for name in ["rank", "ranks", "threads", "steps", "warm-up", "batch", "width"]:
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ["layers", "seq", "side"]:
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--channels-last", action="store_true", help="images stand as Tessera's do")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.parallel != "single":
        dist.init_process_group("gloo", init_method=f"file://{options.meeting}", rank=options.rank, world_size=options.ranks,
                                timeout=datetime.timedelta(seconds=120))
    times, losses = train_on_a_gpu(options) if options.device == "cuda" else train(options, options.rank)
    if options.rank == 0:
        print(json.dumps({"seconds": times, "losses": losses, "torch": torch.__version__}), flush=True)
    if options.parallel != "single":
        dist.barrier()
        os._exit(0)  # gloo's threads have been seen to abort a process that ends in order


if __name__ == "__main__":
    main()
