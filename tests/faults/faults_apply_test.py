#!/usr/bin/env python3
"""Every fault of faults.py still fits the sources: what it replaces stands there exactly once, what replaces it is something
else, and its tests are programs that are known. Running them is scripts/faults' work.

usage: faults_apply_test.py ROOT
"""
import pathlib
import sys

from faults import FAULTS, PROGRAMS


def objections(root):
    names = [fault.name for fault in FAULTS]
    for fault in FAULTS:
        path = root / fault.file
        count = path.read_text(encoding="utf-8").count(fault.old) if path.exists() else 0
        if count != 1:
            yield f"{fault.name}: its old text stands {count} times in {fault.file}; change tests/faults/faults.py with the source"
        if fault.old == fault.new:
            yield f"{fault.name}: changes nothing"
        if names.count(fault.name) != 1:
            yield f"{fault.name}: two faults have this name"
        if not fault.tests or any(program not in PROGRAMS for program, _ in fault.tests):
            yield f"{fault.name}: has no test, or one of an unknown program"


if __name__ == "__main__":
    found = list(objections(pathlib.Path(sys.argv[1])))
    print("\n".join(found) if found else f"{len(FAULTS)} faults fit the sources")
    sys.exit(1 if found or len(FAULTS) < 16 else 0)
