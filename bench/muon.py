#!/usr/bin/env python3
"""Muon beside AdamW: what an update costs by mesh, beside the products of the rank that has most of them. (Losses: losses.py.)

The cost is the update's from its first operation to its last, on rank 0, in a traced run of each; products are what the busiest rank
does in `transform`. With one thread a rank, on as many cores as ranks: beyond that, ranks share cores, and times say nothing.

usage: muon.py BUILD [--quick] [--beside OTHER]    BUILD: the build directory

--beside: one of another commit, in turns; prints the least time that one rank takes in `transform`, on one thread and on two.
"""
import argparse
import pathlib
import statistics

import turns

WIDTHS, THREADS, ROUNDS = (64, 128, 256, 384), (1, 2), 5  # of --beside
MESHES = [(1, "fsdp"), (2, "ddp"), (2, "zero2"), (2, "fsdp")]
WARM_UP = 3  # steps at the beginning that do not count


def model(quick):
    return turns.words({"--layers": 1, "--dim": 64, "--heads": 2, "--seq": 32, "--batch": 2} if quick else {
        "--layers": 4, "--dim": 384, "--heads": 6, "--seq": 128, "--batch": 8})


def update_times(build, optimizer, ranks, strategy, quick, threads=1, shape=None, pick=statistics.median, steps=10):
    """Medians (or what else `pick` takes) over steps: (seconds of the update on rank 0, seconds of `transform` on the busiest rank, seconds of redistributions there)."""
    steps = 6 if quick else steps
    events = turns.traced([build / "trainer/gpt/train_gpt", "--sample", 0, *(shape or model(quick)), "--ranks", ranks, "--threads", threads, "--strategy",
                           strategy, "--optimizer", optimizer, "--steps", steps, "--eval-every", 0, "--clip", 1, "--quiet", "--trace-steps",
                           f"{WARM_UP}-{steps}"])
    kinds, spans = {}, {}
    for event in events:
        about = event.get("args", {})
        if "dur" not in event or "kind" not in about:
            continue
        key = (event["pid"], about["step"])
        kinds.setdefault(key, {}).setdefault(about["kind"], 0.0)
        kinds[key][about["kind"]] += event["dur"] / 1e6
        if about["kind"] in ("optimize", "transform", "redistribute", "apply"):
            begin, end = spans.get(key, (event["ts"], 0.0))
            spans[key] = (min(begin, event["ts"]), max(end, event["ts"] + event["dur"]))
    update = pick((end - begin) / 1e6 for (rank, _), (begin, end) in spans.items() if rank == 0)
    busiest = {}
    for (rank, step), seconds in kinds.items():
        busiest.setdefault(step, []).append((seconds.get("transform", 0.0), seconds.get("redistribute", 0.0)))
    most = [max(each) for each in busiest.values()]
    return update, pick(products for products, _ in most), pick(moved for _, moved in most)


def costs(given):
    print("| ranks, strategy | update with AdamW, ms | with Muon, ms | of that products, ms | redistributions, ms | Muon's own over products |\n"
          "|---|--:|--:|--:|--:|--:|")
    for ranks, strategy in MESHES:
        adamw, _, _ = update_times(given.build, "adamw", ranks, strategy, given.quick)
        muon, products, moved = update_times(given.build, "muon", ranks, strategy, given.quick)
        print(f"| {ranks}, {strategy} | {1e3 * adamw:.1f} | {1e3 * muon:.1f} | {1e3 * products:.1f} | {1e3 * moved:.1f} | "
              f"{(muon - adamw) / products:.2f} |")


def beside(given):
    def measure(case):
        width, threads = case
        shape = turns.words({"--layers": 1 if given.quick else 4, "--dim": width, "--heads": width // 32, "--seq": 32, "--batch": 1})
        return tuple(update_times(build, "muon", 1, "fsdp", given.quick, threads, shape, min, 40 if width < 200 else 10)[1]
                     for build in (given.build, given.beside))

    cases = [(width, threads) for width in (WIDTHS[:1] if given.quick else WIDTHS) for threads in THREADS]
    print("| width of the GPT | threads | before, ms | now, ms | before / now |\n|--:|--:|--:|--:|--:|")
    for (width, threads), rounds in turns.in_turns(1 if given.quick else ROUNDS, cases, measure).items():
        now, before = (min(times) for times in zip(*rounds))
        print(f"| {width} | {threads} | {1e3 * before:.2f} | {1e3 * now:.2f} | {before / now:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--beside", type=pathlib.Path)
    given = parser.parse_args()
    (beside if given.beside else costs)(given)


if __name__ == "__main__":
    main()
