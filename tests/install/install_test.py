#!/usr/bin/env python3
"""An installed Tessera is all that a user needs: installs into a folder of its own, then builds and runs a program there
with nothing but the compiler and pkg-config, against the shared libraries and against the archives. Shared libraries
export what public headers declare, and nothing else.

With CMake, where it is here, the program is also built through pkg-config's imported target, and through the package of
find_package().

usage: install_test.py --source ROOT --build BUILD --package NAME --program FILE.cpp [--more FILE.cpp ...] -- COMPILER...
"""
import argparse
import os
import pathlib
import re
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
    with_torch = list(prefix.rglob("tessera-torch.pc"))
    for folder in [source / part / "include" for part in ["", "nn", "vision"] + ["torch"] * len(with_torch)]:
        missing = [path for path in folder.rglob("*.hpp") if not (include / path.relative_to(folder)).is_file()]
        assert not missing, f"not installed: {missing}"


def check_packages(package, package_folder):
    """Nothing that no public header includes is asked for."""
    required = run("pkg-config", "--print-requires", package, PKG_CONFIG_PATH=str(package_folder)).split()
    assert required == {"tessera": [], "tessera-nn": ["tessera"], "tessera-vision": ["tessera-nn"],
                        "tessera-torch": ["tessera"]}[package], required


def check_tool(prefix, package_folder):
    [tool] = prefix.rglob("bin/tessera")
    assert run(tool, "--version", LD_LIBRARY_PATH=str(package_folder.parent)).startswith("tessera "), tool


CMAKE_PROJECT = """cmake_minimum_required(VERSION 3.18)
project(user CXX)
{find}
add_executable(program {source})
target_link_libraries(program PRIVATE {targets})
"""
# A package has two ways: CMake finds it through pkg-config, and by its own package file.
CMAKE_WAYS = {
    "tessera": [("find_package(PkgConfig REQUIRED)\npkg_check_modules(TESSERA REQUIRED IMPORTED_TARGET tessera)\n"
                 "set(CMAKE_CXX_STANDARD 20)", "PkgConfig::TESSERA"),
                ("find_package(tessera 0.1 REQUIRED)", "tessera::tessera")],
    "tessera-nn": [("set(tessera_USE_STATIC ON)\nfind_package(tessera REQUIRED COMPONENTS nn OPTIONAL_COMPONENTS audio)\n"
                    "if(NOT tessera_nn_FOUND OR tessera_audio_FOUND)\nmessage(FATAL_ERROR \"found: nn, and no audio\")\n"
                    "endif()", "tessera::nn")],
    "tessera-vision": [("set(tessera_USE_STATIC ON)\nfind_package(tessera REQUIRED COMPONENTS vision)", "tessera::vision")],
    "tessera-torch": [("find_package(tessera REQUIRED COMPONENTS torch)", "tessera::torch")],
}
CMAKE_REFUSALS = {
    "find_package(tessera 0.2 REQUIRED)": "version: 0.1.0",
    "find_package(tessera 1 REQUIRED)": "version: 0.1.0",
    "find_package(tessera 0.1.1 REQUIRED)": "version: 0.1.0",
    "find_package(tessera REQUIRED COMPONENTS audio)": 'tessera has no component "audio"; there is: nn, vision',
}


def configure_with_cmake(project, find, source, targets, package_folder):
    """Returns what CMake said where it failed, or nothing."""
    project.mkdir()
    text = CMAKE_PROJECT.format(find=find, source=source, targets=targets)
    (project / "CMakeLists.txt").write_text(text, encoding="utf-8")
    prefix = next(folder for folder in package_folder.parents if (folder / "include").is_dir())
    done = subprocess.run(["cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={prefix}"],
                          capture_output=True, text=True, check=False,
                          env={**os.environ, "PKG_CONFIG_PATH": str(package_folder)})
    return done.stdout + done.stderr if done.returncode else ""


def check_cmake(options, scratch, package_folder, expected):
    """The program does the same when CMake builds it, and what cannot be had is refused by its name."""
    source = options.program.resolve()
    for number, (find, targets) in enumerate(CMAKE_WAYS[options.package]):
        project = scratch / f"cmake-{number}"
        refusal = configure_with_cmake(project, find, source, targets, package_folder)
        assert not refusal, refusal
        run("cmake", "--build", project / "build", PKG_CONFIG_PATH=str(package_folder))
        assert run(project / "build/program", LD_LIBRARY_PATH=str(package_folder.parent)) == expected, find
    for number, (find, words) in enumerate(CMAKE_REFUSALS.items()):
        refusal = configure_with_cmake(scratch / f"refused-{number}", find, source, "tessera::tessera", package_folder)
        assert words in refusal, f"{find}: {refusal}"


def flags_of(options, package_folder, *what):
    flags = run("pkg-config", *what, options.package, PKG_CONFIG_PATH=str(package_folder)).split()
    astray = [flag for flag in flags if str(options.build) in flag or str(options.source) in flag]
    assert not astray, f"pkg-config points into the source or build tree: {astray}"
    return flags


def build_and_run(options, source, scratch, package_folder):
    """Compiles the program with what pkg-config says, runs it, and returns what it printed."""
    unit = scratch / "program.o"
    run(*options.compiler, "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-c", source, "-o", unit,
        *flags_of(options, package_folder, "--cflags"))
    printed = []
    archives = without_shared_libraries(package_folder, scratch)
    for folder, libs in [(package_folder, ["--libs"])] + [(archives, ["--libs", "--static"])] * bool(archives):
        program = scratch / "program"
        run(*options.compiler, unit, "-o", program, *flags_of(options, folder, *libs))
        printed.append(run(program, LD_LIBRARY_PATH=str(folder.parent)))
    assert len(set(printed)) == 1, printed
    return printed[0]


def without_shared_libraries(package_folder, scratch):
    """A copy of the libraries that has archives alone, where there are any; its folder of pkg-config files."""
    prefix = next(folder for folder in package_folder.parents if (folder / "include").is_dir())
    libraries = scratch / "archives" / package_folder.parent.relative_to(prefix)
    if not libraries.is_dir():
        shutil.copytree(prefix, scratch / "archives", symlinks=True)
        for library in libraries.glob("libtessera*.so*"):
            library.unlink()
    return libraries / "pkgconfig" if list(libraries.glob("libtessera*.a")) else None


def check_exports(source, libraries):
    """What a shared library defines for others is named in some public header, or in one of nn's that vision uses."""
    headers = [path.read_text(encoding="utf-8") for part in ["include", "nn/include", "vision/include", "torch/include"]
               for path in (source / part).rglob("*.hpp")]
    headers += [text for text in (path.read_text(encoding="utf-8") for path in (source / "nn/src").rglob("*.hpp"))
                if "#pragma GCC visibility push" in text]
    named = set(re.findall(r"\w+", "\n".join(headers)))
    for library in libraries.glob("libtessera*.so"):
        lines = run("nm", "-D", "--defined-only", "-C", library).splitlines()
        symbols = [line.split(" ", 2)[2] for line in lines if line.split(" ", 2)[1] in "TDBR"]
        assert symbols, f"{library} exports nothing"
        names = {name for symbol in symbols for name in re.findall(r"\btessera((?:::\w+)+)", symbol.split("(")[0])}
        of_the_linker = {"__bss_start", "_edata", "_end"}
        strangers = [symbol for symbol in symbols if "tessera::" not in symbol and symbol not in of_the_linker]
        hidden = [name for name in names if not all(part in named for part in name.split("::")[1:])]
        assert not strangers + hidden, f"{library} exports {strangers + hidden}"


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
        # Built for one prefix, installed below another, and moved since.
        package_folder = scratch / "moved" / install(options.build, scratch / "root").relative_to(scratch / "root")
        (scratch / "root").rename(scratch / "moved")
        check_headers(options.source, scratch / "moved")
        check_packages(options.package, package_folder)
        check_tool(scratch / "moved", package_folder)
        check_exports(options.source, package_folder.parent)
        printed = [build_and_run(options, source, scratch, package_folder) for source in [options.program, *options.more]]
        if shutil.which("cmake"):
            check_cmake(options, scratch, package_folder, printed[0])
        print("".join(printed), end="")


if __name__ == "__main__":
    main()
