#!/usr/bin/env python3
"""An installed Tessera is all that a user needs: installs into a folder of its own, then builds and runs a program there
with nothing but the compiler and pkg-config.

With CMake, where it is here, the program links through an imported target, too.

usage: install_test.py --source ROOT --build BUILD --package NAME --program FILE.cpp [--more FILE.cpp ...] -- COMPILER...
"""
import argparse
import os
import pathlib
import shutil
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


def check_packages(package, package_folder):
    """Nothing that no public header includes is asked for."""
    required = run("pkg-config", "--print-requires", package, PKG_CONFIG_PATH=str(package_folder)).split()
    assert required == {"tessera": [], "tessera-nn": ["tessera"]}[package], required


def check_tool(prefix, package_folder):
    [tool] = prefix.rglob("bin/tessera")
    assert run(tool, "--version", LD_LIBRARY_PATH=str(package_folder.parent)).startswith("tessera "), tool


CMAKE_PROJECT = """cmake_minimum_required(VERSION 3.18)
project(user CXX)
find_package(PkgConfig REQUIRED)
pkg_check_modules(TESSERA REQUIRED IMPORTED_TARGET {package})
add_executable(program {source})
set_target_properties(program PROPERTIES CXX_STANDARD 20)
target_link_libraries(program PRIVATE PkgConfig::TESSERA)
"""


def build_with_cmake(options, scratch, package_folder):
    project = scratch / "cmake"
    project.mkdir()
    text = CMAKE_PROJECT.format(package=options.package, source=options.program.resolve())
    (project / "CMakeLists.txt").write_text(text, encoding="utf-8")
    run("cmake", "-S", project, "-B", project / "build", PKG_CONFIG_PATH=str(package_folder))
    run("cmake", "--build", project / "build", PKG_CONFIG_PATH=str(package_folder))
    return run(project / "build/program", LD_LIBRARY_PATH=str(package_folder.parent))


def build_and_run(options, source, scratch, package_folder):
    """Compiles the program with what pkg-config says, runs it, and returns what it printed."""
    flags = run("pkg-config", "--cflags", "--libs", options.package, PKG_CONFIG_PATH=str(package_folder)).split()
    astray = [flag for flag in flags if str(options.build) in flag or str(options.source) in flag]
    assert not astray, f"pkg-config points into the source or build tree: {astray}"
    program = scratch / "program"
    run(*options.compiler, "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", source, "-o", program, *flags)
    return run(program, LD_LIBRARY_PATH=str(package_folder.parent))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ["--source", "--build", "--program"]:
        parser.add_argument(name, type=pathlib.Path, required=True)
    parser.add_argument("--package", required=True)
    parser.add_argument("--more", type=pathlib.Path, nargs="*", default=[])
    parser.add_argument("compiler", nargs="+")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        package_folder = install(options.build, scratch / "root")
        check_headers(options.source, scratch / "root")
        check_packages(options.package, package_folder)
        check_tool(scratch / "root", package_folder)
        printed = [build_and_run(options, source, scratch, package_folder) for source in [options.program, *options.more]]
        if shutil.which("cmake"):
            assert build_with_cmake(options, scratch, package_folder) == printed[0]
        print("".join(printed), end="")


if __name__ == "__main__":
    main()
