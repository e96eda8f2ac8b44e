#!/usr/bin/env python3
"""Whether loader threads keep a rank busy: steps of train_vision on folders of pictures, with more and more of them, and what of
a step the rank waits for its images.

usage: loader.py BUILD [PAGE.md] [--threads 1,2,3] [--rounds N] [--images N] [--batch N]

Pictures are PNG files of 320 x 240 that are made here, decoded, scaled and cut when a batch wants them. Two networks look at
them: a small one, whose steps take less than decoding their images, and ResNet-18, whose steps take longer. A rank computes on
one thread. Runs take turns, `rounds` times, and medians count. Without PAGE.md the table is printed.
"""
import argparse
import datetime
import itertools
import os
import pathlib
import random
import struct
import tempfile
import zlib

import turns

HEIGHT, WIDTH = 240, 320
WARM_UP = 3  # steps at the beginning, while batches that were made ahead are taken
NETWORKS = {"cnn": ["--model", "cnn", "--width", 8, "--image-size", 64],
            "resnet18": ["--model", "resnet18", "--width", 32, "--image-size", 128]}


def png(chance):
    """The bytes of a file: a ramp with noise, which compresses as a photograph does, by about a half."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    noise = chance.randbytes(WIDTH * 3)
    lines = b"".join(b"\0" + bytes((noise[(x + 7 * y) % len(noise)] & 15) + (x // 3 + y) % 240 for x in range(WIDTH * 3))
                     for y in range(HEIGHT))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", WIDTH, HEIGHT, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(lines, 6)) + chunk(b"IEND", b""))


def write_pictures(folder, count):
    """As many files, of a few different contents: what is decoded counts, not what is shown."""
    chance = random.Random(1)
    contents = [png(chance) for _ in range(8)]
    for part, files in [("train", count), ("val", 2)]:
        for number in range(files):
            path = pathlib.Path(folder, part, f"class{number % 2}", f"{number}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents[number % len(contents)])


def run(options, folder, network, threads):
    """(seconds of the median step, of its loader wait)"""
    _, steps = turns.trained([options.build / "vision/trainer/train_vision", "--data", f"folder:{folder}", *NETWORKS[network], "--threads", 1,
                              "--batch", options.batch, "--loader-threads", threads, "--epochs", 1, "--eval-every", 0, "--metrics-per-rank",
                              "--quiet"])
    return turns.medians((step["step_seconds"], step["ranks"]["loader_seconds"]["median"]) for step in steps[WARM_UP:])


def lines(options, found):
    yield f"# Loader threads and a rank's step, {datetime.date.today():%Y-%m-%d}\n"
    yield (f"`python3 bench/loader.py build` on {os.cpu_count()} cores: `train_vision` on PNG files of {WIDTH} x {HEIGHT}, one rank "
           f"that computes on one thread, {options.batch} images a step, the median of {options.rounds} runs. The wait is the part of a "
           "median step in which the rank stands still because its images are not there yet.\n")
    yield "| network | loader threads | step, ms | wait for images, ms | share |\n|---|--:|--:|--:|--:|"
    for (network, threads), (step, wait) in found.items():
        yield f"| {network} | {threads} | {1e3 * step:.1f} | {1e3 * wait:.2f} | {100 * wait / step:.1f} % |"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("page", nargs="?", type=pathlib.Path)
    parser.add_argument("--threads", type=turns.numbers, default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=480)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(folder, options.images)
        runs = turns.in_turns(options.rounds, itertools.product(NETWORKS, options.threads), lambda case: run(options, folder, *case))
    found = {case: turns.medians(rounds) for case, rounds in runs.items()}
    text = "\n".join(lines(options, found)) + "\n"
    if options.page:
        options.page.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
