#!/usr/bin/env python3
"""Include directions: each part includes only parts below it, programs, nn and torch only public headers.

usage: include_rules.py ROOT    prints each violation and exits with 1 when there is one
"""
import pathlib
import re
import sys

PARTS = ["base", "plan", "device", "kernels", "comm", "shard", "optim", "data", "checkpoint"]  # lowest first
# Rooms of comm: a file may include its own room and those of smaller numbers, and comm's other files.
COMM_ROOMS = {"control": 0, "rendezvous": 1, "local": 2, "processes": 2, "nccl": 2, "mpi": 2, "launch": 3, "run": 4}
# Rooms beside the library, lowest first: each may include those before it.
PROGRAMS_AND_LIBRARIES = ["nn", "vision", "torch", "models", "trainer", "tools", "examples", "bench"]
SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
LOCAL_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"/]+)"', re.MULTILINE)
KERNEL_LAUNCH = re.compile(r"<<<")
ONE_FILE_ONLY = ["nccl.h", "mpi.h"]
KEPT_OUT = ("fmt/", "nlohmann/", "CLI/", "cuda", "cublas", "nccl", "mpi.h", "omp.h", "openblas", "cblas")  # of public headers
PEERS = "bench/peers/"  # programs without Tessera, to compare with
KERNEL_LAUNCH_FOLDERS = ["src/kernels/cuda/", "nn/src/cuda/", "vision/src/cuda/"]
LIBTORCH = ("torch/", "ATen/", "c10/", "tessera/torch/")
LIBTORCH_USERS = ("torch/", "tests/torch/", "tests/install/user_torch_", "examples/torch_", "examples/train_cnn_torch/",
                  "bench/torch_", "bench/step/torch_")
UMBRELLA = "include/tessera/tessera.hpp"


def source_files(root):
    for folder in ["include", "src", *PROGRAMS_AND_LIBRARIES, "tests"]:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def part_of_file(path):
    """The library part that a file belongs to, or None for nn, programs and tests."""
    for prefix in ["include/tessera/", "src/"]:
        if path.startswith(prefix) and path[len(prefix):].split("/")[0] in PARTS:
            return path[len(prefix):].split("/")[0]
    return None


def part_of_include(include):
    """The library part that an include names, and whether that header is public."""
    public = include.startswith("tessera/")
    first = include[len("tessera/"):].split("/")[0] if public else include.split("/")[0]
    return (first if first in PARTS and "/" in include else None), public


def room_of(file):
    """The room of comm that a file or an include belongs to, or None."""
    steps = pathlib.PurePosixPath(file.removeprefix("src/")).parts
    room = steps[1].split(".")[0] if len(steps) > 1 and steps[0] == "comm" else None
    return room if room in COMM_ROOMS else None


def layer_violation(path, include):
    """Why this file may not have this include; None where it may."""
    if path == UMBRELLA:
        return None
    part = part_of_file(path)
    target, public = part_of_include(include)
    in_library = path.startswith(("include/", "src/"))
    if ".." in include.split("/") and not path.startswith("tests/"):
        return "an include is spelled from an include folder, not relative to its file"
    if in_library and include.startswith(("tessera/nn/", "tessera/vision/")):
        return "the library must not know nn and vision"
    if path.startswith("nn/") and include.startswith(("tessera/vision/", "vision/")):
        return "nn must not know vision"
    if include.startswith(("jpeglib.h", "png.h")) and not path.startswith(("vision/", "tests/vision/")):
        return "libjpeg and libpng are for vision alone"
    if include.startswith(LIBTORCH) and not path.startswith(LIBTORCH_USERS):
        return "libtorch is for the adapter alone"
    if include == "tessera/tessera.hpp" and in_library:
        return "the library includes its own headers one by one"
    if part and target and PARTS.index(target) > PARTS.index(part):
        return f"{part} stands below {target}"
    room, other = (room_of(path), room_of(include)) if in_library else (None, None)
    if room and other and room != other and COMM_ROOMS[other] >= COMM_ROOMS[room]:
        return f"in comm {room} stands below or beside {other}"
    if path.startswith(("include/", "nn/include/", "vision/include/", "trainer/include/", "torch/include/")) and include.startswith(KEPT_OUT):
        # Only nvcc compiles what includes a .cuh.
        return None if path.endswith(".cuh") else "a public header asks its users for nothing but the standard library"
    if path.startswith("include/") and target and not public:
        return "a public header includes an internal one"
    if path.split("/")[0] in PROGRAMS_AND_LIBRARIES and target and not public:
        return "only public headers are for nn and programs"
    return None


def violations(root):
    users = {header: [] for header in ONE_FILE_ONLY}
    for path, text in source_files(root):
        for include in INCLUDE.findall(text):
            reason = layer_violation(path, include)
            if reason:
                yield f"{path}: includes {include}, but {reason}"
            if include in users and not path.startswith((PEERS, "tests/")):
                users[include].append(path)
        for include in LOCAL_INCLUDE.findall(text) if path.startswith(("include/", "src/", "nn/", "vision/", "torch/")) else []:
            yield f"{path}: includes {include} without its part's folder, so that no rule sees its direction"
        if KERNEL_LAUNCH.search(text) and not path.startswith(tuple(KERNEL_LAUNCH_FOLDERS)):
            yield f"{path}: launches a kernel (<<<) outside {', '.join(KERNEL_LAUNCH_FOLDERS[:2])}"
    for header, paths in users.items():
        if len(paths) > 1:
            yield f"{header} may be included in one file, but is in {', '.join(paths)}"


if __name__ == "__main__":
    found = list(violations(pathlib.Path(sys.argv[1])))
    print("\n".join(found) if found else "include directions hold")
    sys.exit(1 if found else 0)
