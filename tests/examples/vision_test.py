#!/usr/bin/env python3
"""train_vision on small images that are made up: it learns, on any number of ranks alike; what it writes; a run that is
stopped and resumed; wrong options and damaged files.

usage: vision_test.py TRAIN_VISION
"""
import pathlib
import re
import struct
import sys
import tempfile
import zlib

import bad_input
import bitwise_runs
import made_images
import trainer_runs

TOLERANCE = 1e-5
KEYS = {"accuracy", "top5_accuracy", "held_out_loss", "held_out_samples"}


def check_learning(program, data):
    with tempfile.TemporaryDirectory() as folder:
        steps = trainer_runs.train(program, folder, "--data", data, "--ranks", 2, "--width", 8, "--batch", 10, "--epochs", 6)
    told = [step for step in steps if "accuracy" in step]
    assert len(told) == 6 and all(KEYS <= step.keys() for step in told), told
    last = told[-1]
    assert last["held_out_samples"] == 90 and last["accuracy"] > 0.9, last
    assert last["top5_accuracy"] >= last["accuracy"] and last["held_out_loss"] < 0.5 * told[0]["held_out_loss"], told
    print(f"learned: {last['accuracy']:.3f}")


def check_ranks(program, data):
    """A step's images are the same, so losses and what is told are, too: without batch norm, whose moments are a rank's."""
    outcomes = []
    for ranks in [1, 2, 4]:
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(trainer_runs.train(
                program, folder, "--data", data, "--ranks", ranks, "--batch", 12 // ranks, "--width", 8, "--steps", 40,
                "--shift", 2, "--flip", "yes", "--cutout", 3, "--label-smoothing", 0.1, "--threads", 1))
    for steps in outcomes[1:]:
        distance = max(abs(a["loss"] - b["loss"]) / a["loss"] for a, b in zip(outcomes[0], steps, strict=True))
        print(f"distance of losses: {distance:.1e}")
        assert distance <= TOLERANCE, distance
        assert steps[-1]["accuracy"] == outcomes[0][-1]["accuracy"], (steps[-1], outcomes[0][-1])


def weights_after(program, folder, name, *options):
    path = pathlib.Path(folder) / f"{name}.safetensors"
    steps = trainer_runs.train(program, folder, *options, "--dump-weights", path)
    return [step["loss_bits"] for step in steps], trainer_runs.read_safetensors(path)


def check_offloaded_activations(program, data):
    """What stages leave to their backward windows goes to the host's memory and comes back, with the same bits."""
    for model, width in [("cnn", 8), ("resnet18", 4), ("vit-s", 192)]:
        for precision in ["fp32", "bf16"]:
            options = ["--data", data, "--model", model, "--width", width, "--ranks", 2, "--batch", 6, "--steps", 3, "--accumulate", 2,
                       "--precision", precision, "--threads", 1]
            with tempfile.TemporaryDirectory() as folder:
                here = weights_after(program, folder, "here", *options)
                there = weights_after(program, folder, "there", *options, "--offload", "activations")
                assert here == there, (model, precision, here[0], there[0])
                ranks = [trainer_runs.train(program, folder, *options, *more)[-1]["memory"]["ranks"]
                         for more in ([], ["--offload", "activations"])]
            for kept, moved in zip(*ranks, strict=True):
                bitwise_runs.check_memory([kept, moved])
                if model == "cnn":
                    continue  # two stages, which have a slot each
                kept, moved = (rank["categories"]["activations"]["planned"] for rank in (kept, moved))
                assert moved < kept, (model, precision, moved, kept)


def png(pixels, height, width):
    """The bytes of a PNG of [height, width, 3]."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    lines = b"".join(b"\0" + pixels[3 * width * y:3 * width * (y + 1)] for y in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))


def check_folder(program):
    """Red and blue images of many sizes. A build without libpng says so."""
    with tempfile.TemporaryDirectory() as folder:
        for part, count in [("train", 24), ("val", 9)]:
            for name, colour in [("red", bytes([220, 30, 40])), ("blue", bytes([30, 40, 220]))]:
                directory = pathlib.Path(folder, part, name)
                directory.mkdir(parents=True)
                for number in range(count):
                    height, width = 9 + number % 5, 8 + number % 7
                    (directory / f"{number}.png").write_bytes(png(colour * (height * width), height, width))
        data = ["--data", f"folder:{folder}", "--image-size", 8, "--width", 4]
        few = trainer_runs.run(program, *data, "--samples", 8, "--batch", 8, "--epochs", 40, "--eval-every", 0, "--lr", 0.01)
        among = trainer_runs.run(program, *data, "--plot", f"{folder}/train/red/confusion.svg")
        large = trainer_runs.run(program, "--data", f"folder:{folder}", "--image-size", 4096, "--width", 4096, "--batch", 2**24)
        done = trainer_runs.run(program, *data, "--ranks", 2, "--batch", 4,
                                "--epochs", 10, "--lr", 0.01, "--loader-threads", 2)
    if "libpng" in done.stderr:
        assert done.returncode == 1, done
        return
    assert done.returncode == 0, done.stderr
    assert "8 images of 8 x 8 x 3" in few.stdout and "top-1 100.00 %" in few.stdout, few  # of both classes
    assert among.returncode == 2 and "--plot would stand among the files of --data" in among.stderr, among
    assert large.returncode == 2 and "more than 1099511627776 numbers in a micro-batch" in large.stderr, large
    assert "48 images of 8 x 8 x 3 to train on, 18 held out; 2 classes" in done.stdout, done.stdout
    assert "top-1 100.00 %" in done.stdout and "top-5" not in done.stdout, done.stdout


def check_resume(program, data):
    """With batch norm: its moments are in the checkpoint, and those of a short last step count."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--data", data, "--model", "resnet18", "--width", 4, "--ranks", 3, "--batch", 7, "--samples", 101,
                   "--steps", 12, "--shift", 1, "--flip", "yes"]
        losses, whole = weights_after(program, folder, "whole", *options, "--checkpoint-dir", f"{folder}/whole")
        checkpoints = ["--checkpoint-dir", f"{folder}/parts"]
        first, _ = weights_after(program, folder, "first", *options, *checkpoints, "--stop-after", 7)
        _, resumed = weights_after(program, folder, "rest", *options, *checkpoints, "--resume")
        assert first == losses[:7], (first, losses)
        other = trainer_runs.run(program, "--data", data.replace("mnist:", "fashion-mnist:", 1), *options[2:], *checkpoints,
                                 "--resume")
        assert other.returncode == 1, other
        assert "was saved with --data mnist, and this run has --data fashion-mnist" in other.stderr, other.stderr
        assert resumed == whole, "the resumed run has other weights"


def check_synchronised_norms(program, data):
    """The losses are those of one rank with the same images, also where a rank has fewer or none in the last step."""
    options = ["--data", data, "--model", "resnet18", "--width", 8, "--optimizer", "sgd", "--lr", 0.01]
    for batch, samples, rank_counts in [(24, 300, [2, 4]), (21, 95, [3, 7])]:
        found = {}
        for ranks in [1, *rank_counts]:
            with tempfile.TemporaryDirectory() as folder:
                steps = trainer_runs.train(program, folder, *options, "--samples", samples, "--steps", 7, "--ranks", ranks,
                                           "--batch", batch // ranks, "--sync-batch-norm")
            found[ranks] = [step["loss"] for step in steps]
            apart = max(abs(a - b) for a, b in zip(found[1], found[ranks]))
            assert len(found[ranks]) == 7 and apart < 1e-5, (samples, ranks, found[1], found[ranks])
    with tempfile.TemporaryDirectory() as folder:
        steps = trainer_runs.train(program, folder, *options, "--samples", 300, "--steps", 7, "--ranks", 4, "--batch", 6)
    alone = [step["loss"] for step in steps]
    assert alone[-1] != found[1][-1], "norms of each rank's own images change nothing"


def check_words(program, data):
    done = trainer_runs.run(program, "--data", data, "--ranks", 2, "--batch", 16, "--width", 4, "--epochs", 1, "--confusion")
    assert done.returncode == 0, done.stderr
    assert re.search(r"held-out loss [\d.]+, top-1 [\d.]+ %, top-5 [\d.]+ %", done.stdout), done.stdout
    table = done.stdout.split("taken most often for\n")[1].splitlines()[:10]
    assert sum(int(re.match(r"\d +(\d+)", line).group(1)) for line in table) == 90, table
    with tempfile.TemporaryDirectory() as folder:
        figure = pathlib.Path(folder) / "confusion.svg"
        done = trainer_runs.run(program, "--data", data, "--batch", 16, "--width", 4, "--epochs", 1, "--quiet", "--plot", figure)
        assert done.returncode == 0 and not done.stdout, done
        drawn = figure.exists() and "taken for" in figure.read_text(encoding="utf-8")
    assert drawn != ("warning: --plot" in done.stderr and "matplotlib" in done.stderr), done  # one or the other
    done = trainer_runs.run(program, "--data", data, "--ranks", 3, "--batch", 7, "--check-data")
    assert done.returncode == 0, done.stderr
    assert "epoch 1: 300 of 300 images, 0 of them more than once" in done.stdout, done.stdout
    dealt = re.findall(r"rank (\d+) +(\d+) images, the first ([\d ]+)", done.stdout)
    assert sum(int(count) for _, count, _ in dealt) == 300 and len(dealt) == 3, dealt
    firsts = [first.split() for _, _, first in dealt]
    assert all(len(first) == 5 for first in firsts) and len(set(sum(firsts, []))) == 15, firsts


def check_cifar(program):
    with tempfile.TemporaryDirectory() as folder:
        made_images.write_cifar10(folder, [30, 20], 12)
        done = trainer_runs.run(program, "--data", f"cifar10:{folder}", "--ranks", 2, "--batch", 5, "--width", 4, "--epochs", 1,
                                "--model", "resnet18")
    assert done.returncode == 0, done.stderr
    assert "cifar10: 50 images of 32 x 32 x 3 to train on, 12 held out; 10 classes" in done.stdout, done.stdout


def learning_rates(program, data, *options):
    with tempfile.TemporaryDirectory() as folder:
        return [step["lr"] for step in trainer_runs.train(program, folder, "--data", data, "--width", 2, "--batch", 2,
                                                          "--steps", 20, *options)]


def check_scaled_rate(program, data):
    for optimizer, times in [("sgd", 4.0), ("adamw", 2.0)]:
        rates = learning_rates(program, data, "--optimizer", optimizer, "--lr", 0.01, "--ranks", 2, "--accumulate", 2,
                               "--scale-lr")
        assert abs(rates[3] - times * 0.01) < 1e-6 and abs(rates[0] - times * 0.01 / 4) < 1e-6, rates  # 20 / 5 steps up


def check_bad_input(program, data):
    cases = bad_input.Cases(program)
    options, failed = [bad_input.BAD_OPTIONS], [bad_input.FAILED]
    cases.check(["--data", "imagenet"], ["imagenet", "fashion-mnist", "cifar100"], options)
    cases.check(["--data", data, "--plot", "figure.pdf"], ["--plot figure.pdf", ".svg or .png"], options)
    short = ["--data", data, "--width", 2, "--batch", 8, "--steps", 1]
    cases.check([*short, "--plot", "/nowhere/x.svg"], ["/nowhere/x.svg: cannot be written"], failed)
    cases.check([*short, "--plot", "/nowhere/x.svg", "--metrics", "/nowhere/./x.svg"], ["--metrics and --plot are the same"],
                options)
    for drawn in [["--plot", "x.svg"], ["--confusion"]]:
        cases.check([*short, "--simulate-world", 4, *drawn], [drawn[0], "--simulate-world"], options)
    cases.check(["--data", "cifar10"], ["--data cifar10:DIR"], options)
    cases.check(["--data", "mnist:/nowhere"], ["/nowhere/train-images-idx3-ubyte"], failed)
    cases.check(["--data", data, "--batch", 400, "--drop-last", "yes"], ["--batch 400", "300"], options)
    cases.check(["--data", data, "--label-smoothing", 1.5], ["--label-smoothing"], options)
    cases.check(["--data", data, "--model", "vgg"], ["vgg", "resnet18"], options)
    cases.check(["--data", data, "--model", "vit-s", "--width", 200, "--batch", 8], ["200", "3 heads"], failed)
    with tempfile.TemporaryDirectory() as folder:
        made_images.write_mnist(folder, 20, 10, side=3)
        cases.check(["--data", f"mnist:{folder}", "--batch", 4], ["4 x 4"], failed)
        images = next(pathlib.Path(folder).glob("train-images-*"))
        cases.check(["--data", f"mnist:{folder}", "--metrics", images], ["--metrics would overwrite the file of --data", str(images)],
                    options)
        pathlib.Path(folder, "t10k-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8b damaged")
        cases.check(["--data", f"mnist:{folder}", "--batch", 4], ["t10k-labels-idx1-ubyte.gz"], failed)
    assert cases.result() == 0


def main():
    (program,) = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        made_images.write_mnist(folder, 300, 90)
        data = f"mnist:{folder}"
        check_learning(program, data)
        check_ranks(program, data)
        check_resume(program, data)
        check_synchronised_norms(program, data)
        check_offloaded_activations(program, data)
        if trainer_runs.OF_THREADS:  # the rest is files and words
            return 0
        check_words(program, data)
        check_scaled_rate(program, data)
        check_bad_input(program, data)
    check_cifar(program)
    check_folder(program)
    return 0


if __name__ == "__main__":
    sys.exit(main())
