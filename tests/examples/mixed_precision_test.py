#!/usr/bin/env python3
"""16-bit training follows fp32, the table names the types, and an overflow on one rank is skipped on all.

usage: mixed_precision_test.py MIXED_PRECISION
"""
import re
import sys

import example_runs

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


def main(program):
    example_runs.check_form(program)
    for ranks in [1, 3, 4]:
        text = "\n".join(example_runs.lines_of(program, "--ranks", ranks)) + "\n"
        parts = re.split(r"^(fp32|bf16_mixed|fp16_mixed)\b.*\n", text, flags=re.MULTILINE)[1:]
        losses = {name: check_policy(name, part, ranks) for name, part in zip(parts[::2], parts[1::2])}
        assert losses.keys() == TYPES.keys(), losses
        assert max(losses.values()) < 0.03 and max(losses.values()) < 1.1 * min(losses.values()), losses
        print(f"{ranks} ranks: {losses}")


if __name__ == "__main__":
    main(sys.argv[1])
