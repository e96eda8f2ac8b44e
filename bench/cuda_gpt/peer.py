"""The peer: GPT-2 in PyTorch, compiled, with fused attention and bf16 arithmetic over fp32 weights, on one GPU.

usage: peer.py --data FILE --layers N --dim N --heads N --seq N --vocabulary N --batch N --steps N    prints one JSON line
"""
import argparse
import json
import time

import numpy
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.c_fc, self.out = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        batch, seq, dim = x.shape
        parts = self.c_attn(self.ln_1(x)).view(batch, seq, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, seq, dim))
        return x + self.out(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.wte = nn.Embedding(shape.vocabulary, shape.dim)
        self.wpe = nn.Embedding(shape.seq, shape.dim)
        self.blocks = nn.ModuleList(Block(shape.dim, shape.heads) for _ in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.dim)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def batches(options):
    """Batches of the file, one after the other, on the device."""
    tokens = numpy.fromfile(options.data, dtype="<u2").astype("int64")
    size = options.batch * options.seq
    for step in range(options.steps):
        first = step * size % (len(tokens) - size - 1)
        part = torch.from_numpy(tokens[first:first + size + 1]).cuda(non_blocking=True)
        yield part[:-1].view(options.batch, options.seq), part[1:].view(options.batch, options.seq)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--data", required=True)
    for name in ["layers", "dim", "heads", "seq", "vocabulary", "batch", "steps"]:
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = Gpt(options).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    compiled = torch.compile(model)
    seconds, losses = [], []
    for ids, targets in batches(options):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": seconds, "losses": losses, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
