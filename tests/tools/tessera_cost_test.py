#!/usr/bin/env python3
"""The tool `tessera cost`: worked numbers to the last digit, JSON, figures, and one line that names a bad option.

usage: tessera_cost_test.py TESSERA
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

import plan_runs

TOOL = sys.argv.pop(1)
BAD_OPTIONS, FAILED = 2, 1
ALLREDUCE = ["allreduce", "--bytes", "100MB", "--ranks", "4", "--bandwidth", "1.25GB/s"]
JOB = ["job", "--samples", "1280000", "--batch", "256", "--ranks", "4", "--throughput", "200"]
GAINS = ["--precision-gain", "0.3", "--overhead", "0.1", "--lr", "0.1", "--epochs", "90"]
SCALING = ["scaling", "--serial-fraction", "0.01,0.1"]


def cost(*arguments, **environment):
    return subprocess.run([TOOL, "cost", *arguments], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, **environment})


def found(*arguments):
    """The JSON object of a question that must be answered."""
    done = cost(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class AllReduce(unittest.TestCase):
    def test_100_megabytes_over_10_gigabit_take_120_milliseconds(self):
        answer = found(*ALLREDUCE, "--compute", "300ms")
        self.assertEqual(answer["all_reduce"], {"bytes_per_rank": 150e6, "rounds": 6, "seconds": 0.12})
        for half in ["reduce_scatter", "all_gather"]:
            self.assertEqual(answer[half], {"bytes_per_rank": 75e6, "rounds": 3, "seconds": 0.06})
        self.assertAlmostEqual(answer["no_overlap"]["share"], 0.12 / 0.42, delta=1e-15)
        self.assertAlmostEqual(answer["no_overlap"]["step_seconds"], 0.42, delta=1e-15)
        for overlap in ["backward_overlap", "full_overlap"]:
            self.assertEqual(answer[overlap], {"exposed_seconds": 0, "step_seconds": 0.3, "share": 0, "amdahl_speedup": 4})
        share = 0.12 / 0.42
        self.assertAlmostEqual(answer["no_overlap"]["amdahl_speedup"], 1 / (share + (1 - share) / 4), delta=1e-12)

    def test_half_precision_halves_bytes_and_time(self):
        for dtype in ["fp16", "bf16"]:
            answer = found(*ALLREDUCE, "--compute", "300ms", "--dtype", dtype)
            self.assertEqual(answer["all_reduce"], {"bytes_per_rank": 75e6, "rounds": 6, "seconds": 0.06})
            self.assertAlmostEqual(answer["no_overlap"]["share"], 1 / 6, delta=1e-15)

    def test_the_text_has_the_same_numbers(self):
        text = cost(*ALLREDUCE, "--compute", "300ms").stdout
        self.assertRegex(text, r"(?m)^all-reduce +150 MB +6 +120 ms$")
        self.assertRegex(text, r"(?m)^reduce-scatter +75 MB +3 +60 ms$")
        self.assertRegex(text, r"(?m)^nothing +120 ms +420 ms +28\.6 % +2\.15$")
        self.assertRegex(text, r"(?m)^all of compute +0 s +300 ms +0\.0 % +4\.00$")
        self.assertRegex(cost(*ALLREDUCE, "--compute", "300ms", "--dtype", "fp16").stdout, r"(?m)^nothing .* 16\.7 % +2\.67$")
        self.assertNotIn("compute", cost(*ALLREDUCE).stdout)

    def test_what_is_longer_than_its_cover_stays_exposed(self):
        answer = found(*ALLREDUCE, "--compute", "90ms")
        self.assertAlmostEqual(answer["backward_overlap"]["exposed_seconds"], 0.06, delta=1e-15)
        self.assertAlmostEqual(answer["full_overlap"]["exposed_seconds"], 0.03, delta=1e-15)
        self.assertAlmostEqual(answer["full_overlap"]["step_seconds"], 0.12, delta=1e-15)

    def test_every_round_waits_for_the_latency(self):
        for ranks in [1, 2, 3, 5, 7]:
            answer = found("allreduce", "--bytes", "1GB", "--ranks", str(ranks), "--bandwidth", "8Gbit/s", "--latency", "5us")
            expected = 2 * (ranks - 1) * 5e-6 + 2 * (ranks - 1) / ranks
            self.assertAlmostEqual(answer["all_reduce"]["seconds"], expected, delta=1e-12)


class Job(unittest.TestCase):
    def test_imagenet_takes_1368_seconds_per_epoch(self):
        answer = found(*JOB, *GAINS)
        self.assertEqual((answer["global_batch"], answer["steps_per_epoch"], answer["steps"]), (1024, 1250, 112500))
        self.assertAlmostEqual(answer["samples_per_second"], 936, delta=1e-11)
        self.assertAlmostEqual(answer["seconds_per_epoch"], 1280000 / 936, delta=1e-9)
        self.assertAlmostEqual(answer["seconds"], 90 * 1280000 / 936, delta=1e-7)
        self.assertEqual(answer["learning_rate"], {"base": 0.1, "linear": 0.4, "square_root": 0.2, "warm_up_epochs": 5,
                                                   "warm_up_steps": 6250})

    def test_the_text_has_the_same_numbers(self):
        text = cost(*JOB, *GAINS).stdout
        for line in [r"global batch +1,024 ", r"steps per epoch +1,250 ", r"throughput +936 ", r"time per epoch +1367\.52 s ",
                     r"time of the job +34\.19 h  for 90 epochs, 112,500 steps$", r"learning rate +0\.4 ",
                     r"warm-up +6,250 +steps \(5 epochs\)", r"with Adam +0\.2 "]:
            self.assertRegex(text, f"(?m)^{line}")

    def test_advice_that_does_not_fit_is_said_to(self):
        self.assertNotIn("note:", cost(*JOB, *GAINS).stdout)
        self.assertIn("the whole job", cost(*JOB, "--lr", "0.1", "--epochs", "5").stdout)
        self.assertIn("8,192", cost("job", "--samples", "1.28M", "--batch", "8193", "--ranks", "1", "--throughput", "1",
                                    "--lr", "0.1").stdout)

    def test_units_are_those_that_people_write(self):
        self.assertEqual(found("job", "--samples", "1.28M", "--batch", "256", "--ranks", "4", "--throughput", "200/s",
                               "--precision-gain", "30%", "--overhead", "10%", "--lr", "1e-1", "--epochs", "90"),
                         found(*JOB, *GAINS))

    def test_the_largest_numbers_are_counted(self):
        answer = found("job", "--samples", "1000B", "--batch", "1", "--ranks", "1", "--throughput", "1e-6", "--epochs", "1000000")
        self.assertEqual(answer["steps"], 10**18)
        self.assertTrue(math.isfinite(answer["seconds"]))


class Scaling(unittest.TestCase):
    def test_points_are_amdahls(self):
        curves = found(*SCALING, "--ranks", "1,2,3,64")["scaling"]
        self.assertEqual([curve["serial_fraction"] for curve in curves], [0.01, 0.1])
        self.assertEqual([curve["limit"] for curve in curves], [100, 10])
        for curve in curves:
            self.assertEqual([point["ranks"] for point in curve["points"]], [1, 2, 3, 64])
            for point in curve["points"]:
                expected = 1 / (curve["serial_fraction"] + (1 - curve["serial_fraction"]) / point["ranks"])
                self.assertAlmostEqual(point["speedup"], expected, delta=1e-12)
                self.assertAlmostEqual(point["efficiency"], expected / point["ranks"], delta=1e-12)

    def test_the_table_has_a_row_for_each_count_of_ranks(self):
        text = cost(*SCALING, "--ranks", "1,64").stdout
        self.assertRegex(text, r"(?m)^ +64 +39\.26 +61\.3 % +8\.77 +13\.7 %$")
        self.assertRegex(text, r"(?m)^ +limit +100\.00 +10\.00$")

    def test_nothing_serial_has_no_limit(self):
        self.assertIsNone(found("scaling", "--serial-fraction", "0")["scaling"][0]["limit"])
        self.assertRegex(cost("scaling", "--serial-fraction", "0").stdout, r"limit +none")


class Chart(unittest.TestCase):
    def test_times_are_those_of_allreduce(self):
        answer = found("chart", "--ranks", "4", "--parameters", "25M", "--latency", "5us")
        for link in answer["links"]:
            single = found("allreduce", "--bytes", "100MB", "--ranks", "4", "--latency", "5us", "--bandwidth",
                           f"{link['bandwidth_bytes_per_second']}B/s")
            self.assertEqual(link["seconds"], [single["all_reduce"]["seconds"]])

    def test_rates_are_shown_and_can_be_changed(self):
        for option, name in [("--nvlink", "NVLink"), ("--infiniband", "InfiniBand"), ("--pcie", "PCIe"), ("--ethernet", "Ethernet")]:
            rates = {link["name"]: link["bandwidth_bytes_per_second"] for link in found("chart", option, "7GB/s")["links"]}
            self.assertEqual(rates.pop(name), 7e9)
            self.assertNotIn(7e9, rates.values())
            self.assertIn("7 GB/s", cost("chart", option, "7GB/s").stdout)
        self.assertRegex(cost("chart").stdout, r"(?m)^ +450 GB/s +50 GB/s +31\.5 GB/s +1\.25 GB/s$")

    def test_models_go_from_a_million_to_a_hundred_billion(self):
        self.assertEqual(found("chart")["parameters"], [10**n for n in range(6, 12)])


class Figures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def files(self):
        return sorted(path.name for path in self.folder.iterdir())

    def test_figures_are_drawn_whole_and_the_same_each_time(self):
        if plan_runs.plotting_python() is None:
            self.skipTest("matplotlib is missing (Debian: python3-matplotlib)")
        for question, words in [(["chart"], ["NVLink, 450 GB/s", "Ethernet, 1.25 GB/s", "100 B", "10 ms"]),
                                (SCALING, ["1 % serial", "10 % serial", "ideal", "1,024"])]:
            done = cost(*question, "--plot", str(self.folder / "a.svg"))
            self.assertEqual((done.returncode, done.stdout), (0, cost(*question).stdout), done.stderr)
            drawing = (self.folder / "a.svg").read_text(encoding="utf-8")
            xml.dom.minidom.parseString(drawing)
            for word in words:
                self.assertIn(word, drawing)
            cost(*question, "--plot", str(self.folder / "a.svg"))
            self.assertEqual((self.folder / "a.svg").read_text(encoding="utf-8"), drawing)
        self.assertEqual(cost("chart", "--plot", str(self.folder / "b.png")).returncode, 0)
        self.assertEqual((self.folder / "b.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual(self.files(), ["a.svg", "b.png"])

    def test_a_folder_that_is_not_there_is_named(self):
        if plan_runs.plotting_python() is None:
            self.skipTest("matplotlib is missing (Debian: python3-matplotlib)")
        done = cost("chart", "--plot", str(self.folder / "none" / "a.svg"))
        self.assertEqual((done.returncode, done.stdout), (FAILED, ""))
        self.assertIn(f"cannot write {self.folder}/none/a.svg: No such file", done.stderr)

    def test_without_matplotlib_the_package_is_named_and_no_file_is_left(self):
        bare = self.folder / "python"
        bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n', encoding="utf-8")  # no installed packages
        bare.chmod(0o755)
        for python in [bare, self.folder / "nowhere"]:
            done = cost("chart", "--plot", str(self.folder / "a.svg"), TESSERA_PLOT_PYTHON=str(python))
            self.assertEqual((done.returncode, done.stdout), (FAILED, ""))
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn("apt-get install python3-matplotlib", done.stderr)
        self.assertEqual(self.files(), ["python"])


class BadOptions(unittest.TestCase):
    def assert_refused(self, arguments, *words):
        done = cost(*arguments)
        self.assertEqual((done.returncode, done.stdout), (BAD_OPTIONS, ""), (arguments, done.stderr))
        self.assertEqual(done.stderr.count("\n"), 1, (arguments, done.stderr))
        for word in words:
            self.assertIn(word, done.stderr, arguments)

    def assert_all_refused(self, question, option, values, words):
        """Each value of the option, in both ways of writing it, instead of the one that the question has."""
        if option in question:
            place = question.index(option)
            question = question[:place] + question[place + 2:]
        for value in values:
            self.assert_refused([*question, f"{option}={value}"], f"{option} takes", words, f'not "{value}"')
            self.assert_refused([*question, option, value], f"{option} takes", words, f'not "{value}"')

    def test_a_wrong_unit_or_number_is_named_with_what_the_option_takes(self):
        wrong = ["0", "-1"]  # quantity_test.cpp has all kinds of them
        self.assert_all_refused(ALLREDUCE, "--bytes", [*wrong, "100 apples", "-100MB"], "100MB or 64MiB")
        self.assert_all_refused(ALLREDUCE, "--bandwidth", [*wrong, "1.25GB"], "10Gbit/s")
        for option in ["--latency", "--compute"]:
            self.assert_all_refused(ALLREDUCE, option, ["5", "-5us"], "5us or 300ms")
        for question in [ALLREDUCE, JOB, SCALING, ["chart"]]:
            self.assert_all_refused(question, "--ranks", [*wrong, "1048577"], "whole number")
        for option in ["--samples", "--batch", "--epochs"]:
            self.assert_all_refused(JOB, option, [*wrong, "1.5"], "whole number")
        self.assert_all_refused(JOB, "--throughput", wrong, "samples per second")
        self.assert_all_refused(JOB, "--precision-gain", ["-1"], "30%")
        self.assert_all_refused(JOB, "--overhead", ["-1", "1", "100%"], "10%")
        self.assert_all_refused(JOB, "--lr", wrong, "learning rate")
        self.assert_all_refused(SCALING, "--serial-fraction", ["-0.1", "101%"], "from 0 to 1")
        for option in ["--nvlink", "--infiniband", "--pcie", "--ethernet"]:
            self.assert_all_refused(["chart"], option, wrong, "10Gbit/s")

    def test_lists_are_complete_and_rise(self):
        for value in [",", "1,", "1,,2", "2,1", "1,1", "1,2,..."]:
            self.assert_refused([*SCALING, "--ranks", value], "--ranks takes")
            self.assert_refused(["chart", "--parameters", value], "--parameters takes")
        self.assert_refused(["scaling", "--serial-fraction", ",".join(["0.1"] * 9)], "--serial-fraction takes up to 8")
        self.assert_refused([*SCALING, "--ranks", ",".join(map(str, range(1, 66)))], "--ranks takes up to 64")

    def test_choices_and_figures_are_named(self):
        for question in [ALLREDUCE, ["chart"]]:
            self.assert_refused([*question, "--dtype", "int8"], "--dtype takes fp32|bf16|fp16", "int8")
        for question in [SCALING, ["chart"]]:
            for name in ["a.pdf", "a", "svg", "a.SVG", "a.svg.txt"]:
                self.assert_refused([*question, "--plot", name], "--plot takes a file name", ".svg or .png", name)
        self.assert_refused(["chart", "--ranks", "1", "--plot", "a.svg"], "--plot needs --ranks of 2")

    def test_options_missing_given_twice_without_value_or_unknown_are_named(self):
        for question, options in [(ALLREDUCE, ["--bytes", "--ranks", "--bandwidth"]), (SCALING, ["--serial-fraction"]),
                                  (JOB, ["--samples", "--batch", "--ranks", "--throughput"])]:
            for option in options:
                place = question.index(option)
                self.assert_refused(question[:place] + question[place + 2:], option, "required")
                self.assert_refused([*question, option, "1"], f"{option} is given twice")
                self.assert_refused([*question[:place], option], option)
                self.assert_refused([*question[:place], f"{option}="], option)
        for question in [ALLREDUCE, JOB, SCALING, ["chart"]]:
            self.assert_refused([*question, "--colour", "red"], "--colour")
            self.assert_refused([*question, "surplus"], "surplus")

    def test_unknown_subcommands_are_named(self):
        for arguments in [[], ["broadcast"], ["--json"], ["--help", "job"]]:
            self.assert_refused(arguments, "allreduce, job, scaling or chart", *arguments[:1])


class Help(unittest.TestCase):
    OPTIONS = {"allreduce": ["--bytes", "--ranks", "--bandwidth", "--latency", "--compute", "--dtype", "--json"],
               "job": ["--samples", "--batch", "--ranks", "--throughput", "--precision-gain", "--overhead", "--epochs", "--lr",
                       "--json"],
               "scaling": ["--serial-fraction", "--ranks", "--plot", "--json"],
               "chart": ["--ranks", "--parameters", "--nvlink", "--infiniband", "--pcie", "--ethernet", "--latency", "--dtype",
                         "--plot", "--json"]}

    def test_help_names_every_option_and_its_example_runs(self):
        for name, options in self.OPTIONS.items():
            done = cost(name, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for option in options:
                self.assertIn(option, done.stdout)
            self.assertIn(f"tessera cost {name}", cost("--help").stdout)
            self.check_examples(done.stdout)
        self.check_examples(cost("--help").stdout)
        done = subprocess.run([TOOL, "--help"], capture_output=True, text=True, check=False)
        self.assertIn("tessera cost --help", done.stdout)

    def check_examples(self, page):
        examples = [line.split() for line in page.replace(" \\\n", " ").splitlines() if line.startswith("  ") and
                    line.strip().startswith("tessera cost")]
        self.assertTrue(examples)
        for words in examples:
            if "--plot" in words:
                words = words[:words.index("--plot")]
            done = cost(*words[2:])
            self.assertEqual(done.returncode, 0, (words, done.stderr))


class Documentation(unittest.TestCase):
    def test_docs_show_what_the_tool_prints(self):
        examples = list(plan_runs.shown_in_docs("tessera cost"))
        self.assertEqual(len(examples), 2)
        for arguments, shown in examples:
            self.assertEqual(cost(*arguments).stdout, shown)


if __name__ == "__main__":
    unittest.main()
