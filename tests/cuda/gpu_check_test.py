#!/usr/bin/env python3
"""scripts/gpu-check where there is no GPU: it says which parts did not run, and that is no failure; and what is asked of it
must be there.

usage: gpu_check_test.py SCRIPT BUILD
"""
import importlib.machinery
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest


def loaded(name, path):
    """A Python program as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class GpuCheck(unittest.TestCase):
    def run_script(self, *arguments):
        return subprocess.run([sys.executable, "-B", SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)

    def test_a_part_that_cannot_run_is_named_and_no_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.md"
            done = self.run_script("--build", BUILD, "--part", "device", "--report", report)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            text = report.read_text(encoding="utf-8")
        if "## device: passed" in text:
            self.skipTest("there is a GPU")
        self.assertIn("Did not run: device.", text)
        self.assertIn("skipped: this machine has no CUDA device", text)

    def test_without_a_gpu_nothing_runs_and_nothing_fails(self):
        done = self.run_script("--build", BUILD, "--part", "device")
        if "== device: passed" in done.stdout:
            self.skipTest("there is a GPU")
        done = self.run_script("--build", BUILD)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("Failed: nothing. Did not run: device, conformance, strategies, nn, trainers, nccl, memcheck, racecheck, "
                      "kernels, gpt.", done.stdout)

    def test_memcheck_counts_no_call_that_a_test_wants_refused(self):
        script = loaded("gpu_check", SCRIPT)
        parts = {part.name: part for part in script.parts(script.Build(BUILD), pathlib.Path(), None)}
        for command in parts["memcheck"].commands:
            self.assertEqual(command[command.index("--report-api-errors") + 1], "no", command)

    def test_the_peer_of_the_gpt_benchmark_has_the_presets_shape(self):
        root = pathlib.Path(SCRIPT).resolve().parent.parent
        presets = (root / "examples/train_gpt/shape.hpp").read_text(encoding="utf-8")
        vocabulary = int(re.search(r"preset_vocabulary = (\d+)", presets).group(1))
        self.assertEqual(loaded("compare", root / "bench/cuda_gpt/compare.py").SHAPE["vocabulary"], vocabulary)

    def test_bad_options_are_named(self):
        done = self.run_script("--part", "everything")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--part everything", done.stderr)
        with tempfile.TemporaryDirectory() as empty:
            done = self.run_script("--build", empty)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("is not there: build first", done.stderr)


if __name__ == "__main__":
    SCRIPT, BUILD = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
