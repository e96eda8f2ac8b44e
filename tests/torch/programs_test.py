#!/usr/bin/env python3
"""Seven programs of libtorch's, sharded, have the plain ones' losses, and porting each changes at most five lines beside
the optimizer's.

usage: programs_test.py TORCH_PROGRAMS PROGRAMS_SOURCE
"""
import re
import subprocess
import sys


def changed_lines(source):
    """By program, the lines that a port has in place of others, but for the optimizer's."""
    program, sharded, changed = None, False, {}
    for line in source.splitlines():
        if title := re.match(r"// ---- (\w+):", line):
            program = title.group(1)
            changed[program] = 0
        elif line.startswith("#"):
            sharded = line == "#if SHARDED"
        elif sharded and not line.endswith("// optimizer"):
            changed[program] += 1
    return changed


def main():
    program, source = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        changed = changed_lines(file.read())
    assert len(changed) == 7 and all(1 < lines <= 5 for lines in changed.values()), changed
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=250)
    print(done.stdout, done.stderr, changed, sep="\n")
    assert done.returncode == 0
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == list(changed), rows
    # SGD here has torch's bits; other optimizers, and its weight decay, have torch's values to their last bits.
    for name, apart in rows:
        assert apart.startswith("same bits") or name in ["resnet", "vae", "encoder", "actor_critic"], (name, apart)


if __name__ == "__main__":
    main()
