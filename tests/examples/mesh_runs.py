"""What a run on a mesh has to do with one rank's, and with the plan of each of its ranks; for the tests of meshes beside this file."""
import math


def bits(steps):
    return [(step["loss_bits"], step["grad_norm_bits"], step.get("held_out_loss_bits"), step.get("accuracy"))
            for step in steps]


def check_near(one, parted, tolerance):
    """Those of two runs that have evaluated at the same steps."""
    assert len(one) == len(parted)
    for step, other in zip(one, parted):
        for name in ["loss", "grad_norm", "held_out_loss"]:
            near = 20 * tolerance if name == "grad_norm" else tolerance  # it moves more than losses do
            if step.get(name) is None:  # gradients that overflow have no norm
                assert other.get(name) is None, (name, other)
                continue
            same = other[name] is not None and math.isclose(step[name], other[name], rel_tol=near)
            assert same, f"step {step['step']}: {name} is {other[name]} and on one rank {step[name]}"
        for name in ["accuracy", "top5_accuracy", "held_out_samples"]:
            assert tolerance > 1e-5 or step.get(name) == other.get(name), (name, step, other)


def check_memory(steps, ranks, measurable):
    activations = []
    for rank in steps[-1]["memory"]["ranks"]:
        for name, both in rank["categories"].items():
            assert both["measured"] == (both["planned"] if measurable else None), (name, both)
        activations.append(rank["categories"]["activations"]["planned"])
    assert len(activations) == ranks
    return activations
