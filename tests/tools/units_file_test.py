#!/usr/bin/env python3
"""Models from a file for `tessera plan --units`: what the format says, and errors that name the place.

usage: units_file_test.py TESSERA
"""
import json
import os
import pathlib
import sys
import tempfile
import unittest

import plan_runs

TOOL = sys.argv.pop(1)


def unit(name, *shapes, **more):
    return {"name": name, "parameters": [{"name": f"p{i}", "shape": shape} for i, shape in enumerate(shapes)], **more}


class UnitsFile(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name) / "model.json"

    def run_text(self, text, *options, world=3):
        self.path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return plan_runs.run(TOOL, "--units", self.path, "--world", world, *options)

    def plan(self, content, *options, world=3):
        done = self.run_text(json.dumps(content), *options, "--json", world=world)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def assert_refused(self, content, words):
        text = content if isinstance(content, (str, bytes)) else json.dumps(content)
        done = self.run_text(text)
        self.assertEqual((done.returncode, done.stdout), (1, ""), (text[:200], done.stderr))
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("model.json", done.stderr)
        self.assertIn(words, done.stderr)
        self.assertLess(len(done.stderr), 1000)

    def test_a_perceptron_written_down_is_the_perceptron(self):
        def layer(name, inputs, outputs):
            return {"name": name, "parameters": [{"name": "weight", "shape": [outputs, inputs]},
                                                 {"name": "bias", "shape": [outputs]}]}
        content = {"units": [layer("layers.0", 64, 128), layer("layers.1", 128, 10)]}
        expected = plan_runs.plan(TOOL, "--mlp", "64x128x10", "--world", 3)
        self.assertEqual(self.plan(content)["hash"], expected["hash"])
        windows = [f"{kind} layers.{layer}" for kind, layers in [("forward", [0, 1]), ("backward", [1, 0])]
                   for layer in layers]
        program = {"micro_batch": windows, "evaluation": ["evaluate layers.0", "evaluate layers.1"]}
        self.assertEqual(self.plan({**content, "program": program})["hash"], expected["hash"])
        program["micro_batch"].insert(2, "recompute layers.1")
        self.assertNotEqual(self.plan({**content, "program": program})["hash"], expected["hash"])

    def test_units_in_each_replica_stay_there(self):
        content = {"units": [unit("a", [1000, 300]), unit("expert", [2000, 300], in_replica=True)]}
        found = self.plan(content, "--replicas", 2, "--strategy", "hsdp", world=6)["traffic"]["collectives"]
        both = self.plan({"units": [unit("a", [1000, 300]), unit("expert", [2000, 300])]}, "--replicas", 2, "--strategy", "hsdp",
                         world=6)["traffic"]["collectives"]
        self.assertEqual(found["reduce-scatter"]["count"] if "reduce-scatter" in found else 0, 0)
        self.assertEqual(found["reduce-scatter inside replicas"]["count"], 2)
        self.assertEqual(found["reduce-scatter across replicas"]["count"], 1)
        self.assertEqual(both["reduce-scatter across replicas"]["count"], 2)
        self.assert_refused({"units": [unit("a", [3], in_replica=1)]}, "in_replica")

    def test_frozen_parameters_and_types_of_a_unit(self):
        content = {"units": [unit("a", [1000, 128]), unit("b", [1000, 128])]}
        plain = self.plan(content, "--strategy", "zero2")
        content["units"][0]["parameters"][0]["frozen"] = True
        frozen = self.plan(content, "--strategy", "zero2")
        self.assertLess(frozen["categories"]["optimizer"], plain["categories"]["optimizer"])
        content["units"][1]["precision"] = "bf16"
        mixed = self.plan(content, "--strategy", "zero2")
        # 2 bytes whole and a master's shard instead of a whole master.
        self.assertLess(mixed["categories"]["parameters"], frozen["categories"]["parameters"])

    def test_when_a_unit_is_gathered_and_how_long_it_stays(self):
        content = {"units": [unit("a", [1000, 128]), unit("b", [2000, 128]), unit("c", [1000, 128])]}
        def slots():
            return round(self.plan(content)["categories"]["parameter_slots"] / (4 * 128 * 1000), 1)
        self.assertEqual(slots(), 2 + 1)
        content["units"][0]["reshard_after_forward"] = False  # a slot of its own
        self.assertEqual(slots(), 1 + 2 + 1)
        content["units"][1]["prefetch"] = content["units"][2]["prefetch"] = 0  # these take turns in one
        self.assertEqual(slots(), 1 + 2)

    def test_a_unit_of_which_a_replicas_share_stays_is_gathered_across_replicas_once(self):
        content = {"units": [unit("a", [1000, 128]), unit("b", [2000, 128]), unit("c", [1000, 128])]}
        mesh = ["--replicas", 2, "--prefetch", 0]
        before = self.plan(content, *mesh, world=4)
        content["units"][0]["reshard_after_forward"] = "group"
        after = self.plan(content, *mesh, world=4)
        stays = after["categories"]["parameter_slots"] - before["categories"]["parameter_slots"]
        self.assertEqual(round(stays / (4 * 128 * 1000), 1), 0.5)
        self.assertEqual(after["traffic"]["collectives"]["all-gather across replicas"]["count"], 1)
        self.assertEqual(after["traffic"]["collectives"]["all-gather inside replicas"]["count"], 2)
        self.assertGreater(after["traffic"]["moved_in_replica"], before["traffic"]["moved_in_replica"])
        self.assertLess(after["traffic"]["moved"], before["traffic"]["moved"])

    def test_a_unit_that_recomputes_needs_no_window_in_the_program(self):
        content = {"units": [unit("a", [1000]), unit("b", [1000])]}
        windows = ["forward a", "forward b", "recompute b", "backward b", "backward a"]
        program = {"micro_batch": windows, "evaluation": ["evaluate a", "evaluate b"]}
        expected = self.plan({**content, "program": program})["hash"]
        content["units"][1]["recompute"] = True
        self.assertEqual(self.plan(content)["hash"], expected)

    def test_a_window_goes_on_behind_those_inside_it(self):
        content = {"units": [unit("outer", [1000]), unit("inner", [1000])]}
        there, back = ["forward outer", "forward inner"], ["backward inner", "backward outer"]
        chain = self.plan({**content, "program": {"micro_batch": [*there, *back]}})
        nested = {"micro_batch": [*there, "resume forward outer", "backward outer", "backward inner", "resume backward outer"]}
        self.assertNotEqual(self.plan({**content, "program": nested})["hash"], chain["hash"])

    def test_small_and_empty_shapes_are_planned(self):
        self.assertEqual(self.plan({"units": [unit("a", [], [0], [1, 3])]})["parameters"], 4)
        self.assertEqual(self.plan({"units": [unit("a", [5]), unit("b")]})["parameters"], 5)

    def test_wrong_places_are_named(self):
        good = unit("a", [3])
        for content, words in [
                ([], "the file: takes an object"),
                ({}, '"units" is missing'),
                ({"units": []}, "units: has no unit"),
                ({"units": {}}, "units: takes a list"),
                ({"units": [3]}, "units[0]: takes an object"),
                ({"units": [good], "x": 1}, 'unknown key "x"'),
                ({"units": [good, {"name": "b"}]}, 'units[1]: "parameters" is missing'),
                ({"units": [good, good]}, 'units[1].name: two units have the name "a"'),
                ({"units": [{**good, "name": ""}]}, "units[0].name"),
                ({"units": [{**good, "name": "n" * 513}]}, "units[0].name"),
                ({"units": [{**good, "name": "two\nlines"}]}, "units[0].name"),
                ({"units": [{**good, "precision": "fp8"}]}, "units[0].precision: takes fp32, bf16 or fp16"),
                ({"units": [{**good, "prefetch": -1}]}, "units[0].prefetch: takes a whole number"),
                ({"units": [{**good, "prefetch": 1025}]}, "units[0].prefetch"),
                ({"units": [{**good, "reshard_after_forward": 1}]},
                 'units[0].reshard_after_forward: takes true or false or "group", not 1'),
                ({"units": [{**good, "reshard_after_forward": "host"}]}, "units[0].reshard_after_forward: takes"),
                ({"units": [unit("a", [3, -1])]}, "units[0].parameters[0].shape[1]: takes a whole number"),
                ({"units": [unit("a", [3.0])]}, "units[0].parameters[0].shape[0]"),
                ({"units": [unit("a", [2**41])]}, "units[0].parameters[0].shape[0]"),
                ({"units": [unit("a", [2**40] * 4)]}, "units[0].parameters[0].shape"),
                ({"units": [unit("a", [1] * 9)]}, "units[0].parameters[0].shape: has 9 entries"),
                ({"units": [unit("a", 3)]}, "units[0].parameters[0].shape: takes a list"),
                ({"units": [{"name": "a", "parameters": [{"name": "p", "shape": [], "frozen": 1}]}]}, "parameters[0].frozen"),
                ({"units": [good], "program": {}}, 'program: "micro_batch" is missing'),
                ({"units": [good], "program": {"micro_batch": ["forward b"]}}, "program.micro_batch[0]"),
                ({"units": [good], "program": {"micro_batch": ["sideways a"]}}, "program.micro_batch[0]"),
                ({"units": [good], "program": {"micro_batch": ["forward"]}}, "program.micro_batch[0]")]:
            self.assert_refused(content, words)

    def test_broken_files_are_refused(self):
        for content, words in [("", "parse error"), ("{", "parse error"), ('{"units": [1e999]}', "model.json"),
                               (b"\xff\xfe", "parse error"), ("[" * 100000, "deeper than"), ('{"a":' * 100000, "deeper than"),
                               ('{"units": [], "units": []}', 'the key "units" is there twice'),
                               (" " * (16 * 2**20 + 1), "larger than")]:
            self.assert_refused(content, words)
        for path in [self.folder.name, self.path.with_name("none.json")]:
            done = plan_runs.run(TOOL, "--units", path)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
            self.assertIn(str(path), done.stderr)

    def test_a_pipe_is_refused_and_nobody_is_waited_for(self):
        os.mkfifo(self.path)
        done = plan_runs.run(TOOL, "--units", self.path, "--world", 3)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertIn("model.json: is not a regular file", done.stderr)

    def test_programs_and_sizes_that_cannot_be_planned_are_refused(self):
        good = unit("a", [3])
        for content, words in [
                ({"units": [good], "program": {"micro_batch": ["forward a"]}}, "no backward window"),
                ({"units": [good], "program": {"micro_batch": ["forward a", "resume backward a"]}}, "resumes"),
                ({"units": [good], "program": {"micro_batch": ["backward a"]}}, "before any forward"),
                ({"units": [unit("a", [2**40, 2**10])]}, "elements"),
                ({"units": [{"name": "a", "parameters": good["parameters"] * 2}]}, "a.p0")]:
            done = self.run_text(json.dumps(content))
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
