#!/usr/bin/env python3
"""Predicted against measured steps on this machine: 24 configurations, strategies x ranks x accumulation x prefetch, an MLP
and a GPT, ranks that are threads and processes of MPI.

Calibrates once: `tessera calibrate`, and traces of one rank of each model, which is not among the 24. Then trains each
configuration for some steps, in several rounds, and holds what a step takes against `tessera plan --time`. Of a run it is
the median of the traced steps, and of rounds their median again: what else a host of virtual machines does comes and goes.
Run it on a quiet machine.

usage: predicted.py BUILD [--quick] [--seconds N] [--rounds N]    BUILD: the build directory
"""
import argparse
import json
import pathlib
import statistics
import tempfile

import turns

MLP = {"hidden": 2048, "depth": 6, "batch": 64}
GPT = {"layers": 4, "dim": 256, "heads": 4, "seq": 128, "vocabulary": 256, "batch": 8}
QUICK_MLP = {"hidden": 512, "depth": 3, "batch": 32}
QUICK_GPT = {"layers": 2, "dim": 64, "heads": 2, "seq": 64, "vocabulary": 256, "batch": 2}


class Model:
    def __init__(self, name, shape, build, folder):
        self.name, self.shape, self.build, self.folder = name, shape, build, folder

    def train(self):
        s = self.shape
        if self.name == "mlp":
            return ["trainer/mlp/train_mlp", "--data", "synthetic", "--hidden", s["hidden"], "--depth", s["depth"]]
        return ["trainer/gpt/train_gpt", "--layers", s["layers"], "--dim", s["dim"], "--heads", s["heads"], "--seq", s["seq"],
                "--sample", 1]

    def plan(self):
        s = self.shape
        if self.name == "gpt":
            return ["--layers", s["layers"], "--dim", s["dim"], "--heads", s["heads"], "--seq", s["seq"], "--vocabulary",
                    s["vocabulary"]]
        units = self.folder / "mlp.json"
        widths = [64] + [s["hidden"]] * (s["depth"] + 1) + [10]
        names = ["input"] + [f"hidden.{i}" for i in range(s["depth"])] + ["output"]
        units.write_text(json.dumps({"units": [
            {"name": name, "parameters": [{"name": "weight", "shape": [out, into]}, {"name": "bias", "shape": [out]}]}
            for name, into, out in zip(names, widths, widths[1:])]}))
        return ["--units", units]


def configurations():
    """Of each model twelve: (ranks, strategy, prefetch, micro-batches, processes)."""
    for model in ("mlp", "gpt"):
        for strategy in ("ddp", "zero1", "zero2", "fsdp"):
            yield model, 2, strategy, 1, 1, False
        yield model, 2, "fsdp", 0, 1, False
        yield model, 2, "fsdp", 2, 1, False
        yield model, 4, "ddp", 1, 1, False
        yield model, 4, "fsdp", 1, 1, False
        yield model, 1, "ddp", 1, 2, False
        yield model, 2, "ddp", 1, 4, False
        yield model, 2, "fsdp", 1, 4, False
        yield model, 2, "fsdp", 1, 1, True


def trained(model, ranks, strategy, prefetch, micro_batches, processes, trace, steps):
    first = 5
    options = ["--threads", 1, "--strategy", strategy, "--prefetch", prefetch, "--accumulate", micro_batches, "--batch",
               model.shape["batch"], "--steps", first + steps + 2, "--eval-every", 0, "--eval-batches", 1, "--quiet",
               "--trace", trace, "--trace-steps", f"{first}-{first + steps - 1}"]
    program = [model.build / model.train()[0], *model.train()[1:], *options]
    turns.run(["mpirun", "-n", ranks, *program] if processes else [*program, "--ranks", ranks], turns.OPEN_MPI)


def measured_step(trace):
    """The median distance of the ends of updates on rank 0's compute stream, in seconds."""
    ends = {}
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == 0 and event["args"].get("segment") == "update" and event["tid"] == 1:
            step = event["args"]["step"]
            ends[step] = max(ends.get(step, 0), event["ts"] + event["dur"])
    steps = sorted(ends)
    return statistics.median(ends[b] - ends[a] for a, b in zip(steps, steps[1:])) * 1e-6


def predicted_step(model, machine, profile, ranks, strategy, prefetch, micro_batches):
    out = turns.run([model.build / "tools/tessera", "plan", "--time", "--json", "--machine", machine, "--profile", profile,
                     *model.plan(), "--world", ranks, "--strategy", strategy, "--prefetch", prefetch, "--micro-batches",
                     micro_batches])
    return json.loads(out)["step_seconds"]


def profile_of(model, folder, rounds, steps):
    """The trace of one rank whose step is the median of the rounds'."""
    traces = [folder / f"{model.name}.{index}.profile.json" for index in range(rounds)]
    for trace in traces:
        trained(model, 1, "fsdp", 1, 1, False, trace, steps)
    return sorted(traces, key=measured_step)[rounds // 2]


def measure(build, folder, quick, seconds, rounds):
    models = {"mlp": Model("mlp", QUICK_MLP if quick else MLP, build, folder),
              "gpt": Model("gpt", QUICK_GPT if quick else GPT, build, folder)}
    steps = 6 if quick else 20
    machine = folder / "here.json"
    turns.run([build / "tools/tessera", "calibrate", machine, "--seconds", seconds])
    profiles = {name: profile_of(model, folder, rounds, steps) for name, model in models.items()}

    def step_of(configuration):
        name, *options = configuration
        trained(models[name], *options, folder / "trace.json", steps)
        return measured_step(folder / "trace.json")

    measured = turns.in_turns(rounds, configurations(), step_of)
    rows = []
    for (name, ranks, strategy, prefetch, micro_batches, processes), found in measured.items():
        rows.append((name, "MPI" if processes else "threads", ranks, strategy, prefetch, micro_batches,
                     predicted_step(models[name], machine, profiles[name], ranks, strategy, prefetch, micro_batches), found))
    return rows


def page(rows):
    text = "| model | ranks | strategy | prefetch | micro-batches | predicted, ms | measured, ms | of rounds | error |\n"
    text += "|---|---|---|--:|--:|--:|--:|--:|--:|\n"
    errors = []
    for name, kind, ranks, strategy, prefetch, micro_batches, predicted, found in rows:
        measured = statistics.median(found)
        error = predicted / measured - 1
        errors.append(abs(error))
        text += (f"| {name} | {ranks} {kind} | {strategy} | {prefetch} | {micro_batches} | {1e3 * predicted:.2f} | "
                 f"{1e3 * measured:.2f} | {1e3 * min(found):.2f} to {1e3 * max(found):.2f} | {100 * error:+.1f} % |\n")
    return (f"{len(rows)} configurations: mean error {100 * statistics.mean(errors):.1f} %, worst "
            f"{100 * max(errors):.1f} %\n\n{text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="small models and few steps: whether it runs, not how well")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=100, help="of calibration")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: one or more")
    with tempfile.TemporaryDirectory() as folder:
        seconds, rounds = (4, 1) if arguments.quick else (arguments.seconds, arguments.rounds)
        text = page(measure(arguments.build.resolve(), pathlib.Path(folder), arguments.quick, seconds, rounds))
    print(text, end="")


if __name__ == "__main__":
    main()
