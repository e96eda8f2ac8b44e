"""What a training run computed, as bits, and where two runs part; for the matrix tests beside this file."""
import hashlib
import pathlib
import tempfile

import trainer_runs

BITS = ["loss_bits", "grad_norm_bits", "accuracy", "held_out_loss_bits"]  # by step; missing where nothing was evaluated


def outcome(program, options, clip, train=trainer_runs.train):
    """All bits of a run whose clipping must be active, unless clip is 0, and whose planned bytes must be those measured."""
    with tempfile.TemporaryDirectory() as folder:
        weights = pathlib.Path(folder) / "weights.safetensors"
        steps = train(program, folder, *options, "--clip", clip, "--dump-weights", weights)
        tensors = trainer_runs.read_safetensors(weights)
    norms = [step["grad_norm"] for step in steps if step["grad_norm"] is not None]
    assert norms and all(norm > clip for norm in norms), "clipping was not active"
    losses = [step["loss"] for step in steps]
    assert sum(losses[-5:]) < sum(losses[:5]), f"the loss does not fall: {losses}"
    for step in (steps[0], steps[-1]):
        check_memory(step["memory"]["ranks"])
    result = {what: [step.get(what) for step in steps] for what in BITS}
    result["weights"] = {name: hashlib.sha256(content).hexdigest() for name, (_, content) in tensors.items()}
    return result


def check_memory(ranks):
    for number, rank in enumerate(ranks):
        for name, figure in [*rank["categories"].items(), ("peak", rank["peak"])]:
            if figure["measured"] is not None:  # sanitizers keep the probe from measuring
                assert figure["planned"] == figure["measured"], f"rank {number}, {name}: {figure}"


def difference(reference, other):
    """Where two outcomes part, in words; None when they are equal."""
    for what in BITS:
        assert len(reference[what]) == len(other[what])
        for step, (expected, actual) in enumerate(zip(reference[what], other[what]), start=1):
            if expected != actual:
                return f"{what} of step {step}: {actual} instead of {expected}"
    unequal = [name for name, digest in reference["weights"].items() if other["weights"].get(name) != digest]
    return f"weights of {', '.join(unequal)}" if unequal or reference != other else None
