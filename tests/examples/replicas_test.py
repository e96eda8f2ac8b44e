#!/usr/bin/env python3
"""--replicas: another mesh computes other bits; what people are told of it; a
checkpoint of one mesh is read by every other; and --outer-every, with which replicas train by themselves.

usage: replicas_test.py TRAIN_MLP
"""
import pathlib
import shutil
import sys
import tempfile

import bitwise_runs
import trainer_runs

MODEL = ["--hidden", 37, "--depth", 2, "--batch", 5, "--threads", 1, "--eval-every", 0, "--seed", 3, "--lr", 0.01]
FLAT = ["ddp", "zero1", "zero2", "fsdp"]
STRATEGIES = FLAT + ["hsdp", "hfsdp"]
RESHARDED = ["--reshard-after-forward", "group"]
CLIP = 0.02  # below every norm of these runs


def sharding(strategy, mesh):
    replicas, ranks = mesh
    return ["--strategy", strategy, "--ranks", replicas * ranks, "--replicas", replicas]


def check_order_of_sums(program):
    """The mesh sets the order of sums; that the strategy does not is the bitwise matrix's."""
    bits = {mesh: bitwise_runs.outcome(program, [*MODEL, "--steps", 16, *sharding("hsdp", mesh)], CLIP)
            for mesh in [(1, 4), (2, 2), (4, 1)]}
    assert bitwise_runs.difference(bits[1, 4], bits[2, 2]) is not None, "two pairs add up as four in a row do"
    assert bitwise_runs.difference(bits[1, 4], bits[4, 1]) is None, "replicas of one rank add up in a row"
    named = bitwise_runs.outcome(program, [*MODEL, "--steps", 16, "--strategy", "hsdp", "--mesh", "replicate=2,shard=2"], CLIP)
    assert bitwise_runs.difference(bits[2, 2], named) is None, "--mesh has the ranks and replicas that it names"
    inside = trainer_runs.run(program, *MODEL, "--steps", 2, "--mesh", "shard=2,replicate=2")
    assert inside.returncode == 0 and "hsdp" not in inside.stdout, inside.stdout + inside.stderr
    inside = trainer_runs.run(program, *MODEL, "--steps", 2, "--mesh", "shard=2,replicate=2", *RESHARDED)
    assert inside.returncode == 1 and "name the axes in another order" in inside.stderr, inside.stderr


def check_outer_steps(program):
    """Replicas that train by themselves: the same bits whatever the strategy, others than when they are summed in every
    step, and others with another rate, momentum or number of fragments."""
    common = [*MODEL, "--steps", 16]
    outer = ["--outer-every", 3, "--outer-fragments", 2]
    mesh = (2, 2)
    found = {strategy: bitwise_runs.outcome(program, [*common, *outer, *sharding(strategy, mesh)], CLIP)
             for strategy in FLAT + ["hsdp"]}
    for strategy, bits in found.items():
        parted = bitwise_runs.difference(found["ddp"], bits)
        assert parted is None, f"{strategy} with outer steps: {parted}"
    for other in [[], ["--outer-every", 3], [*outer, "--outer-lr", 0.5], [*outer, "--outer-momentum", 0.5]]:
        bits = bitwise_runs.outcome(program, [*common, *other, *sharding("ddp", mesh)], CLIP)
        assert bitwise_runs.difference(found["ddp"], bits) is not None, f"{other} changes nothing"
    done = trainer_runs.run(program, *common, *outer, *sharding("fsdp", mesh))
    assert "they meet every 3 steps, in 2 parts by turns, outer rate 1, momentum 0; strategy fsdp" in done.stdout, done.stdout
    return len(found)


def lines_of(text, name):
    return [line.split() for line in text.splitlines() if line.startswith(name)]


def planned(text, column):
    """The column of the table of bytes, by category."""
    begin = text.index("Bytes per rank")
    lines = [line for line in text[begin:].splitlines()[1:] if line and line[0].isalpha()]
    return [line[18 + 12 * column:30 + 12 * column].strip() for line in lines if not line.startswith("batches")]


def check_text(program):
    """The headline, notes on options without effect, and the table of bytes."""
    texts = {}
    for strategy in STRATEGIES:
        done = trainer_runs.run(program, *MODEL, "--steps", 2, *sharding(strategy, (2, 4)), "--prefetch", 2)
        assert done.returncode == 0 and not done.stderr, done.stderr
        texts[strategy] = done.stdout
        assert f"; 2 replicas of 4 ranks; strategy {strategy}" in done.stdout, done.stdout
        assert lines_of(done.stdout, "Bytes per rank") == [["Bytes", "per", "rank", *STRATEGIES, strategy, "measured"]]
        is_gathering = strategy in ["fsdp", "hsdp", "hfsdp"]
        assert ("--prefetch is without effect" in done.stdout) != is_gathering, done.stdout
        assert (f"strategy {strategy}, prefetch 2" in done.stdout) == is_gathering, done.stdout
        assert "note     with one replica" not in done.stdout, done.stdout
    for column, strategy in enumerate(STRATEGIES):  # what is planned for it, whichever runs
        columns = {tuple(planned(text, column)) for text in texts.values()}
        assert len(columns) == 1 and len(columns.pop()) >= 8, f"{strategy}: {columns}"
    for strategy in ["hsdp", "hfsdp"]:
        done = trainer_runs.run(program, *MODEL, "--steps", 2, "--ranks", 2, "--strategy", strategy)
        assert f"note     with one replica {strategy} is fsdp: --replicas makes several" in done.stdout, done.stdout
        assert lines_of(done.stdout, "Bytes per rank") == [["Bytes", "per", "rank", *FLAT, strategy, "measured"]]
        assert "replicas of" not in done.stdout, done.stdout
    for strategy, mesh in [("fsdp", (2, 2)), ("fsdp", (1, 2)), ("hsdp", (2, 2)), ("ddp", (2, 2))]:
        text = trainer_runs.run(program, *MODEL, "--steps", 2, *sharding(strategy, mesh), *RESHARDED).stdout
        assert ("resharded to each replica until backward" in text) == (strategy == "fsdp" and mesh == (2, 2)), text
        is_default = "--reshard-after-forward group is yes here" in text
        assert is_default == (strategy == "hsdp" or mesh == (1, 2)), text
        assert ("--reshard-after-forward is without effect" in text) == (strategy == "ddp"), text
    alone = trainer_runs.run(program, *MODEL, "--steps", 2, *sharding("hsdp", (2, 1)))
    assert "; 2 replicas of 1 rank; strategy hsdp" in alone.stdout, alone.stdout + alone.stderr


def tensors(checkpoint):
    return {file.name: trainer_runs.read_safetensors(file) for file in sorted(checkpoint.glob("*.safetensors"))}


def check_resumed(program, folder, saved_by):
    """Straight: 12 steps. Stopped after 7: on the same mesh the same steps follow, on others the same tensors are read."""
    common = [*MODEL, "--steps", 12]
    straight = trainer_runs.train(program, folder, *common, *sharding(*saved_by))
    saved = folder / "saved"
    trainer_runs.train(program, folder, *common, *sharding(*saved_by), "--checkpoint-dir", saved, "--stop-after", 7)
    expected = tensors(saved / "step-00000007")
    others = [("hsdp", (2, 2)), ("fsdp", (1, 4)), ("ddp", (4, 1)), ("hfsdp", (2, 2)), ("zero2", (2, 2))]
    for number, (strategy, mesh) in enumerate(others):
        copy = folder / str(number)
        shutil.copytree(saved, copy)
        steps = trainer_runs.train(program, folder, *common, *sharding(strategy, mesh), "--checkpoint-dir", copy, "--resume")
        assert [step["step"] for step in steps][-5:] == list(range(8, 13)), steps
        for mine, theirs in zip(steps[-5:], straight[-5:]):
            assert abs(mine["loss"] - theirs["loss"]) <= 1e-5 * theirs["loss"], (strategy, mesh)
            assert mesh != saved_by[1] or mine["loss_bits"] == theirs["loss_bits"], (strategy, mesh)
        assert tensors(copy / "step-00000007") == expected
        # The last step's checkpoint was written by this mesh, and is read by the one that saved first.
        again = trainer_runs.run(program, *MODEL, "--steps", 13, *sharding(*saved_by), "--checkpoint-dir", copy, "--resume")
        assert again.returncode == 0 and f"resume   from {copy / 'step-00000012'}" in again.stdout, again.stdout + again.stderr
    return len(others)


def check_resumed_apart(program, folder):
    """Stopped between two outer steps and gone on: the same bits, whatever the strategy."""
    mesh = (2, 2)
    outer = ["--outer-every", 5, "--outer-fragments", 2, "--outer-lr", 0.8, "--outer-momentum", 0.6]
    common = [*MODEL, "--steps", 16, "--precision", "fp16", *outer]
    straight = trainer_runs.train(program, folder, *common, *sharding("ddp", mesh), "--checkpoint-dir", folder / "straight")
    expected = tensors(folder / "straight" / "step-00000016")
    strategies = ["hsdp"] if trainer_runs.REDUCED else ["ddp", "zero2", "fsdp", "hsdp"]
    for strategy, stop in zip(strategies, [7, 5, 3, 11]):
        saved = folder / strategy
        trainer_runs.train(program, folder, *common, *sharding(strategy, mesh), "--checkpoint-dir", saved, "--save-async",
                           "--stop-after", stop)
        steps = trainer_runs.train(program, folder, *common, *sharding(strategies[0], mesh), "--checkpoint-dir", saved, "--resume")
        assert [step["step"] for step in steps][stop - 16:] == list(range(stop + 1, 17)), steps
        for mine, theirs in zip(steps[stop - 16:], straight[stop - 16:]):
            assert mine["loss_bits"] == theirs["loss_bits"], (strategy, mine["step"])
        assert tensors(saved / "step-00000016") == expected, strategy
    changed = trainer_runs.run(program, *MODEL, "--steps", 17, *sharding("hsdp", mesh), "--checkpoint-dir", folder / "straight",
                               "--resume")
    assert changed.returncode == 1 and "was written between outer steps of 2 replicas" in changed.stderr, changed.stderr
    return len(strategies)


def check_evaluated_apart(program, folder):
    """Between two outer steps an evaluation is of the weights that the run's file has, with every division of them."""
    weights = folder / "weights.safetensors"
    outer = ["--steps", 12, "--outer-every", 5, "--eval-batches", 0, "--dump-weights", weights]
    for strategy, mesh in [("ddp", (2, 2)), ("fsdp", (2, 2)), ("zero1", (3, 1))]:
        apart = trainer_runs.train(program, folder, *MODEL, *outer, *sharding(strategy, mesh))
        alone = trainer_runs.train(program, folder, *MODEL[:-1], 0, "--steps", 1, "--eval-batches", 0, "--init", weights)
        assert apart[-1]["accuracy"] == alone[-1]["accuracy"], (strategy, mesh, apart[-1], alone[-1])
        seldom = MODEL.index("--eval-every")
        often = trainer_runs.train(program, folder, *MODEL[:seldom + 1], 4, *MODEL[seldom + 2:], *outer, *sharding(strategy, mesh))
        assert [step["loss_bits"] for step in often] == [step["loss_bits"] for step in apart], "evaluating changes the training"


def main(program):
    check_order_of_sums(program)
    check_text(program)
    by_themselves = check_outer_steps(program)
    resumed = 0
    for saved_by in [("hsdp", (2, 2)), ("hfsdp", (2, 2))][:1 if trainer_runs.REDUCED else 2]:
        with tempfile.TemporaryDirectory() as folder:
            resumed += check_resumed(program, pathlib.Path(folder), saved_by)
    with tempfile.TemporaryDirectory() as folder:
        apart = check_resumed_apart(program, pathlib.Path(folder))
        check_evaluated_apart(program, pathlib.Path(folder))
    print(f"{by_themselves} runs with outer steps, 0 differ; {resumed} resumed on another mesh or strategy, {apart} between "
          "outer steps")


if __name__ == "__main__":
    main(sys.argv[1])
