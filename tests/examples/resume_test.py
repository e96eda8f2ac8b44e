#!/usr/bin/env python3
"""A run that was stopped and resumed takes the steps of one that was not, to the bit; and on other ranks, with another
strategy, it goes on from the same tensors.

usage: resume_test.py TRAIN_GPT TRAIN_MLP TESSERA

Straight: 40 steps. Stopped after 17, in the middle of an epoch, and resumed: losses, norms and weights of the steps after
it must be the straight run's, with dropout on, for each strategy, precision and way to accumulate.
"""
import itertools
import json
import os
import pathlib
import shutil
import sys
import tempfile

import trainer_runs

STOP, STEPS = 17, 40
TEXT = b"To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 24
# 182 sequences of 11 tokens: an epoch ends after step 24 to 81 of these runs, or after step 15, 30 and so on of the largest.
GPT = ["--layers", 2, "--dim", 15, "--heads", 3, "--seq", 11, "--batch", 2, "--dropout", 0.1, "--lr", 0.01, "--seed", 3,
       "--threads", 1, "--eval-every", 7, "--sample", 0, "--clip", 0.2]
MLP = ["--hidden", 13, "--depth", 2, "--batch", 5, "--threads", 1, "--seed", 3]
BITS = ["step", "loss_bits", "grad_norm_bits", "lr", "held_out_loss_bits", "accuracy", "loss_scale", "skipped"]


def runs():
    strategies = ["ddp", "zero1", "zero2", "fsdp"]
    accumulations = [(1, "reduced"), (3, "reduced"), (3, "local")]
    product = list(itertools.product(strategies, ["fp32", "bf16", "fp16"], accumulations))
    chosen = product[::14 if trainer_runs.SANITIZED else 5 if trainer_runs.REDUCED else 1]
    # Ranks and the way to save take turns.
    for number, (strategy, precision, (micro, mode)) in enumerate(chosen):
        extra = ["--save-async"] if number % 2 else []
        options = ["--strategy", strategy, "--precision", precision, "--accumulate", micro, "--accumulate-mode", mode]
        yield options, [1, 2, 3, 4][number % 4], extra


def bits(steps):
    return [{name: step.get(name) for name in BITS} for step in steps]


def check_resumed(program, model, folder, options, ranks, saving):
    """The straight run's steps after STOP, and its weights, are the resumed run's. Returns the folder of checkpoints."""
    folder.mkdir()
    common = [*model, *options, "--ranks", ranks, "--steps", STEPS]
    straight = trainer_runs.train(program, folder, *common, "--dump-weights", folder / "straight.safetensors")
    saved = [*common, *saving, "--checkpoint-dir", folder / "saved"]
    first = trainer_runs.train(program, folder, *saved, "--stop-after", STOP)
    # The same metrics file: the steps before stay, those after are added.
    every = trainer_runs.train(program, folder, *saved, "--resume", "--dump-weights", folder / "resumed.safetensors")
    label = " ".join(map(str, [*options, ranks, *saving]))
    assert bits(first)[:STOP - 1] == bits(straight)[:STOP - 1], label
    assert bits(every)[STOP:] == bits(straight)[STOP:], f"{label}: steps after {STOP} differ"
    assert [step["step"] for step in every] == list(range(1, STEPS + 1)), label
    weights = [trainer_runs.read_safetensors(folder / name) for name in ("straight.safetensors", "resumed.safetensors")]
    assert weights[0] == weights[1], f"{label}: weights differ"
    assert bits(every)[STOP] != bits(every)[STOP - 1], label
    return folder / "saved"


def without(options, name):
    place = options.index(name)
    return options[:place] + options[place + 2:]


def tensors(checkpoint):
    return {file.name: trainer_runs.read_safetensors(file) for file in sorted(checkpoint.glob("*.safetensors"))}


def check_elsewhere(program, tessera, folder, text):
    """Saved on 4 ranks and loaded by others: the same bytes again, and training that goes on within rounding."""
    folder.mkdir()
    saved = folder / "saved"

    def job(ranks):  # 84 samples a step, whoever takes them
        return [*without(GPT, "--batch"), "--data", text, "--steps", STEPS, "--batch", 84 // ranks, "--ranks", ranks]

    trainer_runs.train(program, folder, *job(4), "--strategy", "zero1", "--checkpoint-dir", saved, "--stop-after", STOP)
    straight = trainer_runs.train(program, folder, *job(4), "--strategy", "zero1")
    expected = tensors(saved / f"step-{STOP:08}")
    manifest = (saved / f"step-{STOP:08}" / "manifest.json").read_bytes()
    farthest = 0.0
    for ranks, strategy in [(1, "fsdp"), (2, "ddp"), (3, "zero2"), (7, "fsdp")]:
        copy = folder / f"on-{ranks}"
        shutil.copytree(saved, copy)
        steps = trainer_runs.train(program, folder, *job(ranks), "--strategy", strategy, "--checkpoint-dir", copy, "--resume")
        assert [step["step"] for step in steps] == list(range(1, STEPS + 1))  # those before it from the run before
        for mine, theirs in zip(steps[STOP:], straight[STOP:]):
            farthest = max(farthest, abs(mine["loss"] - theirs["loss"]) / theirs["loss"])
        assert tensors(copy / f"step-{STOP:08}") == expected
        assert (copy / f"step-{STOP:08}" / "manifest.json").read_bytes() == manifest
        done = trainer_runs.run(tessera, "checkpoint", "verify", copy / f"step-{STEPS:08}")
        assert done.returncode == 0, done.stderr
    assert farthest < 1e-5, f"losses part by {farthest}"
    return farthest


def check_words(program, folder, text):
    """What a person is told, and what is refused."""
    folder.mkdir()
    saved = folder / "saved"
    base = [*GPT, "--data", text, "--steps", 6, "--checkpoint-dir", saved]
    longer = [*without(without(without(base, "--steps"), "--seed"), "--dim"), "--resume", "--steps", 9]
    done = trainer_runs.run(program, *base, "--resume", "--save-every", 2, "--keep", 2, "--stop-after", 5)
    assert done.returncode == 0, done.stderr
    assert f"no checkpoint in {saved}: this run starts afresh" in done.stdout, done.stdout
    assert sorted(path.name for path in saved.iterdir()) == [".lock", "step-00000004", "step-00000005"]
    assert f"saved    {saved / 'step-00000004'}" in done.stdout and "checkpoints" in done.stdout
    again = trainer_runs.run(program, *base)
    assert again.returncode == 2 and "add --resume" in again.stderr and "step 5" in again.stderr, again.stderr
    assert trainer_runs.run(program, *base, "--resume").returncode == 0
    finished = trainer_runs.run(program, *base, "--resume")
    assert finished.returncode == 0 and "nothing is left to train" in finished.stdout, finished.stdout
    other = trainer_runs.run(program, *longer, "--dim", 15, "--seed", 4)
    assert other.returncode == 1 and "seed" in other.stderr, other.stderr
    wider = trainer_runs.run(program, *longer, "--dim", 18, "--seed", 3)
    assert wider.returncode == 1 and "does not fit the model" in wider.stderr, wider.stderr
    reversed_text = folder / "reversed.txt"
    reversed_text.write_bytes(pathlib.Path(text).read_bytes()[::-1])
    changed = trainer_runs.run(program, *without(longer, "--data"), "--data", reversed_text, "--dim", 15, "--seed", 3)
    assert changed.returncode == 1 and "--data of the fingerprint" in changed.stderr, changed
    for option in (["--resume"], ["--keep", 3], ["--save-every", 3], ["--save-async"]):
        refused = trainer_runs.run(program, *GPT, "--data", text, *option)
        assert refused.returncode == 2 and f"{option[0]} needs --checkpoint-dir" in refused.stderr, refused.stderr
    alias = (saved / "step-00000006" / "model.safetensors").read_bytes()
    length = int.from_bytes(alias[:8], "little")
    metadata = json.loads(alias[8:8 + length])["__metadata__"]
    assert metadata["lm_head.weight"] == "embedding.wte.weight", metadata


def damaged(saved, copy, damage):
    """A copy of a run's folder, in which `damage` was called with the newest checkpoint."""
    shutil.copytree(saved, copy)
    damage(max(copy.glob("step-*")))
    return copy


def cut_off(checkpoint):
    file = checkpoint / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)


def flip(checkpoint):
    file = checkpoint / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def make_newer(checkpoint):
    """As a later Tessera would write it: its own checksum is right."""
    text = (checkpoint / "manifest.json").read_bytes().replace(b'"version": 1', b'"version": 2')[:-32]
    (checkpoint / "manifest.json").write_bytes(text + f'"manifest_crc32c": "{trainer_runs.crc32c(text):08x}"\n}}\n'.encode())


def make_unreadable(checkpoint):
    (checkpoint / "manifest.json").unlink()
    (checkpoint / "manifest.json").symlink_to("manifest.json")


def check_damaged(program, folder, text):
    """What exists and cannot be used is an error that names it; skipped where that was asked for, and never removed."""
    folder.mkdir()
    base = [*GPT, "--data", text, "--quiet"]
    saved = folder / "saved"
    done = trainer_runs.run(program, *base, "--steps", 5, "--stop-after", 4, "--save-every", 2, "--checkpoint-dir", saved)
    assert done.returncode == 0 and not done.stderr, done.stderr
    for damage, words in [(cut_off, "cut off"), (flip, "do not match the manifest's checksum"),
                          (make_newer, "written by a newer version of Tessera"), (make_unreadable, "cannot be opened")]:
        copy = damaged(saved, folder / damage.__name__, damage)
        options = [*base, "--steps", 5, "--keep", 1, "--checkpoint-dir", copy]
        before = sorted(path.name for path in copy.iterdir())
        refused = trainer_runs.run(program, *options, "--resume")
        assert refused.returncode == 1 and words in refused.stderr and "step-00000004" in refused.stderr, refused.stderr
        assert damage is flip or "--resume=skip-damaged" in refused.stderr, refused.stderr
        assert sorted(path.name for path in copy.iterdir()) == before
        new = trainer_runs.run(program, *options)
        assert new.returncode == 2 and "step 4" in new.stderr, new.stderr
        skipped = trainer_runs.run(program, *options, "--resume=skip-damaged", "--stop-after", 3)
        assert skipped.returncode == 0 and "step-00000004: is skipped" in skipped.stderr, skipped.stderr
        # A flipped bit shows when a block is read: until then it is a checkpoint like any other, and newer.
        assert sorted(path.name for path in copy.iterdir()) == [".lock", "step-00000003", "step-00000004"]
    alone = damaged(saved, folder / "alone", cut_off)
    shutil.rmtree(alone / "step-00000002")
    none = trainer_runs.run(program, *base, "--steps", 5, "--checkpoint-dir", alone, "--resume=skip-damaged")
    assert none.returncode == 1 and "none of its checkpoints can be used" in none.stderr, none.stderr
    heads = trainer_runs.run(program, *without(base, "--heads"), "--heads", 5, "--steps", 5, "--checkpoint-dir", saved,
                             "--resume")
    assert heads.returncode == 1 and "was saved with --heads 3, and this run has --heads 5" in heads.stderr, heads.stderr
    wrong = trainer_runs.run(program, *base, "--resume=all", "--checkpoint-dir", saved)
    assert wrong.returncode == 2 and "--resume=skip-damaged" in wrong.stderr, wrong.stderr


def check_failed_saves(program, folder, text):
    """Each is told on stderr, also under --quiet, and training goes on; the last one decides how the run ends."""
    folder.mkdir()
    base = [program, *GPT, "--data", text, "--quiet", "--steps", 4, "--save-every", 2, "--checkpoint-dir", folder / "saved"]
    # 48 KiB are enough for nothing but the manifest.
    limited = ["bash", "-c", 'ulimit -f 48; exec "$@"', "limited", *map(str, base)]
    done = trainer_runs.run(*limited)
    told = [line for line in done.stderr.splitlines() if "a checkpoint was not saved" in line]
    assert done.returncode == 1 and len(told) == 2, done.stderr
    assert all(str(folder / "saved") in line and "File too large" in line for line in told), done.stderr
    assert "the last checkpoint was not saved" in done.stderr, done.stderr


def main(gpt, mlp, tessera):
    with tempfile.TemporaryDirectory() as root:
        root = pathlib.Path(root)
        text = root / "text.txt"
        text.write_bytes(TEXT)
        count = 0
        for options, ranks, saving in runs():
            check_resumed(gpt, [*GPT, "--data", text], root / str(count), options, ranks, saving)
            count += 1
        if trainer_runs.OF_THREADS:  # the rest is files and words
            return
        for optimizer in ("sgd", "adamw", "adamw8bit", "muon"):
            check_resumed(mlp, MLP, root / optimizer, ["--optimizer", optimizer], 3, [])
            count += 1
        farthest = check_elsewhere(gpt, tessera, root / "elsewhere", text)
        check_words(gpt, root / "words", text)
        check_damaged(gpt, root / "damaged", text)
        check_failed_saves(gpt, root / "failed", text)
    print(f"{count} runs resumed, 0 differ; on other ranks losses part by at most {farthest:.2g}")


if __name__ == "__main__":
    main(*sys.argv[1:4])
