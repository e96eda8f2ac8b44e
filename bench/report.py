#!/usr/bin/env python3
"""Runs all timed benchmarks and writes their page, and figures of the ratios against the marks and of the steps against PyTorch's.

usage: report.py BUILD PAGE.md [--torch PYTHON] [--minutes N] [--tiny]

After --minutes (default: 15) whatever runs is ended, and the rest is left out. The page has what was measured, from the first
command on, and says what is missing. --tiny runs everything on sizes that take no time: its figures mean nothing. Without
PyTorch its part is left out, and the page says so. See scripts/benchmark.
"""
import argparse
import datetime
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import time

import marks
import processors
import turns

SOURCE = pathlib.Path(__file__).resolve().parent.parent


def shown(command):
    """As it stands on a page: without this machine's folders."""
    words = [os.path.relpath(word, SOURCE) if str(word).startswith(str(SOURCE)) else str(word) for word in command]
    return shlex.join("python3" if word == sys.executable else pathlib.Path(word).name if os.path.isabs(word) else word
                      for word in words)


class Runner:
    """Runs commands for so many minutes; keeps their figures, by name, and the commands. Calls `keep` after each."""

    def __init__(self, build, minutes, keep):
        self.build, self.figures, self.units, self.commands, self.remarks = pathlib.Path(build), {}, {}, [], []
        self.minutes, self.keep, self.start, self.left_out, self.ended = minutes, keep, time.monotonic(), [], False

    def minutes_gone(self):
        return (time.monotonic() - self.start) / 60

    def minutes_left(self):
        return max(0.0, self.minutes - self.minutes_gone())

    def lines(self, program, *arguments, variables=None):
        command = [program, *map(str, arguments)]
        named = "".join(f"{key}={value} " for key, value in (variables or {}).items()) + shown(command)
        try:
            if self.minutes_left() == 0:
                raise subprocess.TimeoutExpired(command, 0)
            print(f"{self.minutes_gone():4.1f} of {self.minutes:g} minutes: {shlex.join(map(str, command))}", file=sys.stderr, flush=True)
            output = turns.run(command, variables, timeout=60 * self.minutes_left(),
                               talks=program == sys.executable)
        except subprocess.TimeoutExpired:
            self.left_out.append(named)
            return []
        self.commands.append(named)
        return output.splitlines()

    def figures_of(self, prefix, program, *arguments, variables=None):
        self.take(prefix, self.lines(program, *arguments, variables=variables))
        self.keep(self)

    def take(self, prefix, lines):
        for line in lines:
            parts = line.split(" ")
            if len(parts) != 3 or parts[2] == "version":
                self.remarks.append(line.replace("torch", "PyTorch", 1).removesuffix(" version"))
                continue
            self.figures[prefix + parts[0]], self.units[prefix + parts[0]] = float(parts[1]), parts[2]

    def bench(self, name):
        return self.build / "bench" / name


def run_all(runner, options):
    tiny = options.tiny
    runner.figures_of("", runner.bench("kernels"), *(["--mib", 1, "--rounds", 1] if tiny else []))
    for ranks in (2, 4):
        for line in runner.lines(runner.bench("collectives"), "--ranks", ranks, *((1,) if tiny else (16, 256))):
            backend, count, collective, mebibytes, milliseconds = line.split()
            name = f"collectives/{backend}/{count}/{collective}/{mebibytes}"
            runner.figures[name], runner.units[name] = float(milliseconds), "ms"
    for units in (16,) if tiny else (16, 64, 256, 1024):
        steps = 2 if tiny else max(20, 12800 // units)
        runner.figures_of(f"executor/{units}/", runner.bench("executor"), "--units", units, "--steps", steps)
    small = ["--units", 2, "--width", 16, "--batch", 4, "--steps", 2] if tiny else []
    for share in (60,) if tiny else (60, 90):
        runner.figures_of(f"overlap/{share}/", runner.bench("overlap"), "--share", share, *small)
    for precision in ("fp32", "bf16"):
        runner.figures_of(f"products/{precision}/", runner.bench("products"), "--precision", precision,
                          *(["--tiny", "--rounds", 1] if tiny else []))
        runner.figures_of(f"convolutions/{precision}/", runner.bench("convolutions"), "--precision", precision,
                          *(["--tiny", "--rounds", 1] if tiny else []))
    run_steps(runner, tiny)
    processors.run(runner.build, lambda prefix, variables, *command: runner.figures_of(prefix, *command, variables=variables), tiny)
    python = ["--torch", options.torch] if options.torch else []
    # It ends by itself, with what it has, before it would be ended.
    minutes = ["--minutes", round(max(0.9 * runner.minutes_left() - 0.5, 0.0), 2)]
    runner.figures_of("torch/", sys.executable, "-B", SOURCE / "bench/compare.py", runner.build, *python, *minutes,
                      *(["--tiny", "--rounds", 1, "--steps", 1] if tiny else []))


def run_steps(runner, tiny):
    small = ["--width", 16, "--layers", 2, "--batch", 2, "--seq", 8, "--steps", 2] if tiny else []
    for model in ("mlp", "gpt"):
        for precision in ("fp32", "bf16"):
            for threads, case in ((1, "1"), (2, "1-threads")):
                runner.figures_of(f"step/{model}/{precision}/{case}/", runner.bench(f"step_{model}"), "--threads", threads,
                                  "--precision", precision, "--parts", *small)
        for strategy in ("ddp", "fsdp"):
            for precision in ("fp32", "bf16"):
                runner.figures_of(f"step/{model}/{precision}/2-{strategy}/", runner.bench(f"step_{model}"), "--ranks", 2,
                                  "--strategy", strategy, "--precision", precision, "--parts", *small)


# ---- the page ----

def verdict(mark, ratio):
    met = ratio >= mark.least if mark.least is not None else ratio <= mark.most
    return "met" if met else "missed"


def bound(mark):
    return f"≥ {mark.least:g}" if mark.least is not None else f"≤ {mark.most:g}"


def mark_tables(figures):
    missed = []
    for section in (marks.KERNELS, marks.COLLECTIVES, marks.RUNTIME, marks.STEPS):
        rows = [(mark, mark.ratio(figures)) for mark in marks.marks() if mark.section == section]
        rows = [(mark, ratio) for mark, ratio in rows if ratio is not None]
        if not rows:
            continue
        yield f"## {section}\n"
        yield "| | ratio | mark | |\n|---|--:|--:|---|"
        for mark, ratio in rows:
            yield f"| {mark.name} | {ratio:.3g} | {bound(mark)} | {verdict(mark, ratio)} |"
            if verdict(mark, ratio) == "missed":
                missed.append((mark, ratio))
        yield ""
    if missed:
        yield "## What is missed, and what limits it\n"
        for mark, ratio in missed:
            limit = mark.limit(figures) if callable(mark.limit) else mark.limit
            yield f"- {mark.name}: {ratio:.3g} of {bound(mark)}. {limit}".rstrip()
        yield ""


PARTS = ["step", "linear", "linear-rate", "attention", "optimizer", "without-communication", "exposed-communication", "rest",
         "large-product-rate", "triad", "floor"]


def parts_table(figures):
    cases = sorted({name.rsplit("/", 1)[0] for name in figures if name.startswith("step/")})
    yield "## Where a step's time goes\n"
    yield ("Linear layers and attention by themselves; the optimizer on its stream; a rank without communication is one whose "
           "collectives take no time. The rest is norms, activations, softmax, the gradients' norm, and the runtime.\n")
    yield "| | " + " | ".join(PARTS) + " |\n|---|" + "--:|" * len(PARTS)
    for case in cases:
        cells = [f"{figures[f'{case}/{part}']:.4g}" if f"{case}/{part}" in figures else "" for part in PARTS]
        yield f"| {case.removeprefix('step/')} | " + " | ".join(cells) + " |"
    yield "\nMilliseconds; rates in GFLOP/s, the triad in GB/s.\n"


def products_table(figures):
    """Rates of each product by who computes it."""
    rates = {tuple(name.removeprefix("products/").rsplit("/", 1)): rate for name, rate in figures.items()
             if name.startswith("products/")}
    contestants = list(dict.fromkeys(who for _, who in rates))
    yield "## Products of the trainers, one by one\n\n| | " + " | ".join(contestants) + " |\n|---|" + "--:|" * len(contestants)
    for product in dict.fromkeys(product for product, _ in rates):
        cells = [f"{rates[product, who]:.3g}" if (product, who) in rates else "" for who in contestants]
        yield f"| {product} | " + " | ".join(cells) + " |"
    yield "\nGFLOP/s on one thread; the limit is that of multiply-adds on registers alone.\n"


def all_figures(runner):
    yield "## All figures\n\n| figure | | |\n|---|--:|---|"
    for name, value in runner.figures.items():
        if not name.startswith(("step/", "products/", "processor/")):
            yield f"| {name} | {value:.4g} | {runner.units[name]} |"
    yield ""


def page(runner, figures, seconds):
    yield f"# Benchmarks on the CPU, {datetime.date.today():%Y-%m-%d}\n"
    yield (f"`scripts/benchmark`, {seconds / 60:.0f} minutes on {os.cpu_count()} cores of {turns.processor()}, {platform.system()} "
           f"{platform.release().split('-')[0]}, {turns.commit()}. Contestants take turns within one run, figures are medians, and ratios are of one run. Each "
           "benchmark checks its results. Ratios are rates, or speeds, over the other's; more is better but where the mark "
           "says ≤.\n")
    yield from (f"{remark}\n" for remark in runner.remarks)
    if not runner.ended:
        yield "This run has not ended: what is missing here was not measured yet.\n"
    if runner.left_out:
        yield f"Time was over after {runner.minutes:g} minutes, without these commands:\n"
        yield from (f"- `{command}`" for command in runner.left_out)
        yield ""
    yield from (f"![{title}]({figure})\n" for title, figure in figures.items())
    yield from mark_tables(runner.figures)
    yield from parts_table(runner.figures)
    yield from products_table(runner.figures)
    yield from processors.table(runner.figures)
    yield "## Commands\n\n```sh"
    yield from runner.commands
    yield "```\n"
    yield from all_figures(runner)


# ---- the figure ----

def measured(figures, section):
    """Marks of the section with their ratios, where there is one that a logarithm takes."""
    pairs = ((mark, mark.ratio(figures)) for mark in marks.marks() if mark.section == section)
    return [(mark, ratio) for mark, ratio in pairs if ratio is not None and ratio > 0]


def dots(name, pairs, place):
    return {"name": name, "rows": [mark.name for mark, _ in pairs], "x": [place(mark, ratio) for mark, ratio in pairs],
            "texts": [f"{ratio:.3g} ({bound(mark)})" for mark, ratio in pairs]}


def plot_marks(figures, path):
    """Every ratio over its mark; above 1 it is met. Whether there is a figure."""
    def over_mark(mark, ratio):
        return ratio / mark.least if mark.least is not None else mark.most / ratio

    sections = [(section, measured(figures, section)) for section in (marks.KERNELS, marks.COLLECTIVES, marks.RUNTIME, marks.STEPS)]
    return turns.draw({"kind": "dots", "title": "Benchmarks over their marks", "note": "Beside each dot the ratio, and in brackets its mark",
                 "x": {"label": "ratio over its mark", "scale": "log2"},
                 "series": [dots(section, pairs, over_mark) for section, pairs in sections if pairs],
                 "limits": [{"name": "met", "x": 1}]}, path)


def plot_peer(figures, path):
    """Speed over PyTorch's, for people who read nothing else. Whether there is a figure."""
    pairs = measured(figures, marks.STEPS)
    return pairs and turns.draw({"kind": "dots", "title": "Training steps: speed over PyTorch's", "note": f"{turns.processor()}; in brackets the marks",
                           "x": {"label": "times PyTorch's speed", "scale": "log2"},
                           "series": [dots("steps of the same model and batch", pairs, lambda _, ratio: ratio)],
                           "limits": [{"name": "as fast as PyTorch", "x": 1}]}, path)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--torch", default=os.environ.get("TESSERA_TORCH_PYTHON"))
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    turns.require_folder_of(parser, options.page)

    def write(runner, figures=None):
        options.page.write_text("\n".join(page(runner, figures or {}, 60 * runner.minutes_gone())), encoding="utf-8")

    runner = Runner(pathlib.Path(options.build).resolve(), options.minutes, write)
    run_all(runner, options)
    runner.ended = True
    figures = {"Ratios over their marks": (plot_marks, options.page.with_suffix(".svg")),
               "Speed over PyTorch's": (plot_peer, options.page.with_name(f"{options.page.stem}-pytorch.svg"))}
    drawn = {title: path.name for title, (plot, path) in figures.items() if plot(runner.figures, path)}
    write(runner, drawn)
    left = f", {len(runner.left_out)} commands left out" if runner.left_out else ""
    print(f"{options.page}: {60 * runner.minutes_gone():.0f} s of benchmarks{left}")


if __name__ == "__main__":
    main()
