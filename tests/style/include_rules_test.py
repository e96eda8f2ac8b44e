#!/usr/bin/env python3
"""The include rules find every kind of violation, and accept what is allowed. Each case is a small tree of its own."""
import pathlib
import tempfile
import unittest

import include_rules


def violations_in(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return list(include_rules.violations(root))


class IncludeRules(unittest.TestCase):
    def assert_one_violation(self, files, words):
        found = violations_in(files)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_a_tree_that_keeps_the_rules_has_no_violation(self):
        self.assertEqual(violations_in({
            "include/tessera/tessera.hpp": '#include "tessera/checkpoint/a.hpp"\n',
            "include/tessera/comm/a.hpp": '#include <vector>\n#include "tessera/base/a.hpp"\n',
            "src/comm/a.cpp": '#include "comm/local/b.hpp"\n#include "plan/c.hpp"\n#include "tessera/comm/a.hpp"\n',
            "src/comm/nccl/n.cpp": "#include <nccl.h>\n",
            "src/kernels/cuda/k.cu": "void f() { kernel<<<1, 2>>>(); }\n",
            "nn/src/a.cpp": '#include "tessera/shard/a.hpp"\n',
            "examples/a.cpp": "#include <tessera/tessera.hpp>\n",
            "tests/plan/a.cpp": '#include "plan/internal.hpp"\n',
        }), [])

    def test_a_public_header_that_looks_up_is_found(self):
        self.assert_one_violation({"include/tessera/plan/a.hpp": '#include "tessera/device/b.hpp"\n'},
                                  "plan stands below device")

    def test_a_source_that_looks_up_is_found_through_public_and_internal_headers(self):
        self.assert_one_violation({"src/comm/a.cpp": '#include "tessera/shard/b.hpp"\n'}, "comm stands below shard")
        self.assert_one_violation({"src/comm/x/a.cpp": '#include "shard/b.hpp"\n'}, "comm stands below shard")

    def test_every_pair_of_parts_has_one_direction(self):
        for low in range(len(include_rules.PARTS)):
            for high in range(low + 1, len(include_rules.PARTS)):
                lower, higher = include_rules.PARTS[low], include_rules.PARTS[high]
                self.assert_one_violation({f"src/{lower}/a.cpp": f'  #  include <tessera/{higher}/b.hpp>\n'}, higher)
                self.assertEqual(violations_in({f"src/{higher}/a.cpp": f'#include "{lower}/b.hpp"\n'}), [])

    def test_a_room_of_comm_that_looks_up_or_aside_is_found(self):
        self.assert_one_violation({"src/comm/nccl/a.cpp": '#include "comm/launch.hpp"\n'}, "nccl stands below or beside launch")
        self.assert_one_violation({"src/comm/mpi/a.cpp": '#include "comm/nccl/b.hpp"\n'}, "mpi stands below or beside nccl")
        self.assertEqual(violations_in({"src/comm/launch.cpp": '#include "comm/nccl/b.hpp"\n#include "comm/start.hpp"\n'}), [])

    def test_libtorch_outside_of_the_adapter_is_found(self):
        self.assert_one_violation({"src/comm/a.cpp": "#include <torch/torch.h>\n"}, "libtorch is for the adapter alone")
        self.assert_one_violation({"nn/src/a.cpp": '#include "tessera/torch/units.hpp"\n'}, "for the adapter alone")
        self.assertEqual(violations_in({"torch/src/a.cpp": "#include <ATen/Functions.h>\n"}), [])

    def test_a_public_header_that_needs_an_internal_one_is_found(self):
        self.assert_one_violation({"include/tessera/plan/a.hpp": '#include "plan/b.hpp"\n'}, "internal")

    def test_a_public_header_that_needs_another_library_is_found(self):
        for folder in ["include/tessera/comm", "nn/include/tessera/nn", "vision/include/tessera/vision", "torch/include/tessera/torch"]:
            for header in ["fmt/format.h", "nlohmann/json.hpp", "cuda_runtime.h", "mpi.h", "nccl.h"]:
                self.assert_one_violation({f"{folder}/a.hpp": f"#include <{header}>\n"}, "nothing but the standard library")
        self.assertEqual(violations_in({"include/tessera/device/a.cuh": "#include <cuda_runtime.h>\n"}), [])

    def test_the_library_that_knows_nn_is_found(self):
        self.assert_one_violation({"src/checkpoint/a.cpp": '#include "tessera/nn/linear.hpp"\n'}, "nn")
        self.assert_one_violation({"src/data/a.cpp": '#include "tessera/vision/images.hpp"\n'}, "vision")

    def test_nn_that_knows_vision_is_found(self):
        self.assert_one_violation({"nn/src/a.cpp": '#include "vision/src/pool_sides.hpp"\n'}, "nn must not know vision")
        self.assertEqual(violations_in({"vision/src/a.cpp": '#include "nn/src/gemm.hpp"\n#include <png.h>\n'}), [])
        self.assert_one_violation({"src/data/a.cpp": "#include <jpeglib.h>\n"}, "for vision alone")

    def test_nn_and_programs_that_use_internal_headers_are_found(self):
        for folder in ["nn/src", "vision/src", "models", "trainer", "examples", "bench", "tools"]:
            self.assert_one_violation({f"{folder}/a.cpp": '#include "plan/b.hpp"\n'}, "only public headers")

    def test_includes_that_hide_their_part_are_found(self):
        self.assert_one_violation({"src/plan/a.cpp": '#include "../shard/b.hpp"\n'}, "relative to its file")
        self.assert_one_violation({"src/plan/a.cpp": '#include "b.hpp"\n'}, "without its part's folder")

    def test_the_umbrella_inside_the_library_is_found(self):
        self.assert_one_violation({"src/data/a.cpp": '#include "tessera/tessera.hpp"\n'}, "one by one")

    def test_nccl_and_mpi_in_two_files_are_found(self):
        for header in ["nccl.h", "mpi.h"]:
            text = f"#include <{header}>\n"
            self.assert_one_violation({"src/comm/a.cpp": text, "src/comm/b.cpp": text}, "src/comm/a.cpp, src/comm/b.cpp")

    def test_a_kernel_launch_in_the_wrong_folder_is_found(self):
        self.assert_one_violation({"src/shard/a.cu": "k<<<1, 1>>>();\n"}, "launches a kernel")


if __name__ == "__main__":
    unittest.main()
