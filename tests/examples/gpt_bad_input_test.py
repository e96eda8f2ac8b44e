#!/usr/bin/env python3
"""train_gpt's own options and files: bad input is one line on stderr that names the thing, and an exit code.

usage: gpt_bad_input_test.py TRAIN_GPT
"""
import pathlib
import struct
import sys
import tempfile

import bad_input
import trainer_runs
from bad_input import BAD_OPTIONS, FAILED

COUNTS = ["--layers", "--dim", "--heads", "--seq", "--vocabulary"]
REALS = ["--dropout", "--temperature"]
CHOICES = ["--activation-checkpointing", "--preset"]
TEXTS = ["--fp32-units", "--prompt", "--data"]
SMALL = ["--layers", 1, "--dim", 8, "--heads", 2, "--seq", 4]
SHORT = [*SMALL, "--steps", 2, "--batch", 2, "--eval-every", 0, "--threads", 1]


def option_cases():
    """(options, words that the line must have)"""
    for name in COUNTS + REALS + ["--sample"]:
        yield [name, "-1"], [name]
    for name in COUNTS:
        yield [name, "0"], [name]
    yield ["--dropout", "1"], ["--dropout"]
    for name in CHOICES:
        yield [name, "maybe"], [name]
    for name in COUNTS + REALS + CHOICES + TEXTS + ["--sample"]:
        value = {"--activation-checkpointing": "no", "--preset": "gpt2-124m"}.get(name, "1")
        yield [name], [name]  # no value
        yield [name, value if name != "--dropout" else "0.1"] * 2, [name, "twice"]
    for name in TEXTS:
        yield [name, ""], [name]
    yield ["--hidden", "3"], ["--hidden"]  # train_mlp's
    yield ["--dim", "100", "--heads", "3"], ["--dim", "--heads"]
    yield ["--preset", "gpt2-124m", "--heads", "7"], ["--dim", "--heads"]
    yield [*SMALL, "--fp32-units", "finale"], ["--fp32-units", "finale"]
    yield [*SMALL, "--fp32-units", "final,blocks.1"], ["--fp32-units", "blocks.1"]
    yield ["--batch", "16777216", "--seq", "1048576"], ["--batch", "--seq"]
    yield [*SMALL, "--drop-last", "yes", "--batch", "16777216"], ["--batch", "--drop-last"]
    yield ["--drop-last", "yes", "--ranks", "1024", "--batch", "8192"], ["--ranks", "--batch"]


def data_cases(folder):
    """(path, options, words)"""
    def file(name, content):
        (folder / name).write_bytes(content)
        return folder / name

    def words(name, ids):
        return file(name, struct.pack(f"<{len(ids)}H", *ids))

    yield folder / "missing.txt", [], ["no such file"]
    yield folder, [], ["directory"]
    yield "/dev/null", [], ["regular"]
    yield file("empty.txt", b""), [], ["empty"]
    yield file("empty.bin", b""), [], ["empty"]
    yield file("short.txt", b"abc"), [], ["too few"]
    yield file("odd.bin", bytes(999)), [], ["byte 998"]
    yield words("beyond.bin", [1] * 300 + [50] + [1] * 300), ["--vocabulary", 50], ["byte 600", "50"]
    yield file("latin.txt", 300 * b"a" + b"\xe9" + 300 * b"a"), ["--vocabulary", 128], ["byte 300", "233"]


def check_unread_text(program, text):
    done = trainer_runs.run(program, "--data", text, *SHORT, "--vocabulary", 128, "--sample", 0, "--prompt", "\u00e9",
                            "--temperature", 1)
    assert done.returncode == 0, done.stderr
    for name in ["--prompt", "--temperature"]:
        assert f"note     {name} is without effect" in done.stdout, done.stdout


def main(program):
    cases = bad_input.Cases(program)
    for options, words in option_cases():
        cases.check(options, words, [BAD_OPTIONS])
    for strategy in ["ddp", "fsdp"]:
        for options in [["--layers", 1024, "--dim", 32768], ["--preset", "gpt2-1558m", "--layers", 1024]]:
            cases.check([*options, "--strategy", strategy, "--ranks", 2, "--steps", 1, "--batch", 1], ["per rank"],
                        [FAILED])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for path, options, words in data_cases(folder):
            cases.check(["--data", path, "--ranks", 2, *SHORT, *options], [path, *words], [FAILED])
        ids = folder / "ids.bin"
        ids.write_bytes(struct.pack("<600H", *range(600)))
        cases.check(["--data", ids, *SHORT, "--sample", 5], ["--sample", "ids.bin"], [BAD_OPTIONS])
        cases.check(["--data", ids, *SHORT, "--metrics", ids], ["--metrics", ids], [BAD_OPTIONS])
        text = folder / "ascii.txt"
        text.write_bytes(b"to be or not to be " * 60)
        cases.check(["--data", text, *SHORT, "--vocabulary", 128, "--sample", 5, "--prompt", "to b\u00e9"],
                    ["--prompt", "195", "128 ids of --vocabulary"], [BAD_OPTIONS])
        check_unread_text(program, text)
        weights = folder / "weights.safetensors"
        trainer_runs.train(program, folder, *SHORT, "--dump-weights", weights)
        for option, word in [(["--layers", 2], "blocks.1"), (["--seq", 5], "wpe.weight")]:
            changed = list(map(str, SHORT))
            changed[changed.index(option[0]) + 1] = option[1]
            cases.check([*changed, "--init", weights, "--ranks", 2], [weights, word], [FAILED])
    return cases.result()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
