#!/usr/bin/env python3
"""Programs of a build with the CUDA half start where there is no CUDA: what they load by name has none of it. The runtime is
linked statically; driver, cuBLASLt and NCCL are opened when they are used.

usage: linkage_test.py PROGRAM...
"""
import re
import shutil
import subprocess
import sys
import unittest

OF_CUDA = re.compile(r"lib(cuda|cublas|nccl|nv)")


def needed(program):
    dynamic = subprocess.run(["readelf", "--dynamic", "--wide", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)


class Linkage(unittest.TestCase):
    def test_nothing_of_cuda_is_loaded_at_start(self):
        for program in PROGRAMS:
            with self.subTest(program):
                libraries = needed(program)
                self.assertTrue(any(name.startswith("libc.so") for name in libraries), libraries)
                self.assertEqual([name for name in libraries if OF_CUDA.match(name)], [])


if __name__ == "__main__":
    PROGRAMS = sys.argv[1:]
    if shutil.which("readelf") is None:
        print("skipped: readelf is not here (Debian's binutils has it)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
