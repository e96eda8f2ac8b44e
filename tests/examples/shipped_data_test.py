#!/usr/bin/env python3
"""Programs find the data that is shipped with them wherever they stand.

usage: shipped_data_test.py TRAIN_MLP
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest


class ShippedData(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "moved"
        self.program = self.root / "build/examples/train_mlp"
        self.program.parent.mkdir(parents=True)
        shutil.copy(PROGRAM, self.program)

    def error_of_run(self, **variables):
        environment = {key: value for key, value in os.environ.items() if key != "TESSERA_EXAMPLES_DATA"}
        done = subprocess.run([self.program, "--data", "digits", "--steps", "1"], env=environment | variables,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        return done.stderr

    def test_a_program_that_was_moved_reads_what_was_moved_with_it(self):
        data = self.root / "examples/data/digits.csv"
        data.parent.mkdir(parents=True)
        data.write_text("no digits\n", encoding="utf-8")
        self.assertIn(str(data), self.error_of_run())

    def test_what_is_written_is_told_from_data_by_its_place(self):
        data = self.root / "digits.csv"
        shutil.copy(pathlib.Path(__file__).parents[2] / "examples/data/digits.csv", data)
        content = data.read_bytes()
        command = [self.program, "--steps", "1", "--hidden", "4", "--quiet", "--metrics"]

        def run(metrics):
            return subprocess.run([*command, metrics], env=os.environ | {"TESSERA_EXAMPLES_DATA": str(self.root)}, cwd=self.root,
                                  capture_output=True, text=True, check=False)

        refused = run(data)
        self.assertEqual((refused.returncode, data.read_bytes()), (2, content))
        self.assertIn(f"--metrics would overwrite the file of --data, {data}", refused.stderr)
        for _ in range(2):  # its name is that of the data, and the second time it is there
            self.assertEqual(run("digits").returncode, 0)

    def test_a_variable_names_another_folder(self):
        self.assertIn("/nowhere/digits.csv", self.error_of_run(TESSERA_EXAMPLES_DATA="/nowhere"))


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    unittest.main(argv=sys.argv[:1])
