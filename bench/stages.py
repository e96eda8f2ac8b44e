#!/usr/bin/env python3
"""A vision transformer in two stages: how long a step takes, and what of it stages stand still, by the number of micro-batches.

usage: stages.py BUILD PAGE.md [--rounds N] [--steps N] [--micro-batches 1,2,4,8,16] [-- OPTION…]

Every step has the same images, so more micro-batches are smaller ones. Two ranks of one thread each go by 1F1B; beside them stands
one rank with the same micro-batches. The bubble is that of the schedule, and that of a trace of the run. Runs take turns, and medians
of the rounds count. Options behind -- go to train_vision: --data, --model, --width and so on. The figure stands beside the page.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import tempfile

import turns

STAGES, IMAGES, WARM_UP = 2, 64, 3


def train(options, micro_batches, *where):
    """What it says, and the seconds of a step."""
    said, steps = turns.trained([options.build / "vision/trainer/train_vision", "--model", "vit-s", *options.rest, *where, "--threads", 1,
                                 "--batch", IMAGES // micro_batches, "--accumulate", micro_batches, "--steps", WARM_UP + options.steps,
                                 "--eval-every", 0, "--eval-batches", 1])
    return said, statistics.median(step["step_seconds"] for step in steps[WARM_UP:])


def measure(options, micro_batches):
    """(seconds of a step, on one rank, the schedule's bubble, each stage's measured bubble)"""
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace.json"
        _, alone = train(options, micro_batches, "--ranks", 1)
        said, seconds = train(options, micro_batches, "--mesh", f"pipeline={STAGES}", "--trace", trace, "--trace-steps",
                              f"{WARM_UP + 1}-{WARM_UP + options.steps}")
        summary = json.loads(turns.run([options.build / "tools/tessera", "trace", "summary", trace, "--json"]))
    by_schedule = float(re.search(r"bubble +([\d.]+) %", said)[1]) / 100
    return seconds, alone, by_schedule, *(rank["bubble"] for rank in summary["ranks"])


def chart(found):
    counts = list(found)
    names = {2: "by the schedule"} | {3 + stage: f"stage {stage}, measured" for stage in range(STAGES)}
    return {"kind": "lines", "title": "Bubble of a vision transformer in two stages", "note": f"1F1B, {IMAGES} images a step",
            "x": {"label": "micro-batches", "scale": "log2"}, "y": {"label": "part of the passes that a stage stands still, %"},
            "series": [{"name": name, "x": counts, "y": [100 * found[count][at] for count in counts], "reference": at == 2}
                       for at, name in names.items()]}


def page(options, found, figure):
    yield f"# A vision transformer in two stages, {datetime.date.today():%Y-%m-%d}\n"
    yield (f"Two ranks of one thread on {os.cpu_count()} cores of {turns.processor()}, made by `bench/stages.py`: `{' '.join(['train_vision', '--model', 'vit-s', *options.rest])}` "
           f"with `--mesh pipeline={STAGES}`, 1F1B, {IMAGES} images a step, {options.steps} steps, the median of {options.rounds} rounds. "
           "Beside it one rank of one thread with the same micro-batches. The measured bubble is that of `tessera trace summary`: the part "
           "of the passes in which a stage's compute stream stands still.\n")
    if figure:
        yield f"![Bubble by micro-batches]({figure.name})\n"
    yield ("| micro-batches | images in one | ms a step | one rank, ms | speed-up | bubble by the schedule | stage 0 | stage 1 |\n"
           "|--:|--:|--:|--:|--:|--:|--:|--:|")
    for count, (seconds, alone, *bubbles) in found.items():
        yield (f"| {count} | {IMAGES // count} | {1e3 * seconds:.0f} | {1e3 * alone:.0f} | {alone / seconds:.2f} | "
               + " | ".join(f"{100 * bubble:.1f} %" for bubble in bubbles) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("page", type=pathlib.Path)
    for name, value in {"rounds": 3, "steps": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--micro-batches", type=turns.numbers, default=[1, 2, 4, 8, 16])
    options = turns.parsed_with_rest(parser)
    for count in options.micro_batches:
        if count < 1 or IMAGES % count:
            parser.error(f"--micro-batches {count}: {IMAGES} images cannot be dealt to them")
    turns.require_folder_of(parser, options.page)
    rounds = turns.in_turns(options.rounds, options.micro_batches, lambda count: measure(options, count))
    found = {count: turns.medians(of) for count, of in rounds.items()}
    figure = turns.draw(chart(found), options.page.with_suffix(".svg"))
    options.page.write_text("\n".join(page(options, found, figure)) + "\n", encoding="utf-8")
    print(options.page)


if __name__ == "__main__":
    main()
