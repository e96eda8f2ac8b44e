"""PyTorch's figures for the layers of cuda_layers, on the same shapes, in bf16, by CUDA events around trains of launches.

usage: peer.py [--batch N] [--seq N] [--rounds N] [--launches N]    prints "NAME VALUE UNIT" lines
"""
import argparse
import importlib.util
import statistics
import sys

SKIPPED = 77  # the exit code of what cannot run
DIM, HEADS, VOCABULARY = 768, 12, 50304


def layers(options):
    """Name, work in TFLOP or GB, unit, function."""
    import torch
    from torch.nn import functional
    rows, seq, batch = options.batch * options.seq, options.seq, options.batch

    def made(*shape, gradient=False):
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_(gradient)

    parts = [made(batch, HEADS, seq, DIM // HEADS, gradient=True) for _ in range(3)]
    attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
    dout = torch.randn_like(attended)
    product = rows * seq * DIM / 1e12
    yield "attention/forward", 2 * product, "TFLOP/s", \
        lambda: functional.scaled_dot_product_attention(*parts, is_causal=True)
    yield "attention/backward", 5 * product, "TFLOP/s", \
        lambda: torch.autograd.grad(attended, parts, dout, retain_graph=True)
    for name, inside, outside in [("c_attn", DIM, 3 * DIM), ("c_proj", DIM, DIM), ("c_fc", DIM, 4 * DIM),
                                  ("mlp_proj", 4 * DIM, DIM), ("head", DIM, VOCABULARY)]:
        x, weight, dy = made(rows, inside), made(outside, inside), made(rows, outside)
        flops = 2 * rows * inside * outside / 1e12
        yield f"products/{name}/forward", flops, "TFLOP/s", lambda x=x, weight=weight: x @ weight.T
        yield f"products/{name}/backward", 2 * flops, "TFLOP/s", \
            lambda x=x, weight=weight, dy=dy: (dy @ weight, dy.T @ x)
    x, weight, bias = made(rows, DIM, gradient=True), made(DIM, gradient=True), made(DIM, gradient=True)
    normed, dy = functional.layer_norm(x, (DIM,), weight, bias), made(rows, DIM)
    bytes_of_rows = rows * DIM * 2 / 1e9
    yield "layer_norm/forward", 2 * bytes_of_rows, "GB/s", lambda: functional.layer_norm(x, (DIM,), weight, bias)
    yield "layer_norm/backward", 3 * bytes_of_rows, "GB/s", \
        lambda: torch.autograd.grad(normed, (x, weight, bias), dy, retain_graph=True)


def seconds_of(function, options):
    import torch
    times = []
    for _ in range(options.rounds + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(options.launches):
            function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / options.launches)
    return statistics.median(times[1:])  # the first one does not count


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    for name, value in [("batch", 32), ("seq", 1024), ("rounds", 5), ("launches", 10)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("skipped: this Python lacks torch (pip install torch)")
        sys.exit(SKIPPED)
    import torch
    if not torch.cuda.is_available():
        print("skipped: this PyTorch finds no CUDA device")
        sys.exit(SKIPPED)
    print(f"torch {torch.__version__}")
    for name, work, unit, function in layers(options):
        print(f"torch/{name} {work / seconds_of(function, options):.6g} {unit}", flush=True)


if __name__ == "__main__":
    main()
