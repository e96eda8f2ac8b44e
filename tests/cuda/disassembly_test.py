#!/usr/bin/env python3
"""The compiler's machine code of attention's kernels: nothing in local memory, no load or store that must find out at run
time whether it is of shared memory, and tensor cores fed by ldmatrix and asynchronous copies.

usage: disassembly_test.py SCRIPT BUILD TENSOR_OBJECT FP32_OBJECT
"""
import importlib.machinery
import importlib.util
import pathlib
import sys
import unittest


def loaded(name, path):
    """A Python program as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class Disassembly(unittest.TestCase):
    def test_attention_keeps_to_registers_and_shared_memory(self):
        for path, kernels in zip(OBJECTS, KERNELS):
            self.assertGreaterEqual(len(kernels), 4, path)
            for kernel in kernels:
                with self.subTest(kernel.name, architecture=kernel.architecture):
                    self.assertGreater(kernel.registers, 0)
                    self.assertEqual(kernel.stack, 0)
                    found = {name: kernel.instructions[name] for name in ("LDL", "STL", "LD", "ST")}
                    self.assertEqual(found, dict.fromkeys(found, 0))

    def test_attention_feeds_tensor_cores_by_their_own_instructions(self):
        for kernel in KERNELS[0]:
            with self.subTest(kernel.name, architecture=kernel.architecture):
                for name in ("HMMA", "LDSM", "LDGSTS"):
                    self.assertGreater(kernel.instructions[name], 0, name)
                self.assertEqual(kernel.instructions["MOVM"], 0)

    def test_two_blocks_of_attention_fit_on_a_multiprocessor_of_sm_90(self):
        sizes = kernel_code.launches(BUILD)
        for kernel in KERNELS[0]:
            if kernel.architecture != "sm_90":
                continue
            with self.subTest(kernel.name):
                self.assertGreaterEqual(kernel_code.blocks_per_multiprocessor(kernel, *kernel_code.launch_of(kernel, sizes)), 2)


if __name__ == "__main__":
    kernel_code = loaded("kernel_code", sys.argv[1])
    BUILD = pathlib.Path(sys.argv[2])
    OBJECTS = sys.argv[3:5]
    CUOBJDUMP = kernel_code.find_cuobjdump()
    if CUOBJDUMP is None:
        print("skipped: cuobjdump and nvdisasm are neither on the path nor beside nvcc (PyPI's nvidia-cuda-cuobjdump and "
              "nvidia-cuda-nvdisasm have them)")
        sys.exit(77)
    KERNELS = [kernel_code.kernels_of(CUOBJDUMP, path) for path in OBJECTS]
    if not any(KERNELS):
        print("skipped: this build's kernels are PTX alone (-Ddevice_code)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
