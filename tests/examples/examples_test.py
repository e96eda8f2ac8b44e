#!/usr/bin/env python3
"""What the short examples promise, on several numbers of ranks; and what they promise of any example: to be short, to end well,
to say nothing on stderr, and to refuse what they do not know.

usage: examples_test.py PROGRAM
"""
import math
import pathlib
import re
import sys
import tempfile

import trainer_runs

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def lines_of(program, *options):
    """The lines that the example prints."""
    done = trainer_runs.run(program, *options)
    assert done.returncode == 0 and not done.stderr, f"{options}: {done.stdout}{done.stderr}"
    return done.stdout.splitlines()


def text_of(program, ranks):
    return "\n".join(lines_of(program, "--ranks", ranks)) + "\n"


def wrap_your_module(program, ranks):
    """The example of the guide's first page learns its sine."""
    losses = [float(text) for text in re.findall(r"loss (\S+)", text_of(program, ranks))]
    assert max(losses[1:]) < 0.05, "an untrained model's loss is about 0.5"
    return f"loss {losses[0]} to {losses[-1]}"


def trainer_of_your_own(program, ranks):
    """A user's own trainer learns, and what the shared trainer brings works in it: metrics, and a run that is resumed takes the
    steps of one that was not stopped, bit by bit."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def figures(file, figure, *options):
            lines_of(program, "--ranks", ranks, "--metrics", folder / file, *options)
            return [step[figure] for step in trainer_runs.read_metrics(folder / file)]

        losses = figures("all.jsonl", "loss")
        assert abs(losses[0] - 0.6931) < 1e-3 and losses[-1] < 0.5 * losses[0], f"{losses[0]} to {losses[-1]}"
        short = ["--steps", 40, "--batch", 7]
        saving = [*short, "--checkpoint-dir", folder / "run", "--save-every", 20]
        whole = figures("whole.jsonl", "loss_bits", *short)
        figures("parts.jsonl", "loss_bits", *saving, "--stop-after", 20)
        assert figures("parts.jsonl", "loss_bits", *saving, "--resume") == whole
    return f"loss {losses[0]} to {losses[-1]}"


def accumulation(program, ranks):
    """Four micro-batches learn what one batch four times as large learns, in both modes; only mode `local` holds sums."""
    text = text_of(program, ranks)
    differences = [float(value) for value in re.findall(r"largest difference of a loss (\S+)", text)]
    # Sums of losses and gradients are formed in another order.
    assert len(differences) == 2 and 0 <= max(differences) < 1e-5, differences
    runs = re.findall(r"(\d+) x +\d+ rows, (\w+) +loss (\S+) to (\S+) .* (\d+)$", text, re.MULTILINE)
    assert [run[:2] for run in runs] == [("1", "automatic"), ("4", "reduced"), ("4", "local")], runs
    assert all(float(last) < 0.01 < 0.1 < float(first) for _, _, first, last, _ in runs), runs
    held = [int(run[4]) for run in runs]
    assert held[0] == held[1] == 0 < held[2], held
    return f"losses differ by {max(differences)} at most"


def activation_checkpointing(program, ranks):
    """Checkpointing holds one block's inner activations instead of all, opens a window more per block, and changes no bit."""
    blocks, rows, width, inner = 8, 16, 24, 96
    inputs = 4 * (blocks + 1) * rows * width  # bytes that both keep
    text = text_of(program, ranks)
    runs = re.findall(r"activations +(\d+) bytes  windows per step (\d+)  (loss (\S+) to (\S+))$", text, re.MULTILINE)
    assert [int(run[0]) - inputs for run in runs] == [4 * blocks * rows * inner, 4 * rows * inner], text
    assert [int(run[1]) for run in runs] == [2 * blocks, 3 * blocks], text
    assert runs[0][2] == runs[1][2] and float(runs[0][4]) < 0.5 * float(runs[0][3]), text
    assert "losses and weights have the same bits: yes" in text, text
    return f"{runs[0][0]} and {runs[1][0]} bytes, {runs[0][2]}"


def ema_optimizer(program, ranks):
    """The average of the weights is better than the last of them, and has the same bits with every strategy."""
    first, *others = lines_of(program, "--ranks", ranks)
    weights, average = map(float, re.fullmatch(r"error of the weights (\S+), of their average (\S+)", first).groups())
    assert average < 0.01 < weights, first
    assert others == [f"{strategy}: the same bits" for strategy in ["zero1", "zero2", "fsdp"]], others
    return first


def inspect_gradients(program, ranks):
    """Norms of the parameters are those of their elements and add up to the step's; noise from a hook is the same everywhere."""
    lines = lines_of(program, "--ranks", ranks)
    norms = dict(re.fullmatch(r"(\S+) +norm (\S+)", line).groups() for line in lines[:4])
    assert list(norms) == ["hidden.weight", "hidden.bias", "output.weight", "output.bias"], lines
    total, step = map(float, re.fullmatch(r"all +norm (\S+), the step's (\S+)", lines[4]).groups())
    assert math.isclose(math.hypot(*map(float, norms.values())), step, rel_tol=1e-4), lines
    assert math.isclose(total, step, rel_tol=1e-4) and step > 0.01, lines
    elements = list(map(float, lines[5].split()[1:]))
    assert len(elements) == 16 and math.isclose(math.hypot(*elements), float(norms["hidden.weight"]), rel_tol=1e-2), lines
    assert lines[6:] == ["with noise: other weights, and the same ones with ddp"], lines
    return f"norm {step}"


TYPES = {"fp32": "fp32", "bf16_mixed": "bf16", "fp16_mixed": "fp16"}


def check_policy(name, text, ranks):
    """Returns the last loss."""
    # One rank's gradient is its own sum: nothing travels, and it keeps its type.
    wires = {"hidden": TYPES[name], "output": "fp32"} if ranks > 1 else {"hidden": "-", "output": "-"}
    sums = TYPES[name] if ranks == 1 else "fp32"
    hidden = rf"^hidden +{TYPES[name]} +{TYPES[name]} +{wires['hidden']} +{sums} +fp32 +32 "
    assert re.search(hidden, text, re.MULTILINE), text
    assert re.search(rf"^output +fp32 +fp32 +{wires['output']} +fp32 +fp32 +17 ", text, re.MULTILINE), text
    assert f"step 1000 overflowed on one rank, skipped on {ranks}\n" in text, text
    steps = re.findall(r"^step +(\d+)  loss (\S+)  scale (\S+)  skipped so far (\d+)$", text, re.MULTILINE)
    assert [step[0] for step in steps] == ["500", "1000", "1500"], text
    (_, _, before, skipped), (_, _, after, skipped_after), (_, loss, last, _) = steps
    assert int(skipped_after) == int(skipped) + 1, text
    # 65536 is too large for the first gradients already; the overflow halves what was found.
    expected = (float(before) / 2 if name == "fp16_mixed" else 1.0)
    assert float(after) == float(last) == expected, text
    assert (int(skipped) > 0) == (name == "fp16_mixed"), text
    return float(loss)


def mixed_precision(program, ranks):
    """16-bit training follows fp32, the table names the types, and an overflow on one rank is skipped on all."""
    parts = re.split(r"^(fp32|bf16_mixed|fp16_mixed)\b.*\n", text_of(program, ranks), flags=re.MULTILINE)[1:]
    losses = {name: check_policy(name, part, ranks) for name, part in zip(parts[::2], parts[1::2])}
    assert losses.keys() == TYPES.keys(), losses
    assert max(losses.values()) < 0.03 and max(losses.values()) < 1.1 * min(losses.values()), losses
    return losses


PAGE = 4096  # categories are rounded up to pages
TABLE, STAGE = 4 * 29 * 64, 4 * 64 * 64  # bytes in fp32


def check_bytes(frozen, trained, ranks):
    """One shard of the stage more for gradients, two for AdamW; masters and slots are there from the beginning."""
    for category, states in [("gradients", 1), ("optimizer", 2)]:
        added = trained[category] - frozen[category]
        assert abs(added - states * STAGE / ranks) <= PAGE, f"{category} {frozen} {trained}"
        assert abs(frozen[category] - states * TABLE / ranks) <= PAGE + states * 4 * 128, frozen
    assert ("parameter_slots" in frozen) == (ranks > 1), frozen  # one rank reads masters
    for category in ["parameters", "accumulation"] + ["parameter_slots"] * (ranks > 1):
        assert abs(trained[category] - frozen[category]) <= PAGE, f"{category} {frozen} {trained}"


def tied_and_frozen(program, ranks):
    """A tied table learns; a frozen stage costs no gradient and no state; thawed, it learns on from the same weights."""
    lines = lines_of(program, "--ranks", ranks)
    held = [{name: int(count) for name, count in re.findall(r"(\w+) (\d+)", line.split(":")[1])}
            for line in lines if line.startswith("bytes per rank")]
    assert len(held) == 2, lines
    check_bytes(*held, ranks)
    losses = [float(value) for value in re.findall(r"loss (\S+)", "\n".join(lines))]
    assert losses[0] > 3.0, "29 tokens, and nothing learned yet: the logarithm of 29"
    assert losses[2] < 2.0, "the tied table alone learns"
    assert losses[4] < 0.5 and losses[4] < losses[2], "and more with the stage"
    return f"loss {losses}"


def model(program, ranks):
    """Models that ask more of the runtime than a chain: the same weights under every strategy, and they learn."""
    name, lines = pathlib.Path(program).name, lines_of(program, "--ranks", ranks)
    assert [line.split()[0] for line in lines] == ["ddp", "zero1", "zero2", "fsdp"], lines
    weights = {re.search(r"weights (\w{16}) ", line)[1] for line in lines}
    assert len(weights) == 1, f"strategies differ: {lines}"
    line = lines[-1]
    if name == "running_statistics":
        right, differed = int(re.search(r"(\d+) of 6 right", line)[1]), float(re.search(r"differed by (\S+)", line)[1])
        assert right == 6, line
        assert (differed > 0) == (ranks > 1), f"every rank has statistics of its own until they are synchronised: {line}"
    else:
        for first, last in re.findall(r" (\d\S+), then (\d[\d.]+)", line):
            assert float(last) < 0.5 * float(first), line
    if name == "two_models":
        slope, gradient = map(float, re.search(r"slope (\S+), gradient (\S+)", line).groups())
        assert abs(slope) > 0.01 and abs(slope - gradient) < 0.05 * abs(slope), line
    return line


# Each example has a check, numbers of ranks, and the most lines of its source.
CHECKS = {
    "wrap_your_module": (wrap_your_module, [1, 3, 4], 79),
    "trainer_of_your_own": (trainer_of_your_own, [1, 3], 75),
    "accumulation": (accumulation, [1, 2, 3], 110),
    "activation_checkpointing": (activation_checkpointing, [1, 3, 4], 110),
    "ema_optimizer": (ema_optimizer, [1, 3, 4], 110),
    "inspect_gradients": (inspect_gradients, [1, 3, 4], 110),
    "mixed_precision": (mixed_precision, [1, 3, 4], 110),
    "tied_and_frozen": (tied_and_frozen, [1, 2, 3, 4], 110),
}


def main(program):
    name = pathlib.Path(program).name
    check, rank_counts, most_lines = CHECKS.get(name, (model, [1, 2, 3, 4], 119))
    lines = (EXAMPLES / f"{name}.cpp").read_text(encoding="utf-8").count("\n")
    assert lines <= most_lines, f"{name}.cpp has {lines} lines"
    assert trainer_runs.run(program, "--surplus").returncode == 2
    for ranks in rank_counts:
        print(f"{ranks} ranks: {check(program, ranks)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
