#!/usr/bin/env python3
"""The compiler's machine code of all kernels: nothing in local memory, no load or store that must find out at run time
whether it is of shared memory, packs that are read and written by 16 bytes, no more instructions for each than is stated here, and as
many warps on a multiprocessor; of attention also tensor cores that are fed by ldmatrix and asynchronous copies.

usage: disassembly_test.py SCRIPT BUILD
"""
import importlib.machinery
import importlib.util
import pathlib
import re
import sys
import unittest

# Kernels that read and write packs of 16 bytes, and those that only read them, by how their names begin.
READ_AND_WRITE_PACKS = re.compile(r"(forward_rows|backward_rows|backward_rows_and_sums|scale_rows|see|gather_gradient)<[48],|map_elements<|"
                                  r"logit_gradients<|statistics_and_gradients<|run_(adamw|adamw8bit|sgd|root_scaled)<|run_elements<(Divide|Outer|Accumulate)")
READ_PACKS = re.compile(r"delta_rows<[48],|softmax_statistics<|add_(blocks|exact_squares)<\(Format\)0")
TENSOR_CORES = re.compile(r"(forward_tiles|query_gradients|key_gradients)<")
WRITE_PACKS = re.compile(r"run_sum<|run_elements<CastElements<\(Format\)0,")
# At least so many warps of a kernel fit on a multiprocessor of sm_90: the first name that matches.
LEAST_WARPS = [("(softmax_statistics|logit_gradients|statistics_and_gradients)<", 64),  # two blocks of 1,024 threads
               (r"(sum_losses|combine_slices|sum_marks|add_lanes)\b", 32),  # one block of 1,024, which else cannot start
               (TENSOR_CORES, 8),  # two blocks of 128
               ("backward_rows(_and_sums)?<[48], [478]", 8),  # a row stays in registers
               ("forward_rows<[48], [478]", 16),
               ("", 24)]
# At most so many instructions has the loop of a kernel for each pack that it reads, for sm_90: of 8 elements of 16 bits
# (fp16 or bf16), and of 4 in fp32. The first name that matches.
MOST_OF_A_PACK = [("softmax_statistics<", 110, 64), ("statistics_and_gradients<|logit_gradients<", 142, 76),
                  ("map_elements<Gelu", 170, 84), ("map_elements<", 33, 19), ("delta_rows<", 28, 12),
                  ("backward_rows_and_sums<", 100, 54), ("backward_rows<", 78, 33), ("forward_rows<", 70, 33), ("scale_rows<", 27, 26),
                  ("sum_tokens<", 35, 17), ("see<", 108, 87), ("gather_gradient<", 28, 50)]
# The same of kernels whose types are told by their numbers: fp32 is 0, bf16 is 1, and fp16 is 2.
MOST_BY_FORMAT = [(r"run_elements<CastElements<\(Format\)0, View<\(Format\)[01]>", 20), ("run_elements<AccumulateElements<.Format.[01]", 25),
                  ("run_elements<OuterElements", 18), ("run_adamw<", 140), ("run_adamw8bit<", 1400), ("run_sgd<.Format.0", 145), ("run_sgd<.Format.1", 184),
                  ("run_sum<SumElements<View<.Format.0", 12), ("add_blocks<", 50), ("add_exact_squares<", 170), ("", 403)]


def loaded(name, path):
    """A Python program as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def named(pattern):
    found = [kernel for kernel in KERNELS if re.match(pattern, kernel.name)]
    assert found, f"no kernel has a name like {pattern.pattern}"
    return found


class Disassembly(unittest.TestCase):
    def of(self, kernel):
        return self.subTest(kernel.name, architecture=kernel.architecture)

    def test_kernels_keep_to_registers_and_shared_memory(self):
        for kernel in KERNELS:
            with self.of(kernel):
                self.assertGreater(kernel.registers, 0)
                self.assertEqual(kernel.stack, 0)
                found = {name: kernel.instructions[name] for name in ("LDL", "STL", "LD", "ST")}
                self.assertEqual(found, dict.fromkeys(found, 0))

    def test_packs_are_of_16_bytes(self):
        for pattern, names in [(READ_AND_WRITE_PACKS, ("LDG", "STG")), (READ_PACKS, ("LDG",)), (WRITE_PACKS, ("STG",))]:
            for kernel in named(pattern):
                for name in names:
                    with self.of(kernel):
                        self.assertGreater(kernel.of_16_bytes[name], 0, name)

    def test_a_pack_takes_no_more_instructions_than_is_stated(self):
        for kernel in KERNELS:
            if kernel.architecture != "sm_90" or kernel.of_a_pack() == 0:
                continue
            with self.of(kernel):
                stated = [each[1:] for each in MOST_OF_A_PACK + MOST_BY_FORMAT if re.match(each[0], kernel.name)][0]
                self.assertLessEqual(kernel.of_a_pack(), stated[-1] if re.search(r"\bfloat\b", kernel.name) else stated[0])

    def test_as_many_warps_fit_on_a_multiprocessor_as_is_stated(self):
        sizes = kernel_code.launches(BUILD)
        for kernel in KERNELS:
            if kernel.architecture != "sm_90":
                continue
            with self.of(kernel):
                threads, asked = kernel_code.launch_of(kernel, sizes)
                blocks = kernel_code.blocks_per_multiprocessor(kernel, threads, kernel.shared + asked)
                least = next(warps for pattern, warps in LEAST_WARPS if re.match(pattern, kernel.name))
                self.assertGreaterEqual(blocks * threads // 32, least)

    def test_attention_feeds_tensor_cores_by_their_own_instructions(self):
        for kernel in named(TENSOR_CORES):
            with self.of(kernel):
                for name in ("HMMA", "LDSM", "LDGSTS"):
                    self.assertGreater(kernel.instructions[name], 0, name)
                self.assertEqual(kernel.instructions["MOVM"], 0)


if __name__ == "__main__":
    kernel_code = loaded("kernel_code", sys.argv[1])
    BUILD = pathlib.Path(sys.argv[2])
    CUOBJDUMP = kernel_code.find_cuobjdump()
    if CUOBJDUMP is None:
        print("skipped: cuobjdump and nvdisasm are neither on the path nor beside nvcc (PyPI's nvidia-cuda-cuobjdump and "
              "nvidia-cuda-nvdisasm have them)")
        sys.exit(77)
    KERNELS = [kernel for path in kernel_code.objects_of(BUILD) for kernel in kernel_code.kernels_of(CUOBJDUMP, path)]
    if not KERNELS:
        print("skipped: this build's kernels are PTX alone (-Ddevice_code)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
