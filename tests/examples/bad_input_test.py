#!/usr/bin/env python3
"""Bad input is one line on stderr that names the thing, and an exit code that is not zero. Never a crash, never a wait.

usage: bad_input_test.py TRAIN_MLP
"""
import json
import os
import pathlib
import struct
import sys
import tempfile

import bad_input
import trainer_runs
from bad_input import BAD_OPTIONS, FAILED

HUGE = "99999999999999999999999999"
SHORT = ["--steps", 2, "--hidden", 8, "--depth", 1, "--batch", 2, "--eval-every", 0]

COUNTS = ["--ranks", "--replicas", "--threads", "--batch", "--accumulate", "--steps", "--epochs", "--stop-after", "--hidden"]
COUNTS_FROM_ZERO = ["--depth", "--warmup", "--prefetch", "--eval-every", "--seed", "--test-delays"]
REALS = ["--lr", "--min-lr", "--weight-decay", "--clip", "--timeout", "--loss-scale"]
CHOICES = ["--device", "--backend", "--sums", "--strategy", "--precision", "--accumulate-mode", "--optimizer", "--reshard-after-forward"]
FLAGS = ["--quiet", "--test-poison", "--test-touch", "--test-queue"]
FILES = ["--metrics", "--dump-weights", "--init"]


def option_cases():
    """(options, words that the line must have). One command line reads them all: what no number is, one option of a kind is asked."""
    for value in ["-1", "abc", "", "1.5", "0x10", "1e3", " 1", "1 ", "+1", HUGE, "-" + HUGE, "nan", "--quiet"]:
        yield ["--ranks", value], ["--ranks"]
        yield [f"--ranks={value}"], ["--ranks"]
    for value in ["-1", "abc", "", "nan", "-nan", "inf", "-inf", "1e999", "-0.001", HUGE + "e9", "1,5"]:
        yield ["--lr", value], ["--lr"]
    for name in COUNTS + COUNTS_FROM_ZERO + REALS:
        yield [name, "-1"], [name]
    for name in COUNTS:
        yield [name, "0"], [name]
    for name in ["--clip", "--lr", "--loss-scale", "--outer-lr"]:
        yield [name, "1e-50"], [f"{name} 1e-50", "0 in fp32"]
    for value in ["", "FSDP", "0", " ddp", "ddp,fsdp"]:
        yield ["--strategy", value], ["--strategy"]
    for name in CHOICES:
        yield [name, "xyz"], [name]
    for name in COUNTS + COUNTS_FROM_ZERO + REALS + CHOICES + FILES + ["--data"]:
        yield [name], [name]  # no value
        value = {"--device": "cpu", "--backend": "auto", "--sums": "ranked", "--strategy": "ddp", "--precision": "fp32", "--accumulate-mode": "local", "--optimizer": "sgd",
                 "--reshard-after-forward": "no"}.get(name, "1")
        yield [name, value, name, value], [name, "twice"]
        yield [f"{name}={value}", name, value], [name, "twice"]
    for name in FLAGS:
        yield [name, name], [name, "twice"]
        yield [name + "=maybe"], [name]
    for name in FILES + ["--data"]:
        yield [name, ""], [name]
    yield ["--unknown"], ["--unknown"]
    yield ["--unknown", "3"], ["--unknown"]
    yield ["--rank", "3"], ["--rank"]  # no abbreviations
    yield ["surplus"], ["surplus"]
    yield ["-x"], ["-x"]
    yield ["--steps", "3", "--epochs", "1"], ["--steps", "--epochs"]
    yield ["--steps", "3", "--stop-after", "4"], ["--stop-after"]
    yield ["--steps", "3", "--warmup", "3"], ["--warmup"]
    yield ["--epochs", "1000000000"], ["--epochs"]
    yield ["--lr", "0.1", "--min-lr", "0.2"], ["--lr", "--min-lr"]
    whole_steps = ["--drop-last", "yes"]  # of which the data then has none
    yield [*whole_steps, "--batch", "16777216"], ["--batch", "--drop-last"]
    yield ([*whole_steps, "--ranks", "1024", "--batch", "16777216", "--accumulate", "65536"],
           ["--ranks", "--batch", "--accumulate"])
    yield ["--ranks", "1025"], ["--ranks"]
    for replicas in [3, 8, 16]:
        yield ["--ranks", "4", "--replicas", replicas], [f"--replicas {replicas} does not divide the 4 ranks"]
    yield ["--replicas", "2"], ["--replicas 2 does not divide the 1 rank"]
    for text, words in [("shard", '"shard" is no axis with its ranks'), ("rows=2", "there are replicate, shard"), ("shard=0", "--mesh: shard"),
                        ("shard=2,", '"" is no axis'), ("shard=2,shard=2", "shard is given twice")]:
        yield ["--mesh", text], [words]
    yield ["--mesh", "shard=2", "--replicas", "2"], ["--mesh and --replicas exclude each other"]
    yield ["--mesh", "replicate=2,shard=2", "--ranks", "3"], ["--mesh replicate 2 x shard 2 is of 4 ranks, and there are 3"]
    mesh = ["--ranks", "4", "--replicas", "2"]
    yield ["--ranks", "4", "--outer-every", "3"], ["--outer-every is for several replicas: add --replicas"]
    yield [*mesh, "--outer-lr", "0.5"], ["--outer-lr needs --outer-every"]
    yield [*mesh, "--outer-every", "3", "--strategy", "hfsdp"], ["use hsdp"]
    yield [*mesh, "--outer-every", "3", "--outer-lr", "0"], ["--outer-lr must be above 0"]
    yield [*mesh, "--outer-every", "3", "--outer-momentum", "1"], ["--outer-momentum"]
    yield [*mesh, "--outer-every", "3", "--outer-fragments", "4"], ["--outer-fragments 4 is above --outer-every 3"]
    yield ["--simulate-world", "512", "--replicas", "5"], ["--replicas 5 does not divide the 512 ranks"]
    yield ["--device", "cpu", "--backend", "nccl"], ["--backend", "--device cuda"]
    yield ["--sums", "fast"], ["--sums", "--backend nccl"]
    yield ["--device", "cpu", "--precision", "tf32"], ["--precision", "tf32"]
    yield ["--gather", "int4"], ['--gather: unknown type to travel in "int4": choose fp32, bf16, fp16 or int8']
    yield ["--precision", "bf16", "--gather", "fp16"], ["--gather fp16: parameters are bf16, which is no larger; take int8"]
    yield ["--simulate-world", "4", "--rank", "0", "--backend", "nccl"], ["--backend", "--simulate-world"]
    yield [*whole_steps, "--data", "synthetic", "--batch", "65537"], ["--batch"]


def too_large_cases():
    """Models that no machine of these days holds: refused, not killed."""
    for options in [["--hidden", 1048576, "--depth", 4096], ["--hidden", 1048576], ["--hidden", 300000, "--depth", 1]]:
        for strategy in ["ddp", "fsdp"]:
            yield [*options, "--strategy", strategy, "--ranks", 2, "--steps", 1, "--batch", 1], ["need", "per rank"]


def data_cases(folder):
    def file(name, content):
        path = folder / name
        path.write_bytes(content)
        return path

    lines = b"".join(b"%d,%d,%d\n" % (i, i * i % 7, i % 3) for i in range(40))
    yield folder / "missing.csv", []
    yield folder, ["directory"]
    yield "/dev/null", ["regular"]
    yield file("empty.csv", b""), ["empty"]
    yield file("blank.csv", b"\n\n\n"), ["empty"]
    yield file("header.csv", b"a,b,label\n" + lines), ["line 1"]
    yield file("ragged.csv", lines + b"1,2\n"), ["line 41"]
    yield file("longer.csv", lines + b"1,2,3,1\n"), ["line 41"]
    yield file("words.csv", lines + b"1,two,1\n"), ["line 41"]
    yield file("nan.csv", lines + b"1,nan,1\n"), ["line 41"]
    yield file("inf.csv", lines + b"1,1e999,1\n"), ["line 41"]
    yield file("label.csv", lines + b"1,2,-1\n"), ["line 41"]
    yield file("fraction.csv", lines + b"1,2,0.5\n"), ["line 41"]
    yield file("huge-label.csv", lines + b"1,2,999999999999\n"), ["line 41"]
    yield file("labels-only.csv", b"1\n2\n3\n"), ["line 1"]
    yield file("binary.csv", os.urandom(5000)), ["line"]
    yield file("zeros.csv", bytes(5000)), ["line 1"]
    yield file("gap.csv", lines + b"\n" + lines), ["line 41"]


def init_cases(folder, good):
    tensors = trainer_runs.read_safetensors(good)
    content = good.read_bytes()

    def tensors_file(name, changed):
        trainer_runs.write_safetensors(folder / name, changed)
        return folder / name

    def bytes_file(name, data):
        (folder / name).write_bytes(data)
        return folder / name

    def header_file(name, header, data=bytes(64)):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return bytes_file(name, struct.pack("<Q", len(text)) + text + data)

    def without(name):
        return {key: value for key, value in tensors.items() if key != name}

    shape, values = tensors["hidden.0.weight"]
    yield tensors_file("missing-tensor", without("hidden.0.weight")), ["hidden.0.weight", "missing"]
    yield tensors_file("more", {**tensors, "surplus": ([1], bytes(4))}), ["surplus"]
    yield tensors_file("renamed", {**without("output.bias"), "output.bais": tensors["output.bias"]}), ["output.bias"]
    yield tensors_file("flat", {**tensors, "hidden.0.weight": ([shape[0] * shape[1]], values)}), ["hidden.0.weight"]
    wrong = ([shape[0], shape[1] - 1], values[:4 * shape[0] * (shape[1] - 1)])
    yield tensors_file("narrow", {**tensors, "hidden.0.weight": wrong}), ["hidden.0.weight"]
    yield tensors_file("none", {}), ["input.weight"]
    yield folder / "missing-file", []
    yield folder, []
    yield "/dev/zero", []
    yield bytes_file("empty", b""), []
    yield bytes_file("short", content[:5]), []
    yield bytes_file("length-only", content[:8]), []
    yield bytes_file("cut-header", content[:40]), []
    yield bytes_file("cut-data", content[:-1]), []
    yield bytes_file("longer", content + b"\0"), []
    yield bytes_file("random", os.urandom(4096)), []
    yield bytes_file("huge-header", struct.pack("<Q", 2**63) + content[8:]), []
    yield bytes_file("largest-header", struct.pack("<Q", 2**64 - 1) + content[8:]), []
    yield header_file("no-json", b"{" * 64), []
    yield header_file("deep", b"[" * 200000), []
    yield header_file("deep-object", b'{"a":' * 100000), []
    yield header_file("array", []), []
    yield header_file("number", 3), []
    yield header_file("not-utf8", b'{"\xff\xfe": 1}'), []
    entry = {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}
    for name, change in {
        "beyond": {"data_offsets": [0, 2**40]}, "backwards": {"data_offsets": [64, 0]},
        "negative": {"data_offsets": [-64, 0]}, "wrapped": {"shape": [2**62, 4, 4], "data_offsets": [0, 64]},
        "overflow": {"shape": [2**63, 2**63]}, "negative-shape": {"shape": [-16]}, "text": {"shape": "16"},
        "fraction": {"shape": [16.0]}, "dtype": {"dtype": "F31"}, "no-offsets": {"data_offsets": []},
        "null": {"dtype": None},
    }.items():
        yield header_file("header-" + name, {"tensor": {**entry, **change}}), []
    yield header_file("twice", b'{"t":%s,"t":%s}' % (2 * (json.dumps(entry).encode(),))), []


def output_cases(folder):
    for name in ["--metrics", "--dump-weights"]:
        yield [name, folder / "no-folder" / "file"], "no-folder"
        yield [name, folder], str(folder)
        yield [name, "/proc/file"], "/proc/file"
        yield [name, folder / ("x" * 300)], "xxx"
    yield ["--dump-weights", "/dev/null"], "/dev/null"
    yield ["--metrics", "/dev/full", "--quiet"], "/dev/full"  # found out by writing
    yield ["--metrics", folder / "same", "--dump-weights", folder / "same"], "--metrics"
    # Nothing is there yet, and the names are not the same text.
    yield ["--metrics", folder / "same", "--dump-weights", f"{folder}/./same"], "are the same file"


def variable_cases():
    """(variables of a launcher, words that the line must have)"""
    for name in ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"]:
        for value in ["", "0x1", "-1", "1 2", HUGE]:
            yield {name: value}, [name, f'"{value}"']


def main(program):
    cases = bad_input.Cases(program)
    for variables, words in variable_cases():
        cases.check(SHORT, words, [BAD_OPTIONS, FAILED], variables)
    cases.check([*SHORT, "--replicas", 3], ["--replicas 3 does not divide the 4 ranks"], [BAD_OPTIONS],
                {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"})
    for options, words in option_cases():
        cases.check(options, words, [BAD_OPTIONS])
    for options, words in too_large_cases():
        cases.check(options, words, [FAILED])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for path, words in data_cases(folder):
            cases.check(["--data", path, "--ranks", 2, *SHORT], [path, *words], [FAILED])
        good = folder / "good.safetensors"
        trainer_runs.train(program, folder, *SHORT, "--dump-weights", good)
        for path, words in init_cases(folder, good):
            cases.check(["--init", path, "--ranks", 3, *SHORT], [path, *words], [FAILED])
        kept = good.read_bytes()
        cases.check(["--init", good, "--metrics", good, *SHORT], ["--metrics", good], [BAD_OPTIONS])
        cases.check(["--init", good, "--init-map", good, "--metrics", good, *SHORT], ["--metrics", good], [BAD_OPTIONS])
        cases.check(["--init-map", good, *SHORT], ["--init-map", "--init"], [BAD_OPTIONS])
        cases.check(["--init", good, "--init-map", good, *SHORT], [good, "JSON"], [FAILED])
        cases.check(["--init", good, "--init-map", good, "--dump-weights", good, *SHORT], ["--dump-weights", "--init-map"],
                    [BAD_OPTIONS])
        assert good.read_bytes() == kept, "a refused run changed a file"
        before = folder / "before.jsonl"
        before.write_text("of a run before\n", encoding="utf-8")
        cases.check(["--init", good, "--metrics", before, *SHORT[:2], "--hidden", 9], [good, "does not fit"], [FAILED])
        assert before.read_text(encoding="utf-8") == "of a run before\n", "a refused run emptied the metrics of another"
        for options, word in output_cases(folder):
            cases.check([*options, *SHORT], [word], [FAILED, BAD_OPTIONS])
        cases.check(["--lr", 1000, "--optimizer", "sgd", "--clip", 0, "--warmup", 0, "--steps", 200, "--eval-every", 0,
                     "--ranks", 2, "--quiet"], ["step ", "loss"], [FAILED])
    return cases.result()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
