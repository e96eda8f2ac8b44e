#!/usr/bin/env python3
"""Holds predictions of `tessera plan --time` against published results of real clusters.

Of each family of results the rate of computation is fitted to the smallest row, and nothing else; the other rows are then
predicted. Networks are at their own rate times the share that the machine files of tools/machines say. Where replicas are
summed, Tessera's masters and sums travel in fp32, and those programs' gradients in bf16: half of the bytes, which a network
of twice the rate stands for. Prints the tables of errors.

usage: published.py TESSERA MACHINES    TESSERA: build/tools/tessera, MACHINES: tools/machines
"""
import argparse
import json
import pathlib
import statistics
import tempfile

import turns


def gated(name, layers, dim, key_values, hidden, vocabulary):
    """Llama's layers, which InternLM's and Qwen's are, too."""
    def layer(index):
        return {"name": f"layers.{index}", "parameters": [
            {"name": "attention_norm.weight", "shape": [dim]},
            {"name": "attention.wq.weight", "shape": [dim, dim]},
            {"name": "attention.wk.weight", "shape": [key_values, dim]},
            {"name": "attention.wv.weight", "shape": [key_values, dim]},
            {"name": "attention.wo.weight", "shape": [dim, dim]},
            {"name": "ffn_norm.weight", "shape": [dim]},
            {"name": "feed_forward.w1.weight", "shape": [hidden, dim]},
            {"name": "feed_forward.w3.weight", "shape": [hidden, dim]},
            {"name": "feed_forward.w2.weight", "shape": [dim, hidden]}]}
    return {"name": name, "layers": layers, "units": around([layer(i) for i in range(layers)], dim, vocabulary)}


def plain(name, layers, dim, vocabulary, inner=None, hidden=None):
    """GPT's layers; `inner` where heads together are wider than the model, as T5-11B's are."""
    inner, hidden = inner or dim, hidden or 4 * dim

    def layer(index):
        return {"name": f"layers.{index}", "parameters": [
            {"name": "ln_1.weight", "shape": [dim]},
            {"name": "attn.c_attn.weight", "shape": [3 * inner, dim]},
            {"name": "attn.c_proj.weight", "shape": [dim, inner]},
            {"name": "ln_2.weight", "shape": [dim]},
            {"name": "mlp.c_fc.weight", "shape": [hidden, dim]},
            {"name": "mlp.c_proj.weight", "shape": [dim, hidden]}]}
    return {"name": name, "layers": layers, "units": around([layer(i) for i in range(layers)], dim, vocabulary)}


def around(layers, dim, vocabulary):
    return ([{"name": "embedding", "parameters": [{"name": "weight", "shape": [vocabulary, dim]}]}] + layers +
            [{"name": "head", "parameters": [{"name": "norm.weight", "shape": [dim]},
                                             {"name": "output.weight", "shape": [vocabulary, dim]}]}])


def by_parameter(model):
    """A rank owns whole parameters and sends each to all others, so that each is a collective, as a unit of its own would be."""
    units = []
    for unit in model["units"]:
        for parameter in unit["parameters"]:
            path = parameter["name"].removesuffix("weight").rstrip(".")
            name = f"{unit['name']}.{path}" if path else unit["name"]
            units.append({"name": name, "parameters": [{"name": "weight", "shape": parameter["shape"]}]})
    return {**model, "units": units}


def program(units, recompute):
    """A chain; every recompute-th layer computes its forward pass again (0: none)."""
    names = [unit["name"] for unit in units]
    windows = [f"forward {name}" for name in names]
    for index in reversed(range(len(names))):
        inside = 0 < index < len(names) - 1
        if recompute and inside and (index - 1) % recompute == 0:
            windows.append(f"recompute {names[index]}")
        windows.append(f"backward {names[index]}")
    return {"micro_batch": windows, "evaluation": []}


LLAMA_7B = gated("Llama 2 7B", 32, 4096, 4096, 11008, 32000)
LLAMA_13B = gated("Llama 2 13B", 40, 5120, 5120, 13824, 32000)
LLAMA_34B = gated("Llama 34B", 48, 8192, 1024, 22016, 32000)
LLAMA_70B = gated("Llama 2 70B", 80, 8192, 1024, 28672, 32000)
LLAMA_31_8B = gated("Llama 3.1 8B", 32, 4096, 1024, 14336, 128256)
INTERNLM_7B = gated("InternLM 7B", 32, 4096, 4096, 11008, 103168)
QWEN_15B = gated("Qwen2.5 1.5B", 28, 1536, 256, 8960, 151936)
QWEN_7B = gated("Qwen2.5 7B", 28, 3584, 512, 18944, 152064)
MPT_7B = plain("MPT-7B", 32, 4096, 50432)
GPT_36B = plain("GPT 3.6B", 30, 3072, 51200)
GPT_27B = plain("GPT 2.7B", 32, 2560, 50304)
GPT_175B = plain("GPT 175B", 96, 12288, 51200)
T5_11B = plain("T5-11B", 48, 1024, 32128, inner=16384, hidden=65536)


def machine(base, bandwidth=None, per_host=8):
    """bandwidth: of a host's network in Gbit/s, all cards together; else as in the file."""
    return {"base": base, "bandwidth": bandwidth, "per_host": per_host}


def row(label, published, half=False, **options):
    """published: tokens per second and GPU, or what is in proportion to it. half: what crosses hosts is in bf16 there."""
    return {"label": label, "published": published, "half": half, **options}


def internlm(ranks, published, inside_host, batch=2, micro=4, recompute=0):
    """zero1=8 keeps optimizer states inside a host: what hsdp does that keeps parameters from forward to backward. Over all
    ranks that program sends updated parameters one by one, and sums gradients in buckets of 2^29 elements."""
    hosts = ranks // 8
    strategy = ["--strategy", "hsdp", "--replicas", hosts, "--reshard-after-forward", "no"]
    if not inside_host:
        strategy = ["--strategy", "zero1", "--bucket-cap", 1 << 30]
    elif hosts == 1:
        strategy = ["--strategy", "zero1"]
    label = f"{ranks} GPUs, batch {batch}, {micro} micro-batches{', recomputed' if recompute else ''}"
    return row(label, published, half=inside_host, model=INTERNLM_7B if inside_host else by_parameter(INTERNLM_7B),
               ranks=ranks, batch=batch, seq=2048, recompute=recompute,
               options=strategy + ["--micro-batches", micro, "--accumulate-mode", "local"])


def fsdp(label, published, model, ranks, batch, seq, recompute=0, options=()):
    return row(label, published, model=model, ranks=ranks, batch=batch, seq=seq, recompute=recompute,
               options=["--strategy", "fsdp", *options])


def hsdp(label, published, model, ranks, batch, seq, per_host=8, recompute=0):
    return row(label, published, half=True, model=model, ranks=ranks, batch=batch, seq=seq, recompute=recompute,
               options=["--strategy", "hsdp", "--replicas", ranks // per_host])


def megatron(size, published, shape, mesh, batch, samples, chunks=1):
    """A row of table 1 of Narayanan et al. 2021, in TFLOP/s, by whose formula each token costs as much; micro-batches and chunks are those
    of examples/sc21/run_table_1.sh there. Layers are computed again, and gradients stay whole on each replica. That program's attention had
    its scores in memory: a product writes them, softmax and dropout read and write them, the next product reads them, 13 bytes of each in
    a pass, as many when it is computed again, and twice as many backward. Ours has none, so their time is added: of each micro-batch in
    turn, and of those by which a stage waits for the first and the last one."""
    layers, dim, heads = shape
    tensor, stages, ranks = mesh
    replicas = ranks // (tensor * stages)
    schedule = ["--schedule", "interleaved", "--chunks", chunks] if chunks > 1 else []
    passes = samples / (replicas * batch) + (stages - 1) / chunks
    scores = 4 * 13 * batch * heads / tensor * 2048 ** 2 * layers / stages * passes
    return row(f"{size}, {ranks} GPUs: {stages} x {replicas} x {tensor}", published, ranks=ranks, batch=batch, seq=2048, more_bytes=scores,
               flops=96 * layers * dim * dim * (1 + 2048 / (6 * dim) + 51200 / (16 * layers * dim)) / 1e12,
               options=["--layers", layers, "--dim", dim, "--heads", heads, "--vocabulary", 51200, "--strategy", "ddp",
                        "--mesh", f"pipeline={stages},shard={replicas},tensor={tensor}", "--micro-batches", samples // (replicas * batch),
                        "--activation-checkpointing", "yes", *schedule])


ROCE_400 = machine("a100x8-roce2000", 400)
H100_3200 = machine("h100x8")
FAMILIES = [
    ("4a: 7B, ZeRO-1 inside a host, A100-80, 4 x 100 Gb/s RoCE (InternLM)", ROCE_400,
     [internlm(n, tokens, True) for n, tokens in
      ((8, 4078), (16, 3939), (32, 3919), (64, 3944), (128, 3928), (256, 3920), (512, 3835), (1024, 3625))]),
    ("4b: the same, fewer micro-batches (InternLM)", ROCE_400,
     [internlm(8, 4103, True), internlm(512, 3084, True, micro=2), internlm(1024, 2817, True, micro=2),
      internlm(1024, 2346, True, micro=1)]),
    ("4c: the same, recomputed, one micro-batch (InternLM)", ROCE_400,
     [internlm(8, 3314, True, 8, 1, 1), internlm(128, 3260, True, 8, 1, 1), internlm(1024, 3163, True, 8, 1, 1),
      internlm(1024, 2796, True, 4, 1, 1), internlm(1024, 2341, True, 2, 1, 1)]),
    ("4d: 7B, ZeRO-1 over all (InternLM)", ROCE_400,
     [internlm(n, tokens, False) for n, tokens in
      ((8, 4062), (16, 3842), (32, 3752), (64, 3690), (128, 3571), (256, 3209), (512, 2861), (1024, 2271))]),
    ("5: MPT-7B, full sharding, H100, network not given: 8 x 400 Gb/s assumed (llm-foundry)", H100_3200,
     [fsdp(f"{n} GPUs", tokens, MPT_7B, n, 6, 2048) for n, tokens in
      ((8, 10643), (128, 10475), (256, 10119), (512, 9670))]),
    ("6a: Llama 3.1 8B, FSDP2, H100-96 (torchtitan)", H100_3200,
     [fsdp(f"{n} GPUs", tokens, LLAMA_31_8B, n, 2, 8192, 2) for n, tokens in ((8, 5762), (128, 5605))]),
    ("6b: the same, compiled (torchtitan)", H100_3200,
     [fsdp(f"{n} GPUs", tokens, LLAMA_31_8B, n, 2, 8192, 2) for n, tokens in ((8, 6667), (128, 6514))]),
    ("6c: the same, fp8: gathers taken as bf16 (torchtitan)", H100_3200,
     [fsdp(f"{n} GPUs", tokens, LLAMA_31_8B, n, 2, 8192, 2) for n, tokens in ((8, 8532), (128, 8380))]),
    ("7a: Llama 2, 128 A100, 400 Gb/s a host (fms-fsdp)", machine("a100x8-ib1600", 400),
     [hsdp("7B, HSDP", 4550, LLAMA_7B, 128, 2, 4096),
      fsdp("13B, every other layer recomputed", 2150, LLAMA_13B, 128, 2, 4096, 2),
      fsdp("34B, recomputed", 820, LLAMA_34B, 128, 2, 4096, 1),
      fsdp("70B, recomputed", 410, LLAMA_70B, 128, 2, 4096, 1)]),
    ("7b: Llama 2, 96 H100, 800 Gb/s a host (fms-fsdp)", machine("h100x8-ib800"),
     [hsdp("7B, HSDP", 9600, LLAMA_7B, 96, 2, 4096),
      fsdp("13B, every other layer recomputed", 4850, LLAMA_13B, 96, 2, 4096, 2),
      fsdp("34B, recomputed", 1830, LLAMA_34B, 96, 2, 4096, 1),
      fsdp("70B, recomputed", 890, LLAMA_70B, 96, 2, 4096, 1)]),
    ("9: Qwen2.5, 8 H100, 524,288 tokens a step; batch 8 of 2,048 and ZeRO-1 assumed (LLMQ)", H100_3200,
     [row("1.5B", 524288 / 8 / 1.146, model=QWEN_15B, ranks=8, batch=8, seq=2048, recompute=0,
          options=["--strategy", "zero1", "--micro-batches", 4]),
      row("7B", 524288 / 8 / 4.679, model=QWEN_7B, ranks=8, batch=8, seq=2048, recompute=0,
          options=["--strategy", "zero1", "--micro-batches", 4])]),
    ("10: GPT 3.6B, 64 A100 data-parallel, global batch 512, nothing overlaps (vTrain)", machine("a100x8-ib1600"),
     [row(f"micro-batch {batch}", 512 * 2048 / 64 / seconds, model=GPT_36B, ranks=64, batch=batch, seq=2048, recompute=1,
          options=["--strategy", "ddp", "--micro-batches", 8 // batch, "--bucket-cap", 1 << 40])
      for batch, seconds in ((8, 3.5665), (4, 3.6383), (2, 3.7005))]),
    ("1: T5-11B, FSDP, A100-80, 2 Tb/s RoCE a host; batch 8 of 512 tokens assumed (FSDP paper)",
     machine("a100x8-roce2000"),
     [fsdp("8 GPUs", 1.00, T5_11B, 8, 8, 512, 1), fsdp("512 GPUs", 0.93, T5_11B, 512, 8, 512, 1)]),
    ("1b: GPT-175B, FSDP, recomputed, A100-80, 2 Tb/s RoCE a host; TFLOPS per GPU (FSDP paper)",
     machine("a100x8-roce2000"),
     [fsdp("128 GPUs, batch 1", 173, GPT_175B, 128, 1, 2048, 1), fsdp("512 GPUs, batch 1", 173, GPT_175B, 512, 1, 2048, 1),
      fsdp("512 GPUs, batch 2", 186, GPT_175B, 512, 2, 2048, 1),
      fsdp("128 GPUs, batch 1, no prefetch", 173 / 1.18, GPT_175B, 128, 1, 2048, 1, ["--prefetch", 0])]),
    ("2: 174.6B, ZeRO-3, global batch 1,536, A100 (Narayanan et al.)", machine("a100x8-ib1600"),
     [fsdp(f"{n} GPUs, batch {b}", tflops, GPT_175B, n, b, 2048, 1) for n, b, tflops in
      ((384, 4, 144), (768, 2, 88), (1536, 1, 44))]),
    ("3a: 2.7B, 128 A100-64, 4 a host, 400 Gb/s assumed (Modalities)", machine("a100x8-ib1600", 400, 4),
     [hsdp("HSDP", 218.7, GPT_27B, 128, 1, 4096, 4), fsdp("FSDP", 100.4, GPT_27B, 128, 1, 4096)]),
    ("3b: 2.7B, 512 H100-64, 4 a host, 800 Gb/s assumed (Modalities)", machine("h100x8", 800, 4),
     [hsdp("HSDP", 1272.8, GPT_27B, 512, 1, 4096, 4), fsdp("FSDP", 822.8, GPT_27B, 512, 1, 4096)]),
    ("12: GPT by stages x replicas x slices, A100-80, 8 x 200 Gb/s, TFLOPS per GPU (Megatron-LM)", machine("a100x8-ib1600"),
     [megatron("1.7B", 137, (24, 2304, 24), (1, 1, 32), 16, 512),
      megatron("3.6B", 138, (30, 3072, 32), (2, 1, 64), 16, 512),
      megatron("7.5B", 142, (36, 4096, 32), (4, 1, 128), 16, 512),
      megatron("18.4B", 135, (40, 6144, 48), (8, 1, 256), 8, 1024),
      megatron("39.1B", 138, (48, 8192, 64), (8, 2, 512), 4, 1536),
      megatron("76.1B", 140, (60, 10240, 80), (8, 4, 1024), 2, 1792, 3),
      megatron("145.6B", 148, (80, 12288, 96), (8, 8, 1536), 2, 2304, 2),
      megatron("310.1B", 155, (96, 16384, 128), (8, 16, 1920), 1, 2160, 2),
      megatron("529.6B", 163, (105, 20480, 128), (8, 35, 2520), 1, 2520, 3),
      megatron("1008B", 163, (128, 25600, 160), (8, 64, 3072), 1, 3072)]),
]


class Predictor:
    def __init__(self, tessera, machines, folder):
        self.tessera, self.machines, self.folder = tessera, machines, pathlib.Path(folder)

    def machine_of(self, wanted, one):
        content = json.loads((self.machines / f"{wanted['base']}.json").read_text())
        if wanted["bandwidth"]:
            share = 0.8 if "roce" in wanted["base"] else 0.9
            content["network"]["bandwidth"] = wanted["bandwidth"] * 1e9 / 8 * share
        if one["half"]:
            content["network"]["bandwidth"] *= 2
        content["ranks_per_host"] = wanted["per_host"]
        return content

    def rate(self, wanted, one, factor):
        """Tokens per second and rank, or TFLOP/s where a token's FLOPs are given, with computation `factor` times as fast as the
        machine's file says."""
        shape, machine_file, machine_now = [], self.folder / "machine.json", self.machine_of(wanted, one)
        machine_file.write_text(json.dumps(machine_now))
        if model := one.get("model"):
            units = self.folder / "units.json"
            units.write_text(json.dumps({"units": model["units"], "program": program(model["units"], one["recompute"])}))
            shape = ["--units", units, "--world", one["ranks"]]
        command = [self.tessera, "plan", "--time", "--json", "--machine", machine_file, *shape,
                   "--batch", one["batch"], "--seq", one["seq"], "--precision", "bf16",
                   "--whatif", f"compute={factor:.6f}x", *one["options"]]
        found = json.loads(turns.run(command))
        longer = 1 + one.get("more_bytes", 0) / (factor * machine_now["memory"]) / found["step_seconds"]
        return found["time"]["tokens_per_second_and_rank"] * one.get("flops", 1) / longer

    def fitted_factor(self, wanted, one, published):
        """By bisection: a faster machine is never slower."""
        low, high = 0.02, 20.0
        for _ in range(24):
            middle = (low * high) ** 0.5
            if self.rate(wanted, one, middle) < published:
                low = middle
            else:
                high = middle
        return high


def measure(predictor):
    results = []
    for title, wanted, rows in FAMILIES:
        first = rows[0]
        factor = predictor.fitted_factor(wanted, first, known_rate(title, first))
        base = predictor.rate(wanted, first, factor)
        lines = []
        for one in rows[1:]:
            expected = one["published"] / first["published"]
            found = predictor.rate(wanted, one, factor) / base
            lines.append((one["label"], expected, found))
        results.append((title, first["label"], factor, lines))
    return results


def known_rate(title, first):
    """Tokens per second and GPU of a first row, which may be published in another unit."""
    if "Modalities" in title:  # samples per second of all GPUs
        return first["published"] * first["seq"] / first["ranks"]
    if "GPT-175B" in title or "ZeRO-3" in title:  # TFLOPS by the paper's formula, which counts recomputation
        parameters, layers, dim, seq = 174.6e9, 96, 12288, first["seq"]
        return first["published"] * 1e12 / (8 * parameters * (1 + seq / (6 * dim) + 51200 / (16 * layers * dim)))
    if "T5-11B" in title:  # a share of itself: 155 TFLOP/s at 6 FLOPs per parameter and token, the order of the paper's figure
        return 2350.0
    return first["published"]


def page(results, command):
    errors, ratios, text = [], [], ""
    for title, first, factor, lines in results:
        text += f"\n**{title}**; fitted to {first}: computation {factor:.2f} times the file's\n\n"
        text += "| row | published, over the first | predicted | error | points |\n|---|--:|--:|--:|--:|\n"
        for label, expected, found in lines:
            error = found / expected - 1
            errors.append(abs(error))
            ratios.append(abs(found - expected))
            text += f"| {label} | {expected:.3f} | {found:.3f} | {100 * error:+.1f} % | {100 * (found - expected):+.1f} |\n"
    head = (f"`{command}`\n\n{len(errors)} predicted rows: mean error {100 * statistics.mean(errors):.1f} %, median "
            f"{100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %; "
            f"{sum(r <= 0.05 for r in ratios)} of the ratios are within 5 points.\n")
    return head + text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera", type=pathlib.Path)
    parser.add_argument("machines", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Predictor(arguments.tessera, arguments.machines, folder))
    text = page(results, "python3 bench/published.py build/tools/tessera tools/machines")
    print(text, end="")


if __name__ == "__main__":
    main()
