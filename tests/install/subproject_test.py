#!/usr/bin/env python3
"""A project of somebody's that has Tessera as a Meson subproject: it is configured, and a program of its own is compiled
against it; at full length the library is built there, too, and the program runs.

usage: subproject_test.py ROOT PROGRAM.cpp COMPILER...
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PROJECT = """project('user', 'cpp', default_options: ['cpp_std=c++20', 'warning_level=3', 'werror=true'])
tessera = dependency('tessera', fallback: 'tessera')
executable('program', 'program.cpp', dependencies: tessera)
assert(dependency('tessera-nn', fallback: 'tessera').found())
"""
# These would only take time here.
OPTIONS = ["-Dunity=on", "-Dtessera:cuda=disabled", "-Dtessera:torch=disabled", "-Dtessera:images=disabled",
           "-Dtessera:onednn=disabled", "--wrap-mode=nodownload"]


def run(*command, **environment):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False,
                          env={**os.environ, **environment})
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def main():
    root, program, *compiler = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        project = pathlib.Path(folder)
        (project / "subprojects").mkdir()
        (project / "subprojects/tessera").symlink_to(root, target_is_directory=True)
        (project / "program.cpp").symlink_to(program)
        (project / "meson.build").write_text(PROJECT, encoding="utf-8")
        build = project / "build"
        run("meson", "setup", build, project, *OPTIONS, CXX=" ".join(compiler))
        targets = run("ninja", "-C", build, "-t", "targets", "all").splitlines()
        run("ninja", "-C", build, *(line.split(": ")[0] for line in targets if re.match(r"program\.p/.*\.o: ", line)))
        if os.environ.get("TESSERA_TEST_MATRIX") != "reduced":
            run("ninja", "-C", build, "program")
            print(run(build / "program"), end="")


if __name__ == "__main__":
    main()
