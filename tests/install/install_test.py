#!/usr/bin/env python3
"""An installed Tessera is all that a user needs: installs into a folder of its own, then builds and runs a program there
with nothing but the compiler and pkg-config.

usage: install_test.py --source ROOT --build BUILD --package NAME --program FILE.cpp -- COMPILER...
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile


def run(*command, **environment):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False,
                          env={**os.environ, **environment})
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}exit code {done.returncode}")
    return done.stdout


def install(build, prefix):
    """Installs below `prefix` and returns the folder of the pkg-config files."""
    run("meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", prefix)
    found = list(prefix.rglob("tessera.pc"))
    assert len(found) == 1, f"expected one tessera.pc, found {found}"
    return found[0].parent


def check_headers(source, prefix):
    """Every public header is there, in its folder."""
    [include] = [path.parent.parent for path in prefix.rglob("tessera/tessera.hpp")]
    for folder in [source / "include", source / "nn" / "include"]:
        missing = [path for path in folder.rglob("*.hpp") if not (include / path.relative_to(folder)).is_file()]
        assert not missing, f"not installed: {missing}"


def build_and_run(options, compiler, scratch, package_folder):
    """Compiles the program with what pkg-config says, runs it, and returns what it printed."""
    flags = run("pkg-config", "--cflags", "--libs", options.package, PKG_CONFIG_PATH=str(package_folder)).split()
    astray = [flag for flag in flags if str(options.build) in flag or str(options.source) in flag]
    assert not astray, f"pkg-config points into the source or build tree: {astray}"
    program = scratch / "program"
    run(*compiler, "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", options.program, "-o", program, *flags)
    return run(program, LD_LIBRARY_PATH=str(package_folder.parent))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ["--source", "--build", "--program"]:
        parser.add_argument(name, type=pathlib.Path, required=True)
    parser.add_argument("--package", required=True)
    parser.add_argument("compiler", nargs="+")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        package_folder = install(options.build, scratch / "root")
        check_headers(options.source, scratch / "root")
        print(build_and_run(options, options.compiler, scratch, package_folder), end="")


if __name__ == "__main__":
    main()
