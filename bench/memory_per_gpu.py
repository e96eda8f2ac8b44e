#!/usr/bin/env python3
"""Bytes per rank of a training job: planned, really taken, and by the ZeRO formulas, for strategies x precisions x ranks x replicas.

usage: memory_per_gpu.py BUILD [--model NAME | --model FILE.json] [--strategy S,…] [--precision P,…] [--ranks N,…] [--replicas R,…]
       [--prefetch N] [--micro-batches N] [--batch N] [--real-ranks N] [--planned-only] [--json FILE] [--plot FILE.svg]

Planned is what `tessera plan` says. Up to 8 ranks really run, each a thread; of more one runs and the others are imagined. Layers compute
nothing (bench/hollow_step), so what is measured is the runtime's. A row whose ranks do not fit into half of this machine's free memory is
measured on one simulated rank, or not at all, and says so. Each number of replicas goes with each number of ranks that it divides.
--batch counts a GPT's activations. --plot draws bars, and beside them NAME-over-ranks with a line for each strategy.
Exit code: 0; 1 when measured bytes are not the planned ones.
"""
import argparse
import itertools
import json
import os
import pathlib
import shlex
import sys

import turns

FLAT, HYBRID = ["ddp", "zero1", "zero2", "fsdp"], ["hsdp", "hfsdp"]
COLUMNS = {"parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer", "accumulation": "sums",
           "parameter_slots": "p. slots", "gradient_slots": "g. slots", "activations": "activations"}


def shown(size):
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return "0" if size == 0 else f"{size:.0f} {unit}" if unit == "B" or size >= 1000 else f"{size:#.3g}".rstrip(".") + f" {unit}"
        size /= 1024


def memory_to_take():
    """Half of what is free, also by the control group."""
    facts = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
    free = int(facts["MemAvailable"].split()[0]) * 1024
    group = pathlib.Path("/sys/fs/cgroup")
    try:
        free = min(free, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no such group, or no limit
        pass
    return free // 2


def planned_row(options, strategy, precision, ranks, replicas):
    arguments = [*model_of(options), "--strategy", strategy, "--precision", precision, "--world", ranks, "--replicas", replicas, "--prefetch",
                 options.prefetch, "--micro-batches", options.micro_batches]
    batch = ["--batch", options.batch] if options.batch else []
    plan = json.loads(turns.run([options.build / "tools/tessera", "plan", "--json", *arguments, *batch]))
    if not options.batch:
        plan["peak"] -= plan["categories"]["activations"]
        plan["categories"]["activations"] = 0
    row = {"strategy": strategy, "precision": precision, "ranks": ranks, "replicas": replicas, "paper": plan["zero_paper"],
           "planned": {**plan["categories"], "peak": plan["peak"]}, "measured": None,
           "how": "planned only"}
    if not options.planned_only:
        measure(options, arguments, row)
    return row


def measure(options, arguments, row):
    """Adds the bytes of a rank, one that differs from the plan if any does."""
    one, ranks, room = row["planned"]["peak"], row["ranks"], memory_to_take()
    real = ranks <= options.real_ranks and ranks * one <= room
    if one > room:
        row["how"] = f"not measured: a rank takes {shown(one)}, half of what is free is {shown(room)}"
        return
    found = json.loads(turns.run([options.build / "bench/hollow_step", *arguments, "--activations", row["planned"]["activations"],
                                  *([] if real else ["--one-is-real"])]))["ranks"]
    each = [{name: both["measured"] for name, both in {**rank["categories"], "peak": rank["peak"]}.items()} for rank in found]
    if each[0]["peak"] is None:
        row["how"] = "not measured: this build cannot interpose the allocators"
        return
    row["measured"] = next((rank for rank in each if not is_as_planned(row["planned"], rank)), each[0])
    row["how"] = f"{ranks} real rank{'s' if ranks > 1 else ''}" if real else f"rank 0 of {ranks}, simulated"
    if not real and ranks <= options.real_ranks:
        row["how"] += f": {ranks} real ones take {shown(ranks * one)}, half of what is free is {shown(room)}"


def is_as_planned(planned, measured):
    """In every category; a report leaves out those that its plan has not."""
    return all(measured.get(name, 0) == size for name, size in planned.items())


def model_of(options):
    return ["--units", options.model] if options.model.endswith(".json") else ["--model", options.model]


def heading(options):
    return (f"`{shlex.join(['bench/memory_per_gpu.py', *sys.argv[1:]])}`, {os.cpu_count()} cores of {turns.processor()}, {turns.commit()}: {options.model}, "
            f"AdamW, prefetch {options.prefetch}, {options.micro_batches} micro-batches a step; activations "
            f"{f'of {options.batch} sequences' if options.batch else 'not counted'}.\n\n"
            "| strategy | precision | ranks | replicas | ZeRO | " + " | ".join(COLUMNS.values()) +
            " | rest | planned | measured | how it was measured |\n|---|---|--:|--:|" + "--:|" * (len(COLUMNS) + 4) + "---|")


def line(row):
    planned = row["planned"]
    rest = sum(size for name, size in planned.items() if name not in COLUMNS and name != "peak")
    sizes = [row["paper"], *(planned.get(name, 0) for name in COLUMNS), rest, planned["peak"]]
    measured = "-" if not row["measured"] else shown(row["measured"]["peak"]) + ("" if is_as_planned(planned, row["measured"]) else " DIFFERS")
    return " | ".join(["| " + row["strategy"], row["precision"], str(row["ranks"]), str(row["replicas"]), *map(shown, sizes), measured, row["how"] + " |"])


def plot(options, rows):
    """Bars of the last precision, at the largest number of ranks that really run and at the largest of all; and lines over ranks."""
    rows = [row for row in rows if row["precision"] == options.precision[-1]]
    ran = [row for row in rows if row["measured"]]
    equal = sum(is_as_planned(row["planned"], row["measured"]) for row in ran)
    note = f"{len(ran)} of {len(rows)} plans were run: in {equal} of them every category took what was planned."
    shown_ranks = {max(options.ranks), max((ranks for ranks in options.ranks if ranks <= options.real_ranks), default=max(options.ranks))}
    bars = [row for row in rows if row["ranks"] in shown_ranks]
    unit, scale = next(pair for pair in (("GiB", 2 ** 30), ("MiB", 2 ** 20), ("KiB", 1)) if pair[1] <= max(row["planned"]["peak"] for row in rows))
    title = f"{options.model}, {options.precision[-1]}, AdamW: what one of N ranks holds"
    series = [{"name": name.replace("_", " "), "y": [row["planned"][name] / scale for row in bars]} for name in rows[0]["planned"] if name != "peak"]

    def name_of(row):
        return row["strategy"] + (f", {row['replicas']} replicas" if row["replicas"] > 1 else "")

    turns.draw({"kind": "stacked_bars", "title": title, "note": note, "y": {"label": f"{unit} per rank"},
                "bars": [f"{name_of(row)}\nN = {row['ranks']}" for row in bars],
                "series": [each for each in series if max(each["y"]) >= 0.001]}, options.plot)
    of = {name: sorted((row["ranks"], row["planned"]["peak"] / scale) for row in rows if name_of(row) == name) for name in map(name_of, rows)}
    turns.draw({"kind": "lines", "title": title, "note": note, "x": {"label": "ranks", "scale": "log2"},
                "y": {"label": f"{unit} per rank", "scale": "log2"},
                "series": [{"name": name, "x": [ranks for ranks, _ in points], "y": [size for _, size in points]} for name, points in of.items()]},
               options.plot.with_name(f"{options.plot.stem}-over-ranks{options.plot.suffix}"))


def words(text):
    return text.split(",")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--model", default="gpt2-124m")
    parser.add_argument("--strategy", type=words)
    parser.add_argument("--precision", type=words, default=["fp32", "bf16"])
    parser.add_argument("--ranks", type=turns.numbers, default=[1, 2, 4, 8, 64, 512])
    parser.add_argument("--replicas", type=turns.numbers, default=[1])
    parser.add_argument("--prefetch", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--real-ranks", type=int, default=8, help="up to so many all ranks run; of more, one")
    parser.add_argument("--planned-only", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path)
    options = parser.parse_args()
    strategies = options.strategy or FLAT + (HYBRID if max(options.replicas) > 1 else [])
    meshes = [(ranks, replicas) for ranks in options.ranks for replicas in options.replicas if ranks % replicas == 0]
    for replicas in options.replicas:
        if replicas not in (each for _, each in meshes):
            parser.error(f"--replicas {replicas} divides none of --ranks")
    print(heading(options))
    rows = []
    for precision, strategy, mesh in itertools.product(options.precision, strategies, meshes):
        rows.append(planned_row(options, strategy, precision, *mesh))
        print(line(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"model": options.model, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        plot(options, rows)
    ran = [row for row in rows if row["measured"]]
    different = sum(not is_as_planned(row["planned"], row["measured"]) for row in ran)
    print(f"\n{len(rows)} rows, {len(ran)} measured; measured bytes are not the planned ones in {different}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
