#!/usr/bin/env python3
"""Every script says by --help how it is called, and those that read their arguments before they begin refuse what they do
not know by name.

usage: scripts_help_test.py ROOT
"""
import pathlib
import subprocess
import sys

SOURCED = {"environment.sh"}
HANDS_ON = {"quickstart", "speedup"}  # hand options on to programs that they build first
NEEDS_TOOLS = {"kernel-code"}         # looks for the toolkit's programs first
NO_OPTIONS = {"draw-step"}            # reads its standard input


def run(script, *arguments):
    return subprocess.run([script, *arguments], capture_output=True, text=True, check=False, timeout=60,
                          stdin=subprocess.DEVNULL)


def main():
    root = pathlib.Path(sys.argv[1])
    scripts = [path for path in sorted((root / "scripts").iterdir()) if path.is_file() and path.name not in SOURCED]
    assert len(scripts) > 10, scripts
    for script in scripts:
        page = run(script, "--help")
        assert page.returncode == 0 and script.name in page.stdout and not page.stderr, f"{script}: {page}"
        if script.name in HANDS_ON | NEEDS_TOOLS | NO_OPTIONS:
            continue
        wrong = run(script, "--surplus")
        assert wrong.returncode == 2 and "--surplus" in wrong.stderr and not wrong.stdout, f"{script}: {wrong}"
    print(f"{len(scripts)} scripts")


main()
