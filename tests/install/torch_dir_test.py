#!/usr/bin/env python3
"""Programs find a libtorch that has a folder of its own, such as a wheel's: for pkg-config and CMake each of its folders
of headers is named, and where its libraries are when a program runs. The folder is made of links to the system's libtorch.

usage: torch_dir_test.py ROOT COMPILER...
"""
import os
import pathlib
import subprocess
import sys
import tempfile

OPTIONS = ["-Dtorch=enabled", "-Ddefault_library=static"] + [
    f"-D{feature}=disabled" for feature in ["cuda", "mpi", "images", "onednn"]] + [
    f"-D{part}=false" for part in ["tests", "bench", "examples"]]


def make_wheel(wheel, library):
    (wheel / "include").mkdir(parents=True)
    for folder in ["torch", "ATen", "c10", "caffe2"]:
        (wheel / "include" / folder).symlink_to(pathlib.Path("/usr/include") / folder)
    (wheel / "lib").symlink_to(library.parent)


def main():
    root, *compiler = sys.argv[1:]
    found = subprocess.run([*compiler, "-print-file-name=libtorch.so"], capture_output=True, text=True, check=True)
    library = pathlib.Path(found.stdout.strip())
    assert library.is_absolute(), f"no libtorch.so is here, but the build has found one: {library}"
    with tempfile.TemporaryDirectory() as scratch:
        wheel, build = pathlib.Path(scratch) / "wheel", pathlib.Path(scratch) / "build"
        make_wheel(wheel, library)
        done = subprocess.run(["meson", "setup", build, root, *OPTIONS], capture_output=True, text=True, check=False,
                              env={**os.environ, "TORCH_DIR": str(wheel)})
        assert done.returncode == 0, done.stdout + done.stderr
        package = (build / "meson-private/tessera-torch.pc").read_text(encoding="utf-8")
        for flag in [f"-isystem{wheel}/include", f"-isystem{wheel}/include/torch/csrc/api/include", f"-L{wheel}/lib",
                     f"-Wl,-rpath,{wheel}/lib"]:
            assert flag in package.split(), f"{flag} is missing: {package}"
        for_cmake = (build / "packaging/tesseraConfig.cmake").read_text(encoding="utf-8")
        for words in [f"-L{wheel}/lib;-Wl,-rpath,{wheel}/lib;-ltorch",
                      f'"{wheel}/include;{wheel}/include/torch/csrc/api/include"']:
            assert words in for_cmake, f"{words} is missing: {for_cmake}"


if __name__ == "__main__":
    main()
