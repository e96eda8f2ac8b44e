#!/usr/bin/env python3
"""A tied table learns; a frozen stage costs no gradient and no state; thawed, it learns on from the same weights.

usage: tied_and_frozen_test.py TIED_AND_FROZEN
"""
import re
import sys

import example_runs

PAGE = 4096  # categories are rounded up to pages
TABLE, STAGE = 4 * 29 * 64, 4 * 64 * 64  # bytes in fp32


def check_bytes(frozen, trained, ranks):
    """One shard of the stage more for gradients, two for AdamW; masters and slots are there from the beginning."""
    for category, states in [("gradients", 1), ("optimizer", 2)]:
        added = trained[category] - frozen[category]
        assert abs(added - states * STAGE / ranks) <= PAGE, f"{ranks} ranks: {category} {frozen} {trained}"
        assert abs(frozen[category] - states * TABLE / ranks) <= PAGE + states * 4 * 128, f"{ranks} ranks: {frozen}"
    assert ("parameter_slots" in frozen) == (ranks > 1), f"{ranks} ranks: {frozen}"  # one rank reads masters
    for category in ["parameters", "accumulation"] + ["parameter_slots"] * (ranks > 1):
        assert abs(trained[category] - frozen[category]) <= PAGE, f"{ranks} ranks: {category} {frozen} {trained}"


def main(program):
    example_runs.check_form(program)
    for ranks in [1, 2, 3, 4]:
        lines = example_runs.lines_of(program, "--ranks", ranks)
        held = [{name: int(count) for name, count in re.findall(r"(\w+) (\d+)", line.split(":")[1])}
                for line in lines if line.startswith("bytes per rank")]
        assert len(held) == 2, lines
        check_bytes(*held, ranks)
        losses = [float(value) for value in re.findall(r"loss (\S+)", "\n".join(lines))]
        assert losses[0] > 3.0, "29 tokens, and nothing learned yet: the logarithm of 29"
        assert losses[2] < 2.0, "the tied table alone learns"
        assert losses[4] < 0.5 and losses[4] < losses[2], "and more with the stage"
        print(f"{ranks} ranks: loss {losses}")


if __name__ == "__main__":
    main(sys.argv[1])
