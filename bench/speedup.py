#!/usr/bin/env python3
"""How much faster train_vision becomes with more ranks, strategies side by side: images/s, speed-up, efficiency, what of a
step is waiting for others, and accuracy, on one page with a figure; beside it what `tessera plan --time` predicted.

usage: speedup.py BUILD PAGE.md [--ranks 1,2,4] [--strategies ddp,fsdp] [--global-batch N] [--epochs N] [--rounds N]
       [--calibrate SECONDS] [-- OPTION…]

Every run takes the same global batch, so that runs differ in roundings alone where a model has no batch norm; each rank has
one thread. Runs take turns, `rounds` times, and the median of each counts.
Options behind -- go to train_vision: --model, --data, --width and so on. The figure stands beside the page.

The prediction is made before the runs, from the rates that `tessera calibrate` measures on this machine; nothing of it is
fitted to them. `--calibrate 0` leaves it out.

Amdahl's curve is that of the share of a step that one rank alone computes and that does not become less with ranks, fitted
to the speed-ups (least squares) on as many ranks as there are cores at most: 1 / (s + (1 - s) / N).
"""
import argparse
import datetime
import itertools
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile

import turns

WARM_UP = 3  # steps at the beginning that do not count


def train(options, ranks, strategy):
    """One run: what it came to."""
    _, steps = turns.trained([options.build / "vision/trainer/train_vision", "--ranks", ranks, "--threads", 1, "--strategy", strategy, "--batch",
                              options.global_batch // ranks, "--epochs", options.epochs, "--metrics-per-rank", "--quiet", *options.rest])
    timed = [step for step in steps[WARM_UP:] if step["samples"] == options.global_batch] or steps
    seconds = statistics.median(step["step_seconds"] for step in timed)
    waiting = statistics.median(step["ranks"]["waiting_seconds"]["median"] / step["step_seconds"] for step in timed)
    rate = timed[0]["samples"] / seconds
    print(f"{ranks} ranks, {strategy}: {rate:.0f} images/s", file=sys.stderr)
    return {"rate": rate, "waiting": waiting, "accuracy": steps[-1].get("accuracy"), "loss": steps[-1]["loss"]}


def measure(options):
    """(ranks, strategy) → what a run came to, speed and waiting as medians of the rounds. With one rank all strategies are one."""
    cases = [(ranks, strategy) for ranks in options.ranks for strategy in (options.strategies if ranks > 1 else options.strategies[:1])]
    found = turns.in_turns(options.rounds, cases, lambda case: train(options, *case))
    return {case: {**runs[0], **{key: statistics.median(run[key] for run in runs) for key in ("rate", "waiting")}}
            for case, runs in found.items()}


def shape_of(options):
    """(model, width, side, channels, classes) of what is trained, as its own headline says."""
    command = [options.build / "vision/trainer/train_vision", "--steps", 1, "--eval-every", 0, "--batch", 1, *options.rest]
    found = re.search(r"(\S+), width (\d+).*: (\d+) x (\d+) x (\d+) -> (\d+)", turns.run(command))
    return found and (found[1], *(int(found[group]) for group in (2, 3, 5, 6)))


def predict(options):
    """(ranks, strategy) → images/s; empty where there is no prediction."""
    if not options.calibrate:
        return {}
    tool = options.build / "tools/tessera"
    with tempfile.TemporaryDirectory() as folder:
        shape = shape_of(options)
        if not shape:
            print("no prediction: train_vision does not say what it trains", file=sys.stderr)
            return {}
        machine = pathlib.Path(folder) / "here.json"
        turns.run([tool, "calibrate", machine, "--ranks", max(2, *options.ranks), "--seconds", options.calibrate])
        found = {}
        for ranks, strategy in itertools.product(options.ranks, options.strategies):
            command = [tool, "plan", *(word for name, value in zip(("--model", "--width", "--image-size", "--channels", "--classes"), shape)
                                       for word in (name, value)),
                       "--batch", options.global_batch // ranks, "--world", ranks, "--strategy", strategy, *passed_on(options.rest),
                       "--time", "--machine", machine, "--json"]
            found[ranks, strategy] = options.global_batch / json.loads(turns.run(command))["step_seconds"]
        return found


def passed_on(rest):
    """What of train_vision's options changes a plan."""
    known = {"--precision": 1, "--optimizer": 1, "--prefetch": 1, "--reshard-after-forward": 1, "--bucket-cap": 1, "--sync-batch-norm": 0}
    words = [word for option in rest for word in option.split("=", 1)]
    return [part for at, word in enumerate(words) if word in known for part in words[at:at + 1 + known[word]]]


def on_cores(speed_ups, cores):
    """Those of {ranks: speed-up} that the machine has a core for; all, where that leaves nothing to compare."""
    few = {ranks: speed_up for ranks, speed_up in speed_ups.items() if ranks <= cores}
    return few if len(few) > 1 else speed_ups


def amdahl(speed_ups):
    """The serial share whose curve is nearest to {ranks: speed-up}."""
    def distance(share):
        return sum((1 / (share + (1 - share) / ranks) - speed_up) ** 2 for ranks, speed_up in speed_ups.items())
    return min((step / 1000 for step in range(1001)), key=distance)


def curves(options, found):
    """strategy → {ranks: speed-up}, one rank included."""
    base = next(run["rate"] for (ranks, _), run in found.items() if ranks == min(options.ranks))
    first = min(options.ranks)
    return {strategy: {ranks: found[ranks, strategy if ranks > 1 else options.strategies[0]]["rate"] / base * first
                       for ranks in options.ranks} for strategy in options.strategies}


def chart(options, speed_ups, share, predicted):
    ranks = options.ranks
    series = [{"name": strategy, "x": ranks, "y": [of[count] for count in ranks]} for strategy, of in speed_ups.items()]
    series.append({"name": "as many times as ranks", "x": ranks, "y": ranks, "reference": True})
    series.append({"name": f"Amdahl, {100 * share:.1f} % alone", "x": ranks,
                   "y": [1 / (share + (1 - share) / count) for count in ranks]})
    if predicted:
        first = min(ranks)
        for strategy in options.strategies:
            series.append({"name": f"{strategy}, predicted", "x": ranks,
                           "y": [first * predicted[count, strategy] / predicted[first, strategy] for count in ranks]})
    return {"kind": "lines", "title": "Speed-up of train_vision", "note": f"{os.cpu_count()} cores; one thread a rank, the same "
            f"global batch of {options.global_batch}", "x": {"label": "ranks", "scale": "log2"}, "y": {"label": "speed-up"},
            "series": series}


def page(options, found, speed_ups, shares, predicted, figure):
    yield f"# Speed-up with ranks, {datetime.date.today():%Y-%m-%d}\n"
    yield (f"`scripts/speedup` on {os.cpu_count()} cores of {turns.processor()}: `{' '.join(['train_vision', *options.rest])}`, a global batch of "
           f"{options.global_batch}, one thread a rank, {options.epochs} epoch{'s' if options.epochs > 1 else ''}, the median of "
           f"{options.rounds} runs. Speed is that of a median step, without evaluations. Waiting is the median rank's time in a step "
           "in which its computing stream stands still for communication and for other ranks. One rank's step is the same under every "
           "strategy. Amdahl's curve is fitted to ranks that have a core each.\n")
    if figure:
        yield f"![Speed-up with ranks]({figure.name})\n"
    yield ("| ranks | strategy | images/s | predicted | speed-up | predicted | efficiency | waiting | held-out top-1 | last loss |\n"
           "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    first = min(options.ranks)
    for (ranks, strategy), run in found.items():
        speed_up = speed_ups[strategy][ranks]
        accuracy = "" if run["accuracy"] is None else f"{100 * run['accuracy']:.2f} %"
        rate = predicted.get((ranks, strategy))
        expected = f"{rate:,.0f} | {speed_up:.2f} | {first * rate / predicted[first, strategy]:.2f}" if rate else f"– | {speed_up:.2f} | –"
        yield (f"| {ranks} | {strategy if ranks > 1 else 'any'} | {run['rate']:,.0f} | {expected} | {100 * speed_up / ranks:.0f} % | "
               f"{100 * run['waiting']:.0f} % | {accuracy} | {run['loss']:.4f} |")
    yield ""
    for strategy, share in shares.items():
        yield f"- {strategy}: Amdahl's curve nearest to it has {100 * share:.1f} % of a step that does not become less with ranks."
    if predicted:
        yield ("- The prediction is `tessera plan --time` on what `tessera calibrate` measured before the runs: products, convolutions, passes "
               "over memory and collectives of this machine. It knows nothing of the runs, nor of loading and metrics.")
    more = [count for count in options.ranks if count > os.cpu_count()]
    if more:
        yield (f"- {', '.join(map(str, more))} ranks share {os.cpu_count()} cores: they cannot be faster than {os.cpu_count()}, and "
               "each also waits for the processor.")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--ranks", type=turns.numbers, default=[1, 2, 4])
    parser.add_argument("--strategies", type=lambda text: text.split(","), default=["ddp", "fsdp"])
    parser.add_argument("--global-batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calibrate", type=int, default=60, help="seconds of measuring for the prediction; 0: none")
    options = turns.parsed_with_rest(parser)
    for ranks in options.ranks:
        if ranks < 1 or options.global_batch % ranks:
            parser.error(f"--global-batch {options.global_batch} cannot be divided among {ranks} ranks")
    turns.require_folder_of(parser, options.page)
    predicted = predict(options)
    found = measure(options)
    speed_ups = curves(options, found)
    shares = {strategy: amdahl(on_cores(of, os.cpu_count())) for strategy, of in speed_ups.items()}
    figure = turns.draw(chart(options, speed_ups, shares[options.strategies[0]], predicted), options.page.with_suffix(".svg"))
    options.page.write_text("\n".join(page(options, found, speed_ups, shares, predicted, figure)) + "\n", encoding="utf-8")
    print(options.page)


if __name__ == "__main__":
    main()
