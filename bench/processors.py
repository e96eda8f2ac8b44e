#!/usr/bin/env python3
"""Training steps as other processors would do them: this one with its instruction sets capped, one after the other.

usage: processors.py BUILD [--tiny]     prints a table

A cap is what the project's variables choose (TESSERA_INSTRUCTION_SET for the rows, TESSERA_PRODUCTS for the products), and
those of the libraries. Speeds are of this machine's clocks and caches: they rank the code, not the processors. Losses must
agree within what the precision allows.
"""
import argparse
import os
import pathlib
import subprocess
import sys

import turns

CAPS = {
    "AVX2": {"TESSERA_INSTRUCTION_SET": "avx2", "TESSERA_PRODUCTS": "avx2", "OPENBLAS_CORETYPE": "Haswell"},
    "AVX2, by OpenBLAS": {"TESSERA_INSTRUCTION_SET": "avx2", "TESSERA_PRODUCTS": "openblas", "OPENBLAS_CORETYPE": "Haswell"},
    "AVX-512": {"TESSERA_INSTRUCTION_SET": "avx512", "TESSERA_PRODUCTS": "avx512", "OPENBLAS_CORETYPE": "SkylakeX"},
    "AVX512_BF16": {"TESSERA_INSTRUCTION_SET": "avx512", "TESSERA_PRODUCTS": "avx512_bf16", "OPENBLAS_CORETYPE": "SkylakeX"},
    "AVX512_BF16, by oneDNN": {"TESSERA_INSTRUCTION_SET": "avx512", "TESSERA_PRODUCTS": "onednn", "OPENBLAS_CORETYPE": "SkylakeX",
                               "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    "AMX, by oneDNN": {"TESSERA_INSTRUCTION_SET": "avx512", "TESSERA_PRODUCTS": "onednn", "OPENBLAS_CORETYPE": "SkylakeX"},
}
CASES = [("mlp", "fp32"), ("mlp", "bf16"), ("gpt", "fp32"), ("gpt", "bf16")]
ALLOWED = {"fp32": 1e-3, "bf16": 2e-2}  # of a loss, relatively, after the benchmark's steps


def is_here(build, cap, variables):
    """Whether the processor goes as far, and the build has it."""
    if cap.startswith("AMX") and not turns.processor().endswith("AMX"):
        return False
    done = subprocess.run([build / "bench/products", "--tiny", "--rounds", "1"], env={**os.environ, **variables},
                          capture_output=True, text=True, check=False)
    if done.returncode != 0 and "available:" not in done.stderr:
        sys.exit(f"{cap}: {done.stderr.strip()}")
    return done.returncode == 0


def run(build, figures_of, tiny):
    """`figures_of(prefix, variables, program, *arguments)` keeps a command's figures."""
    small = ["--width", 16, "--layers", 2, "--batch", 2, "--seq", 8, "--steps", 2] if tiny else []
    for cap, variables in CAPS.items():
        if is_here(build, cap, variables):
            for model, precision in CASES:
                figures_of(f"processor/{cap}/{model}/{precision}/", variables, build / f"bench/step_{model}", "--precision", precision,
                           *small)


def require_same_losses(figures):
    for model, precision in CASES:
        losses = {cap: figures[name] for cap in CAPS if (name := f"processor/{cap}/{model}/{precision}/last-loss") in figures}
        for cap, loss in losses.items():
            other, first = next(iter(losses.items()))
            if not abs(loss - first) <= ALLOWED[precision] * abs(first):
                sys.exit(f"{model} in {precision}: the loss is {loss} with {cap}, and {first} with {other}")


def table(figures):
    require_same_losses(figures)
    if not any(name.startswith("processor/") for name in figures):
        return  # none of these processors' kind
    yield "## As other processors would do it\n"
    yield ("Steps of one rank on one thread, this processor's instruction sets capped: milliseconds, and the loss after the "
           "benchmark's steps.\n")
    yield "| | " + " | ".join(f"{model.upper()} {precision}" for model, precision in CASES) + " |\n|---|" + "--:|" * len(CASES)
    for cap in CAPS:
        if all(f"processor/{cap}/{model}/{precision}/last-loss" in figures for model, precision in CASES):
            of = [{part: figures[f"processor/{cap}/{model}/{precision}/{part}"] for part in ("step", "last-loss")}
                  for model, precision in CASES]
            yield f"| {cap} | " + " | ".join(f"{each['step']:.3g} ({each['last-loss']:.4f})" for each in of) + " |"
    yield ""


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    figures = {}

    def figures_of(prefix, variables, *command):
        for line in turns.run(command, variables).splitlines():
            name, value, _ = line.split(" ")
            figures[prefix + name] = float(value)

    run(options.build.resolve(), figures_of, options.tiny)
    print("\n".join(table(figures)))


if __name__ == "__main__":
    main()
