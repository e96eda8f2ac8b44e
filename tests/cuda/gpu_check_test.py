#!/usr/bin/env python3
"""scripts/gpu-check where there is no GPU: it says which parts did not run, and that is no failure; and what is asked of it
must be there.

usage: gpu_check_test.py SCRIPT BUILD
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest


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
