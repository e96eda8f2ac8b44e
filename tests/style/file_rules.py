#!/usr/bin/env python3
"""What every file of the project keeps: a first comment, no tabs, no trailing blanks, no notes to self, no paths of one
machine, no comment that begins without its subject (Of, By, As, What, Likewise); public headers are exported; the umbrella header has
every public header, and version.hpp and CHANGELOG.md name the version of meson.build.

usage: file_rules.py ROOT    prints each violation and exits with 1 when there is one
"""
import pathlib
import re
import sys

FOLDERS = [".ci", "bench", "docs", "examples", "include", "models", "nn", "packaging", "scripts", "src", "subprojects", "tests", "tools",
           "torch", "trainer", "vision"]
TEXT_SUFFIXES = {"", ".build", ".cpp", ".cu", ".cuh", ".hpp", ".in", ".md", ".py", ".sh", ".supp", ".txt", ".wrap"}
CODE_SUFFIXES = {".cpp", ".cu", ".cuh", ".hpp"}
SKIPPED_FOLDERS = {"__pycache__", "packagecache"}
THIS_TEST = "tests/style/"  # names the forbidden words itself
NOTE_TO_SELF = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}{])/(work|root|home)/[\w.]")
FRAGMENT = re.compile(r"(?:Of|By|As|What|Likewise)\b")  # "As long as x, …" can be "While x, …"
CODE_COMMENT = re.compile(r"""(?:^|[^:"'])//[/!]*\s*(.*)""")
OTHER_COMMENT = re.compile(r"^\s*#+\s+(.*)")
INCLUDED = re.compile(r'^#include "(tessera/[^"]+)"', re.MULTILINE)
PUBLIC = ("include/", "nn/include/", "vision/include/", "trainer/include/", "torch/include/")
EXPORTED = re.compile(r"\n#pragma GCC visibility push\(default\)\n\nnamespace .*\n}[^\n]*\n\n#pragma GCC visibility pop\n$", re.DOTALL)
UMBRELLA = "include/tessera/tessera.hpp"


def text_files(root):
    """Yields (path, text) of the files that the project's authors write, relative to the root."""
    here = [path for path in sorted(root.iterdir()) if path.is_file() and path.name != ".git"]  # a worktree's
    for folder in FOLDERS:
        here += sorted(path for path in (root / folder).rglob("*") if path.is_file())
    for path in here:
        relative = path.relative_to(root)
        from_a_wrap = relative.parts[0] == "subprojects" and path.suffix != ".wrap"
        if path.suffix in TEXT_SUFFIXES and not from_a_wrap and not SKIPPED_FOLDERS & set(relative.parts):
            yield relative.as_posix(), path.read_text(encoding="utf-8")


def line_violations(path, text):
    suffix = pathlib.PurePosixPath(path).suffix
    commented = CODE_COMMENT.search if suffix in CODE_SUFFIXES else OTHER_COMMENT.search if suffix != ".md" else None
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{path}:{number}"
        if "\t" in line:
            yield f"{where}: a tab"
        if line != line.rstrip():
            yield f"{where}: blanks at the end of the line"
        if path.startswith(THIS_TEST) or path == "LICENSE":
            continue
        if NOTE_TO_SELF.search(line):
            yield f"{where}: a note to self ({NOTE_TO_SELF.search(line).group()}); do it, or file an issue"
        if MACHINE_PATH.search(line):
            yield f"{where}: a path of one machine"
        comment = commented(line) if commented else None
        if comment and FRAGMENT.match(comment.group(1)):
            yield f"{where}: a comment that begins with \"{comment.group(1).split()[0]}\"; begin with what it is about"


def opening_violations(path, text):
    """A file says its concept in its first comment."""
    suffix = pathlib.PurePosixPath(path).suffix
    if suffix in CODE_SUFFIXES and not text.startswith("// "):
        yield f"{path}: must open with a comment that says its concept"
    if suffix == ".hpp" and "\n#pragma once\n" not in text:
        yield f"{path}: has no #pragma once"
    if suffix == ".py" and not re.match(r'(#!.*\n)?"""', text):
        yield f"{path}: must open with a docstring that says its concept"
    if text.startswith("#!") and suffix != ".py" and not text.split("\n")[1].startswith(("# ", '"""')):
        yield f"{path}: must say in its second line what it does"
    if text and not text.endswith("\n"):
        yield f"{path}: has no newline at its end"


def export_violations(path, text):
    """What a public header declares is exported from shared libraries, where all else is hidden."""
    if path.startswith(PUBLIC) and path.endswith(".hpp") and "\nnamespace " in text and not EXPORTED.search(text):
        yield (f"{path}: its namespaces must stand between `#pragma GCC visibility push(default)` and "
               "`#pragma GCC visibility pop`")


def umbrella_violations(files):
    if UMBRELLA not in files:
        return
    included = set(INCLUDED.findall(files[UMBRELLA]))
    public = {path[len("include/"):] for path in files
              if path.startswith("include/") and path.endswith(".hpp") and path != UMBRELLA}
    for header in sorted(public - included):
        yield f"{UMBRELLA}: lacks {header}"


def version_violations(files):
    declared = re.search(r"^  version: '([^']+)'", files.get("meson.build", ""), re.MULTILINE)
    if not declared:
        return
    if f'"{declared.group(1)}"' not in files.get("include/tessera/version.hpp", ""):
        yield f"include/tessera/version.hpp: does not name version {declared.group(1)}"
    if f"## {declared.group(1)}" not in files.get("CHANGELOG.md", ""):
        yield f"CHANGELOG.md: has no section {declared.group(1)}"


def violations(root):
    files = dict(text_files(root))
    for path, text in files.items():
        yield from opening_violations(path, text)
        yield from line_violations(path, text)
        yield from export_violations(path, text)
    yield from umbrella_violations(files)
    yield from version_violations(files)


if __name__ == "__main__":
    found = list(violations(pathlib.Path(sys.argv[1])))
    print("\n".join(found) if found else "file rules hold")
    sys.exit(1 if found else 0)
