#!/usr/bin/env python3
"""--offload: what stands in the host's memory or on disk changes no bit, planned bytes are measured there too, and a run goes on from
the one place to the other.

usage: offload_test.py TRAIN_MLP
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import bitwise_runs
import process_runs
import trainer_runs
from launched import Ranks

MODEL = ["--hidden", 37, "--depth", 2, "--batch", 16, "--threads", 1, "--eval-every", 0, "--seed", 3]
STRATEGIES = ["ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"]
DISK = ["--offload-to", f"disk:{tempfile.gettempdir()}"]
AHEAD = ["--offload", "optimizer,masters,update,ahead"]
FOR_GOOD = ["--offload", "optimizer,masters,update,ahead-for-good"]
OFFLOADS = {"fp32": [["--offload", "optimizer"], ["--offload", "optimizer", *DISK], ["--offload", "activations"]],
            "bf16": [["--offload", "masters"], ["--offload", "optimizer,masters"], ["--offload", "optimizer,masters,update"],
                     AHEAD, ["--offload", "optimizer,masters,update,ahead,activations"],
                     ["--offload", "masters,optimizer", "--offload-units", 1], [*DISK, "--offload", "optimizer,masters"]]}
CLIP = 0.02  # below every norm of these runs


def check_bits(program):
    runs = 0
    for number, strategy in enumerate(STRATEGIES):
        ranks = ["--ranks", 4, "--replicas", 2] if number % 2 or number > 2 else ["--ranks", 3]
        pairs = [("fp32", "sgd"), ("bf16", "adamw"), ("fp32", "adamw"), ("bf16", "sgd")]
        for precision, optimizer in pairs[:2 if trainer_runs.REDUCED else 4]:
            options = [*MODEL, "--steps", 80, "--strategy", strategy, *ranks, "--precision", precision, "--optimizer", optimizer,
                       "--lr", 0.3 if optimizer == "sgd" else 0.01]
            if precision == "bf16" and number % 3 == 1:
                options += ["--gather", "int8", "--wire", "int8"]
            reference = bitwise_runs.outcome(program, options, CLIP)
            for offload in OFFLOADS[precision][number % 3::3] if trainer_runs.REDUCED else OFFLOADS[precision]:
                parted = bitwise_runs.difference(reference, bitwise_runs.outcome(program, [*options, *offload], CLIP))
                assert parted is None, f"{strategy} {precision} {optimizer} {offload}: {parted}"
                runs += 1
    return runs


def check_updates_ahead(program):
    """No step is clipped, and every one has all its samples."""
    options = [*MODEL, "--ranks", 3, "--precision", "bf16", "--steps", 200, "--warmup", 20, "--drop-last", "yes"]
    reference, *others = (bitwise_runs.outcome(program, [*options, *more], 0) for more in ([], AHEAD, FOR_GOOD))
    for ahead in others:
        parted = bitwise_runs.difference(reference, ahead)
        assert parted is None, parted
    short = options[:-2]
    narrow = ["fp16" if option == "bf16" else option for option in options]
    for more, words in [(short, "take --drop-last yes"), (options, "say --clip 0"), ([*narrow, "--clip", 0], "say --loss-scale")]:
        refused = trainer_runs.run(program, *more, *FOR_GOOD)
        assert refused.returncode == 2 and words in refused.stderr, refused
    done = trainer_runs.run(program, *options, *FOR_GOOD, "--clip", CLIP)
    assert done.returncode == 1 and "was updated ahead of the norm" in done.stderr, done


def device_bytes(program, *options):
    with tempfile.TemporaryDirectory() as folder:
        (rank,) = trainer_runs.train(program, folder, *options, "--steps", 1)[-1]["memory"]["ranks"]
    bitwise_runs.check_memory([rank])
    return rank["categories"]["activations"]["planned"]


def check_activations_leave(program):
    """What stands on the device does not grow with the layers."""
    deep = ["--hidden", 300, "--batch", 200, "--threads", 1, "--eval-every", 0]
    moved = [device_bytes(program, *deep, "--depth", depth, "--offload", "activations") for depth in (6, 12)]
    kept = [device_bytes(program, *deep, "--depth", depth) for depth in (6, 12)]
    assert moved[0] == moved[1] and moved[0] < kept[0] < kept[1], (moved, kept)


def check_resuming(program):
    """Stopped on the device and resumed on the host, and the other way round."""
    options = [*MODEL, "--ranks", 3, "--strategy", "zero2", "--precision", "bf16", "--steps", 12]
    on_host = ["--offload", "optimizer,masters"]
    on_disk = [*on_host, *DISK]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)

        def weights_of(name, *more):
            step = trainer_runs.train(program, folder, *options, *more, "--dump-weights", folder / name)[-1]
            for rank in step["memory"]["ranks"]:
                assert ("offloaded" in rank["categories"]) == ("--offload" in more and "--offload-to" not in more), rank
                assert ("on_disk" in rank["categories"]) == ("--offload-to" in more), rank
            return (folder / name).read_bytes()

        straight = weights_of("straight")
        there = ["--offload", "optimizer,masters,update"]
        for number, (first, then) in enumerate([([], on_host), (there, []), (on_disk, there)]):
            saved = folder / str(number)
            trainer_runs.train(program, folder, *options, *first, "--checkpoint-dir", saved, "--stop-after", 5)
            assert weights_of(f"resumed{number}", *then, "--checkpoint-dir", saved, "--resume") == straight, (first, then)
            shutil.rmtree(saved)


def files_of(process):
    """What the process has open, by name."""
    for entry in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            yield os.readlink(entry)
        except OSError:
            pass  # it was closed meanwhile


def check_nothing_is_left(program):
    """The file has no name while it is used, so a kill leaves nothing."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*MODEL, "--steps", 1000000, "--ranks", 2, "--offload", "optimizer", "--offload-to", f"disk:{folder}"]
        with subprocess.Popen([program, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                end = time.monotonic() + 60
                while sum(name.startswith(folder) and name.endswith("(deleted)") for name in files_of(process)) < 2:
                    assert process.poll() is None and time.monotonic() < end, "no file of a rank's without a name"
                    time.sleep(0.05)
                assert os.listdir(folder) == []
            finally:
                process.kill()
        assert os.listdir(folder) == []


def check_processes(program):
    """Ranks that are processes have the bits of threads, and where one is killed all end and leave nothing."""
    options = [*MODEL, "--steps", 12, "--ranks", 3, "--precision", "bf16"]
    reference = bitwise_runs.outcome(program, options, CLIP)
    for offload in [AHEAD, [*DISK, "--offload", "optimizer,masters"]]:
        by_processes = bitwise_runs.outcome(program, [*options, *offload], CLIP, process_runs.trained_by("torchrun", None))
        assert bitwise_runs.difference(reference, by_processes) is None, offload
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*MODEL, "--steps", 1000000, "--quiet", "--offload", "optimizer", "--offload-to", f"disk:{folder}"]
        with Ranks([program, *map(str, arguments)], 2) as job:
            end = time.monotonic() + 60
            while not all(any(name.startswith(folder) for name in files_of(rank)) for rank in job.processes.values()):
                assert not any(map(job.has_ended, job.processes)) and time.monotonic() < end, job.output(0)
                time.sleep(0.05)
            job.processes[1].kill()
            codes, _ = job.wait(trainer_runs.SECONDS)
            assert codes == {0: 1, 1: -9} and "rank 1" in job.output(0), (codes, job.output(0))
        assert os.listdir(folder) == []


def check_words(program):
    done = trainer_runs.run(program, *MODEL, "--steps", 2, "--precision", "bf16", "--offload", "optimizer,masters",
                            "--offload-units", 2)
    assert "the optimizer's states and masters of the first 2 units in the host's memory" in done.stdout, done.stdout
    done = trainer_runs.run(program, *MODEL, "--steps", 2, "--precision", "bf16", "--offload", "update,optimizer,masters")
    assert "states and masters in the host's memory, updated there" in done.stdout, done.stdout
    for options, words in [
            (["--offload", "parameters"], "--offload takes none, or optimizer, masters, update, ahead, ahead-for-good and activations"),
            (["--offload", "optimizer,"], "--offload takes none, or optimizer, masters, update, ahead, ahead-for-good and activations"),
            (["--offload", "optimizer,update"], "write optimizer,masters,update"),
            (["--offload", "optimizer,masters,ahead"], "write optimizer,masters,update,ahead"),
            (["--offload", "optimizer,masters,update,ahead,ahead-for-good"], "ahead or ahead-for-good once"),
            (["--offload", "optimizer,masters,update", *DISK], "leave --offload-to at host"),
            (["--offload", "masters"], "--precision bf16"),
            (["--offload", "optimizer,optimizer"], "--offload names optimizer twice"),
            (["--offload-units", 3], "--offload-units needs --offload"),
            (["--offload", "none", "--offload-units", 3], "--offload-units needs --offload"),
            (["--offload", "none", *DISK], "--offload-to needs --offload"),
            (["--offload", "activations", *DISK], "activations go to the host's memory"),
            (DISK, "--offload-to needs --offload"),
            (["--offload", "optimizer", "--offload-to", "disk:"], "--offload-to takes host, or disk: and a folder"),
            (["--offload", "optimizer", "--offload-to", "tape:x"], "--offload-to takes host, or disk: and a folder")]:
        done = trainer_runs.run(program, *MODEL, "--steps", 2, *options)
        assert done.returncode == 2 and words in done.stderr, (options, done.returncode, done.stderr)
    for options, words in [(["--offload-to", "disk:/nowhere/at/all"], "/nowhere/at/all: no file for values on disk"),
                           (["--offload-units", 5000], "offload.units is 5000, and the model has")]:
        done = trainer_runs.run(program, *MODEL, "--steps", 2, "--offload", "optimizer", *options)
        assert done.returncode == 1 and words in done.stderr, done


def main(program):
    runs = check_bits(program)
    check_updates_ahead(program)
    check_activations_leave(program)
    check_resuming(program)
    check_nothing_is_left(program)
    check_processes(program)
    check_words(program)
    print(f"{runs} runs have the bits of those on the device")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
