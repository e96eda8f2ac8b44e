#!/usr/bin/env python3
"""plot_chart.py: what a chart says is in the figure, and a chart that cannot be drawn is refused.

usage: plot_chart_test.py PLOT_CHART
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import plan_runs

SCRIPT = sys.argv.pop(1)
BAD_CHART, NO_MATPLOTLIB = 2, 3
LINES = {"kind": "lines", "title": "The title", "note": "The note",
         "x": {"label": "ranks", "scale": "log2"}, "y": {"label": "time", "scale": "log", "format": "seconds"},
         "series": [{"name": "measured", "x": [1, 2, 4], "y": [0.1, 1, 100]},
                    {"name": "ideal", "x": [1, 4], "y": [1, 100], "reference": True}]}
BARS = {"kind": "stacked_bars", "title": "The title", "bars": ["ddp", "fsdp"], "y": {"label": "memory", "format": "bytes"},
        "series": [{"name": "parameters", "y": [28e9, 7e9]}, {"name": "optimizer", "y": [56e9, 14e9]}],
        "limits": [{"name": "what a GPU has", "y": 80e9}]}
DOTS = {"kind": "dots", "title": "The title", "note": "The note", "x": {"label": "speed", "scale": "log"},
        "series": [{"name": "Steps", "rows": ["MLP", "GPT"], "x": [1.9, 0.5], "texts": ["1.9 times", "half"]},
                   {"name": "Kernels", "rows": ["cast"], "x": [1], "texts": ["as fast"]}],
        "limits": [{"name": "the other's", "x": 1}]}

TABLE = {"kind": "table", "title": "The title", "note": "The note", "x": {"label": "told"}, "y": {"label": "is"},
         "rows": ["cat", "dog"], "columns": ["cat", "dog"], "values": [[907, 0], [21, 1234]]}


PYTHON = plan_runs.plotting_python()


@unittest.skipIf(PYTHON is None, "matplotlib is missing (Debian: python3-matplotlib)")
class PlotChart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.figure = pathlib.Path(folder.name) / "a.svg"

    def draw(self, chart):
        return subprocess.run([PYTHON, SCRIPT, "-", str(self.figure)], input=chart if isinstance(chart, str) else json.dumps(chart),
                              capture_output=True, text=True, check=False)

    def drawn(self, chart):
        done = self.draw(chart)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return self.figure.read_text(encoding="utf-8")

    def assert_refused(self, chart, words):
        done = self.draw(chart)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (BAD_CHART, 1), done.stderr)
        self.assertIn(words, done.stderr)
        self.assertEqual(list(self.figure.parent.iterdir()), [])

    def test_lines_have_their_names_labels_and_ticks_with_units(self):
        drawing = self.drawn(LINES)
        for text in ["The title", "The note", "ranks", "time", "measured", "ideal", "100 ms", "1 s", "100 s"]:
            self.assertIn(f">{text}</text>", drawing)

    def test_bars_have_their_names_totals_and_limits(self):
        drawing = self.drawn(BARS)
        for text in ["ddp", "fsdp", "memory", "parameters", "optimizer", "84 GB", "21 GB", "what a GPU has"]:
            self.assertIn(f">{text}</text>", drawing)

    def test_dots_have_their_rows_texts_groups_and_limits(self):
        drawing = self.drawn(DOTS)
        for text in ["The title", "The note", "speed", "Steps", "Kernels", "MLP", "GPT", "cast", "1.9 times", "half", "as fast",
                     "the other's"]:
            self.assertIn(f">{text}</text>", drawing)

    def test_tables_have_their_names_and_counts(self):
        drawing = self.drawn(TABLE)
        for text in ["The title", "The note", "told", "is", "cat", "dog", "907", "21", "1,234"]:
            self.assertIn(f">{text}</text>", drawing)
        self.assertNotIn(">0</text>", drawing)
        self.drawn({**TABLE, "rows": ["a"], "columns": ["b"], "values": [[0]]})
        names = [str(i) for i in range(100)]
        self.assertNotIn(">7777</text>", self.drawn({**TABLE, "rows": names, "columns": names, "values": [[7777] * 100] * 100}))

    def test_odd_charts_are_drawn(self):
        self.drawn({**DOTS, "series": [{"name": "nothing", "rows": ["one"], "x": [3], "texts": [""]}], "limits": []})
        self.drawn({**LINES, "series": [{"name": "one", "x": [7], "y": [3]}]})
        self.drawn({**BARS, "series": [{"name": "nothing", "y": [0, 0]}], "limits": []})
        self.drawn({**BARS, "series": [{"name": f"part {n}", "y": [n, 1]} for n in range(13)]})
        self.drawn({**LINES, "x": {"label": "x"}, "series": [{"name": "falls", "x": [0, 1], "y": [1e-9, 1e12]}]})

    def test_a_chart_that_cannot_be_drawn_is_refused_and_leaves_nothing(self):
        for chart, words in [("", "Expecting value"), ({}, "kind"), ({**LINES, "series": [{"name": "a", "x": [1], "y": [1, 2]}]}, "same"),
                             ({**LINES, "y": {"format": "miles"}}, "miles"), ({**TABLE, "values": [[1, 2], [3]]}, "")]:
            with self.subTest(words=words):
                self.assert_refused(chart, words)


class PlotChartWithoutMatplotlib(unittest.TestCase):
    def test_the_package_is_named(self):
        done = subprocess.run([sys.executable, "-I", "-S", SCRIPT, "-", "a.svg"], input="{}", capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, NO_MATPLOTLIB)
        self.assertIn("apt-get install python3-matplotlib", done.stderr)

    def test_help_describes_a_chart(self):
        done = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0)
        for word in ["stacked_bars", "lines", "dots", "log2", "seconds", "limits"]:
            self.assertIn(word, done.stdout)


if __name__ == "__main__":
    unittest.main()
