"""PyTorch's figures for the layers of cuda_layers, on the same shapes, in bf16, by CUDA events around trains of launches.

usage: peer.py [--only NAME] [--batch N] [--seq N] [--rounds N] [--launches N]    prints "NAME VALUE UNIT" lines
With --device cpu, where there is no GPU, it shows that the script works, and nothing about speed.
"""
import argparse
import importlib.util
import statistics
import sys
import time

SKIPPED = 77  # the exit code of what cannot run
VOCABULARY = 50304


def attention(torch, functional, options, made):
    """Name, work in TFLOP or GB, unit, function; so do the others."""
    heads, width = options.heads, options.dim // options.heads
    parts = [made(options.batch, heads, options.seq, width, gradient=True) for _ in range(3)]
    attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
    dout = torch.randn_like(attended)
    product = options.batch * options.seq * options.seq * options.dim / 1e12
    yield "attention/forward", 2 * product, "TFLOP/s", \
        lambda: functional.scaled_dot_product_attention(*parts, is_causal=True)
    yield "attention/backward", 5 * product, "TFLOP/s", \
        lambda: torch.autograd.grad(attended, parts, dout, retain_graph=True)


def products(_, __, options, made):
    rows, dim = options.batch * options.seq, options.dim
    for name, inside, outside in [("c_attn", dim, 3 * dim), ("c_proj", dim, dim), ("c_fc", dim, 4 * dim),
                                  ("mlp_proj", 4 * dim, dim), ("head", dim, options.vocabulary)]:
        x, weight, dy = made(rows, inside), made(outside, inside), made(rows, outside)
        flops = 2 * rows * inside * outside / 1e12
        yield f"products/{name}/forward", flops, "TFLOP/s", lambda x=x, weight=weight: x @ weight.T
        yield f"products/{name}/backward", 2 * flops, "TFLOP/s", \
            lambda x=x, weight=weight, dy=dy: (dy @ weight, dy.T @ x)


def layer_norm(torch, functional, options, made):
    rows, dim = options.batch * options.seq, options.dim
    x, weight, bias = made(rows, dim, gradient=True), made(dim, gradient=True), made(dim, gradient=True)
    normed, dy = functional.layer_norm(x, (dim,), weight, bias), made(rows, dim)
    gigabytes = rows * dim * 2 / 1e9
    yield "layer_norm/forward", 2 * gigabytes, "GB/s", lambda: functional.layer_norm(x, (dim,), weight, bias)
    yield "layer_norm/backward", 3 * gigabytes, "GB/s", \
        lambda: torch.autograd.grad(normed, (x, weight, bias), dy, retain_graph=True)


def loss(torch, functional, options, made):
    rows, classes = options.batch * options.seq, options.vocabulary
    logits = made(rows, classes, gradient=True)
    labels = torch.randint(classes, (rows,), device=options.device)
    formed = functional.cross_entropy(logits, labels)
    gigabytes = rows * classes * 2 / 1e9
    yield "loss/forward", gigabytes, "GB/s", lambda: functional.cross_entropy(logits, labels)
    yield "loss/backward", 2 * gigabytes, "GB/s", lambda: torch.autograd.grad(formed, logits, retain_graph=True)
    yield "loss/at_once", 2 * gigabytes, "GB/s", \
        lambda: torch.autograd.grad(functional.cross_entropy(logits, labels), logits)


def embedding(torch, functional, options, made):
    rows, dim = options.batch * options.seq, options.dim
    table, positions = made(options.vocabulary, dim, gradient=True), made(options.seq, dim, gradient=True)
    ids = torch.randint(options.vocabulary, (options.batch, options.seq), device=options.device)
    found = functional.embedding(ids, table) + positions
    dy = torch.randn_like(found)
    gigabytes = dim * 2 / 1e9
    yield "embedding/forward", 2 * rows * gigabytes, "GB/s", lambda: functional.embedding(ids, table) + positions
    yield "embedding/backward", (rows + options.vocabulary) * gigabytes, "GB/s", \
        lambda: torch.autograd.grad(found, (table, positions), dy, retain_graph=True)


LAYERS = [attention, products, layer_norm, loss, embedding]


def seconds_on_gpu(torch, function, options):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(options.launches):
        function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def seconds_on_cpu(_, function, options):
    begin = time.perf_counter()
    for _ in range(options.launches):
        function()
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--only", choices=[layer.__name__ for layer in LAYERS])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    for name, value in [("batch", 32), ("seq", 1024), ("dim", 768), ("heads", 12), ("vocabulary", VOCABULARY), ("rounds", 5),
                        ("launches", 10)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("skipped: this Python lacks torch (pip install torch)")
        sys.exit(SKIPPED)
    import torch
    from torch.nn import functional
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: this PyTorch finds no CUDA device")
        sys.exit(SKIPPED)

    def made(*shape, gradient=False):
        return torch.randn(shape, device=options.device, dtype=torch.bfloat16).requires_grad_(gradient)

    print(f"torch {torch.__version__}")
    seconds_of = seconds_on_gpu if options.device == "cuda" else seconds_on_cpu
    for layer in LAYERS:
        if options.only not in (None, layer.__name__):
            continue
        for name, work, unit, function in layer(torch, functional, options, made):
            times = [seconds_of(torch, function, options) for _ in range(options.rounds + 1)]
            median = statistics.median(times[1:]) / options.launches  # the first one does not count
            print(f"torch/{name} {work / median:.6g} {unit}", flush=True)


if __name__ == "__main__":
    main()
