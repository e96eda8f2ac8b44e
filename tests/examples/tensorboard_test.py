#!/usr/bin/env python3
"""The files of --tensorboard: records with right checksums, the figures of --metrics step by step, also after a resume; and
TensorBoard's own reader agrees, where a Python has it.

usage: tensorboard_test.py TRAIN_MLP     TESSERA_TENSORBOARD_PYTHON: a Python with PyPI's tensorboard, if not this one
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import trainer_runs

MODEL = ["--hidden", 19, "--depth", 2, "--batch", 5, "--threads", 1, "--ranks", 3, "--steps", 12, "--eval-every", 5]
READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
"""


def masked(data):
    crc = trainer_runs.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(content):
    while content:
        (length,) = struct.unpack_from("<Q", content)
        assert struct.unpack_from("<I", content, 8)[0] == masked(content[:8])
        data = content[12:12 + length]
        assert struct.unpack_from("<I", content, 12 + length)[0] == masked(data)
        yield data
        content = content[16 + length:]


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """(number, value) of a message of protocol buffers."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        else:
            form, size = {1: ("<d", 8), 5: ("<f", 4)}[kind]
            value, at = struct.unpack_from(form, data, at)[0], at + size
        yield number, value


def events_of(path):
    return [dict(fields(data)) for data in records(path.read_bytes())]


def scalars(folder):
    """{tag: [[step, value]]} of all files in their order; a start makes later steps of earlier ones forgotten."""
    result = {}
    for path in sorted(folder.iterdir()):
        first, *events = events_of(path)
        assert first[3] == b"brain.Event:2" and first[1] > 1.7e9, first
        for event in events:
            if 7 in event:
                assert dict(fields(event[7])) == {1: 1}, event
                result = {tag: [pair for pair in pairs if pair[0] < event[2]] for tag, pairs in result.items()}
                continue
            for number, value in fields(event[5]):
                assert number == 1
                of = dict(fields(value))
                result.setdefault(of[1].decode(), []).append([event[2], of[2]])
    return result


def flat(step, prefix=""):
    for key, value in step.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)):
            yield prefix + key, struct.unpack("<f", struct.pack("<f", value))[0]


def expected(steps):
    result = {}
    for step in steps:
        for tag, value in flat({key: value for key, value in step.items() if key not in ("step", "memory")}):
            result.setdefault(tag, []).append([step["step"], value])
    return result


def tensorboard_python():
    for python in filter(None, (os.environ.get("TESSERA_TENSORBOARD_PYTHON"), sys.executable)):
        if subprocess.run([python, "-c", "import tensorboard"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def check_with_tensorboard(folder, drawn):
    python = tensorboard_python()
    if python is None:
        print("no Python here has tensorboard: its reader was not asked")
        return
    done = subprocess.run([python, "-c", READER, str(folder)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == drawn
    print("TensorBoard's reader finds the same")


def check_run(program, folder):
    steps = trainer_runs.train(program, folder, *MODEL, "--metrics-per-rank", "--tensorboard", folder / "new" / "run")
    drawn = scalars(folder / "new" / "run")
    assert drawn == expected(steps), (drawn, steps)
    assert {"loss", "lr", "accuracy", "ranks/step_seconds/max_rank", "ranks/waiting_seconds/median"} <= drawn.keys(), drawn.keys()
    assert len(drawn["loss"]) == 12 and [step for step, _ in drawn["accuracy"]] == [5, 10, 12]
    check_with_tensorboard(folder / "new" / "run", drawn)
    plain = trainer_runs.train(program, folder, *MODEL)
    assert [step["loss_bits"] for step in plain] == [step["loss_bits"] for step in steps], "ranks' figures change no bit"


def check_resumed_run(program, folder):
    """Killed after a checkpoint: the steps behind it are taken, and drawn, again."""
    options = [*MODEL, "--checkpoint-dir", folder / "checkpoints", "--tensorboard", folder / "events", "--save-every", 4]
    trainer_runs.train(program, folder, *options, "--stop-after", 8)
    for path in (folder / "checkpoints").iterdir():  # as if it had ended while it saved the second one
        if path.name.endswith("8"):
            path.rename(path.with_name(path.name + ".tmp"))
    steps = trainer_runs.train(program, folder, *options, "--resume")
    assert len(list((folder / "events").iterdir())) == 2
    drawn = scalars(folder / "events")
    assert drawn == expected(steps) and len(drawn["loss"]) == 12, (drawn, steps)
    check_with_tensorboard(folder / "events", drawn)


def check_errors(program, folder):
    (folder / "file").write_text("")
    for options, words in [(["--metrics-per-rank"], "--metrics-per-rank needs --metrics or --tensorboard"),
                           (["--tensorboard", folder / "file"], f"{folder}/file"),
                           (["--metrics-per-rank", "--metrics", folder / "m", "--simulate-world", 4], "does not go with --simulate-world")]:
        done = trainer_runs.run(program, *options, "--steps", 1)
        assert done.returncode != 0 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert (folder / "file").read_text() == ""


def main():
    program = sys.argv[1]
    assert trainer_runs.crc32c(b"123456789") == 0xE3069283
    for check in (check_run, check_resumed_run, check_errors):
        with tempfile.TemporaryDirectory() as folder:
            check(program, pathlib.Path(folder))


main()
