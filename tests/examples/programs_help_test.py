#!/usr/bin/env python3
"""Every program says by --help what it does, what it takes and how it is called, and refuses what it does not know.

usage: programs_help_test.py PROGRAM...
"""
import pathlib
import re
import sys
import unittest

import trainer_runs

PROGRAMS = [pathlib.Path(path) for path in sys.argv[1:]]
MOST_COLUMNS = 120
SECOND_PROCESS = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}


class Help(unittest.TestCase):
    def test_page(self):
        for program in PROGRAMS:
            with self.subTest(program=program.name):
                done = trainer_runs.run(program, "--help")
                page = done.stdout
                self.assertEqual((done.returncode, done.stderr), (0, ""), page)
                # A program says what it does, ahead of how it is called.
                self.assertGreater(len(page[:page.index("Usage:")].split()), 5, page)
                self.assertRegex(page, r"\n  --\w")
                example = re.search(rf"\nExamples?:\s+(\S*{program.name}) --\w", page)
                self.assertTrue(example, f"no example of a call in\n{page}")
                too_long = [line for line in page.splitlines() if len(line.replace(str(program), program.name)) > MOST_COLUMNS]
                self.assertEqual(too_long, [])

    def test_page_beside_other_options(self):
        for program in PROGRAMS:
            with self.subTest(program=program.name):
                self.assertEqual(trainer_runs.run(program, "--ranks", 2, "--help").stdout,
                                 trainer_runs.run(program, "--help").stdout)

    def test_one_page_of_several_processes(self):
        for program in PROGRAMS:
            with self.subTest(program=program.name):
                done = trainer_runs.run(program, "--help", variables=SECOND_PROCESS)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_page_that_cannot_be_written(self):
        for program in PROGRAMS:
            with self.subTest(program=program.name):
                done = trainer_runs.run("/bin/sh", "-c", '"$0" --help >/dev/full', program)
                self.assertNotEqual(done.returncode, 0)
                self.assertRegex(done.stderr, r"\Aerror: .*standard output.*\n\Z")

    def test_wrong_option(self):
        for program in PROGRAMS:
            for wrong in ["--surplus", "surplus"]:
                with self.subTest(program=program.name, wrong=wrong):
                    done = trainer_runs.run(program, wrong)
                    self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                    self.assertRegex(done.stderr, rf'\Aerror: .*"{wrong}"; --help lists the options\n\Z')


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
