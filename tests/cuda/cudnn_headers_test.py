#!/usr/bin/env python3
"""The build takes cuDNN and cudnn-frontend in releases that have what is called, and no other: configures a project with
this one's cuda/meson.build alone, over headers that only say their release.

usage: cudnn_headers_test.py ROOT
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

PROJECT = """project('headers', 'cpp', default_options: 'cpp_std=c++20')
cpp = meson.get_compiler('cpp')
threads_dep = dependency('threads')
subdir('cuda')
message('cuDNN: ' + (cudnn_dep.found() ? 'taken' : cudnn_missing))
"""
# cuDNN's and cudnn-frontend's release, and whether they are taken. 1.11 has no set_generate_stats().
RELEASES = [((9, 11100), False), ((9, 11300), True), ((9, 13200), True), ((8, 11300), False)]


def configured(folder, cudnn, frontend):
    """What meson says of headers of these releases."""
    headers = folder / "headers/include"
    headers.mkdir(parents=True, exist_ok=True)
    (headers / "cudnn_version.h").write_text(f"#define CUDNN_MAJOR {cudnn}\n", encoding="utf-8")
    (headers / "cudnn_frontend_version.h").write_text(f"#define CUDNN_FRONTEND_VERSION {frontend}\n", encoding="utf-8")
    build = folder / f"build-{cudnn}-{frontend}"
    done = subprocess.run(["meson", "setup", build, folder], env=os.environ | {"CUDNN_FRONTEND_DIR": str(headers.parent)},
                          capture_output=True, text=True, check=False)
    said = [line.split("cuDNN: ")[1] for line in done.stdout.splitlines() if line.startswith("Message: cuDNN: ")]
    assert len(said) == 1, done.stdout + done.stderr
    return said[0]


def main(root):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(root / "cuda", folder / "cuda")
        shutil.copy(root / "meson_options.txt", folder)
        (folder / "meson.build").write_text(PROJECT, encoding="utf-8")
        for (cudnn, frontend), is_taken in RELEASES:
            wanted = "taken" if is_taken else "no: cuDNN must be 9, and cudnn-frontend 1.13 or later"
            said = configured(folder, cudnn, frontend)
            assert said == wanted, f"cuDNN {cudnn} with cudnn-frontend {frontend}: {said}"
    print("releases that lack what is called are refused")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
