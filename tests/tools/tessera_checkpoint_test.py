#!/usr/bin/env python3
"""The tool `tessera checkpoint`: what it lists, shows, finds damaged, exports and tells apart, and its exit codes.

usage: tessera_checkpoint_test.py TESSERA MAKE_CHECKPOINT
"""
import fcntl
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

TOOL, MAKE = sys.argv.pop(1), sys.argv.pop(1)
BAD_OPTIONS, NO = 2, 1
UNSPLIT = 5_000_000_000
SMALL = 2_500_000  # a limit that splits the sample


def make(folder, step, seed=0, split=UNSPLIT):
    done = subprocess.run([MAKE, folder, str(step), str(seed), str(split)], capture_output=True, text=True, check=True)
    return pathlib.Path(done.stdout.strip())


def checkpoint(*arguments):
    return subprocess.run([TOOL, "checkpoint", *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          check=False)


def answer(*arguments, code=0):
    done = checkpoint(*arguments, "--json")
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return json.loads(done.stdout)


def safetensors(path):
    """The header of a safetensors file, and its data."""
    content = path.read_bytes()
    [length] = struct.unpack("<Q", content[:8])
    return json.loads(content[8:8 + length]), content[8 + length:]


def values(path, name):
    """Of an F32 tensor, as a list."""
    header, data = safetensors(path)
    begin, end = header[name]["data_offsets"]
    return struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])


def bf16_bits(value):
    """Rounded to nearest, even where two are as near."""
    [bits] = struct.unpack("<I", struct.pack("<f", value))
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def flip_bit(path, place):
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))


class CheckpointTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def assert_one_line(self, done, code, words):
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertRegex(done.stderr, r"^tessera: [^\n]*\n$")
        self.assertIn(words, done.stderr)


class List(CheckpointTest):
    def test_checkpoints_stand_by_step_with_what_is_wrong_with_them(self):
        make(self.folder, 100)
        make(self.folder, 20)
        (make(self.folder, 300) / "manifest.json").unlink()
        make(self.folder, 400).rename(self.folder / "step-00000400.tmp")
        found = answer("list", self.folder)
        self.assertEqual([each["step"] for each in found["checkpoints"]], [20, 100, 300])
        self.assertEqual([each["valid"] for each in found["checkpoints"]], [True, True, False])
        self.assertIn("manifest.json: cannot be opened", found["checkpoints"][2]["fault"])
        self.assertEqual(found["unfinished"], ["step-00000400.tmp"])
        self.assertEqual(found["latest"], "step-00000100")
        text = checkpoint("list", self.folder).stdout
        self.assertRegex(text, r"step-00000100 +32\.\d MB +valid\n")
        self.assertRegex(text, r"step-00000300 +- +not valid\n")
        self.assertRegex(text, r"step-00000400.tmp +- +not finished\n")
        self.assertTrue(text.endswith("latest: step-00000100\n"), text)

    def test_an_empty_folder_has_none(self):
        self.assertEqual(checkpoint("list", self.folder).stdout, f"{self.folder}: no checkpoints\n")
        self.assertEqual(answer("list", self.folder)["latest"], None)

    def test_what_is_no_folder_of_checkpoints_is_refused(self):
        self.assert_one_line(checkpoint("list", self.folder / "none"), NO, "is no folder")
        self.assert_one_line(checkpoint("list", make(self.folder, 1)), NO, "tessera checkpoint show")


class Show(CheckpointTest):
    def test_tensors_have_names_shapes_dtypes_and_bytes(self):
        path = make(self.folder, 100)
        shown = answer("show", path)
        self.assertEqual(shown["state"]["step"], 100)
        self.assertEqual(shown["state"]["sampler"], {"samples": 1797, "seed": 3, "epoch": 2, "position": 64})
        self.assertEqual(shown["state"]["values"], {"note": "of a test"})
        self.assertEqual([len(shown[kind]) for kind in ["model", "optimizer", "buffers"]], [5, 10, 1])
        self.assertEqual(shown["model"][0], {"name": "embedding.weight", "shape": [1453, 1447], "dtype": "F32",
                                             "bytes": 1453 * 1447 * 4, "file": "model.safetensors"})
        self.assertEqual(shown["aliases"], {"head.weight": "embedding.weight"})
        text = checkpoint("show", path).stdout
        self.assertRegex(text, r"embedding\.weight +\[1453, 1447\] +F32 +8,409,964\n")
        self.assertIn("head.weight is embedding.weight\n", text)

    def test_a_folder_stands_for_its_latest(self):
        make(self.folder, 100)
        make(self.folder, 20)
        self.assertEqual(answer("show", self.folder)["state"]["step"], 100)

    def test_a_newest_that_cannot_be_used_is_named_and_no_older_one_is_taken_for_it(self):
        make(self.folder, 20)
        (make(self.folder, 300) / "manifest.json").unlink()
        for command in ["show", "verify"]:
            self.assert_one_line(checkpoint(command, self.folder), NO, "it belongs to the newest checkpoint in")

    def test_what_is_no_checkpoint_is_one_line(self):
        self.assert_one_line(checkpoint("show", self.folder), NO, "is no checkpoint (it has no manifest.json)")
        path = make(self.folder, 100)
        flip_bit(path / "state.json", 40)
        self.assert_one_line(checkpoint("show", path), NO, "state.json: bytes 0 to")


class Verify(CheckpointTest):
    def test_a_sound_checkpoint_is_read_whole(self):
        path = make(self.folder, 100)
        size = sum(file.stat().st_size for file in path.iterdir() if file.name != "manifest.json")
        self.assertEqual(answer("verify", path), {"checkpoint": str(path), "sound": True, "bytes": size, "faults": []})
        self.assertRegex(checkpoint("verify", self.folder).stdout, r": sound, 32\.\d MB\n$")

    def test_every_fault_has_its_line(self):
        path = make(self.folder, 100)
        flip_bit(path / "model.safetensors", 5_000_000)
        flip_bit(path / "optimizer.safetensors", 5_000_000)
        found = answer("verify", path, code=NO)
        self.assertFalse(found["sound"])
        self.assertEqual(len(found["faults"]), 2)
        done = checkpoint("verify", self.folder)
        self.assertEqual(done.returncode, NO)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 3)
        self.assertRegex(lines[0], r'model\.safetensors: bytes 4194304 to 8388607 .* tensor "embedding\.weight" is in them$')
        self.assertIn("DAMAGED, 2 faults", lines[2])


def model_and_buffers(path):
    """The headers' entries, and the data, of both files of a checkpoint."""
    (header, data), (buffers, rest) = (safetensors(path / f"{kind}.safetensors") for kind in ("model", "buffers"))
    for entry in (header, buffers):
        entry.pop("__metadata__", None)  # which a file without aliases lacks
    for entry in buffers.values():
        entry["data_offsets"] = [len(data) + offset for offset in entry["data_offsets"]]
    return header | buffers, data + rest


class Export(CheckpointTest):
    def test_fp32_is_the_model_and_its_buffers_to_the_bit(self):
        path, out = make(self.folder, 100), self.folder / "out.safetensors"
        found = answer("export", path, out)
        self.assertEqual((found["files"], found["tensors"], found["dtype"]), (1, 6, "fp32"))
        header, data = safetensors(out)
        stored_header, stored = model_and_buffers(path)
        self.assertEqual(data, stored)
        self.assertEqual(header.pop("__metadata__"), {"format": "pt", "head.weight": "embedding.weight", "writer": "a test"})
        self.assertEqual(header, stored_header)

    def test_bf16_is_rounded_to_the_nearest(self):
        path, out = make(self.folder, 100), self.folder / "out.safetensors"
        self.assertEqual(checkpoint("export", self.folder, out, "--dtype", "bf16").returncode, 0)
        header, data = safetensors(out)
        self.assertEqual(header["embedding.weight"]["dtype"], "BF16")
        begin, end = header["blocks.0.bias"]["data_offsets"]
        expected = [bf16_bits(value) for value in values(path / "model.safetensors", "blocks.0.bias")]
        self.assertEqual(list(struct.unpack("<7H", data[begin:end])), expected)

    def test_large_models_are_split_with_an_index(self):
        path, out = make(self.folder, 100), self.folder / "out"
        done = checkpoint("export", path, out, "--max-file-size", "2.5MB")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(file.name for file in out.iterdir()),
                         ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json"])
        index = json.loads((out / "model.safetensors.index.json").read_text())
        self.assertEqual(index["weight_map"]["embedding.weight"], "model-00001-of-00002.safetensors")
        self.assertEqual(index["weight_map"]["blocks.0.bias"], "model-00002-of-00002.safetensors")
        _, stored = model_and_buffers(path)
        self.assertEqual(index["metadata"], {"total_size": len(stored)})
        parts = [safetensors(out / f"model-0000{i}-of-00002.safetensors") for i in (1, 2)]
        self.assertEqual(parts[0][1] + parts[1][1], stored)
        self.assertEqual(parts[0][0]["__metadata__"], {"format": "pt", "head.weight": "embedding.weight", "writer": "a test"})
        self.assertEqual(parts[1][0]["__metadata__"], {"format": "pt", "writer": "a test"})

    def test_what_a_killed_export_left_goes_and_nobody_elses_files_do(self):
        path, partial = make(self.folder, 100), self.folder / "out.partial"
        partial.mkdir()
        (partial / "model-00001-of-00007.safetensors").write_text("half")
        (partial / "diary").write_text("dear")
        export = ["export", path, self.folder / "out", "--max-file-size", "2.5MB"]
        self.assert_one_line(checkpoint(*export), NO, "out.partial: has files that are no export's")
        (partial / "diary").unlink()
        directory = os.open(partial, os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX)
        self.assert_one_line(checkpoint(*export), NO, "out.partial: another program is writing here")
        os.close(directory)
        self.assertEqual(checkpoint(*export).returncode, 0)
        self.assertEqual(len(list((self.folder / "out").iterdir())), 3)

    def test_a_split_checkpoint_is_exported_whole(self):
        whole, split = make(self.folder / "a", 100), make(self.folder / "b", 100, split=SMALL)
        for path in (whole, split):
            self.assertEqual(checkpoint("export", path, path.parent / "out.safetensors").returncode, 0)
        self.assertEqual((self.folder / "a/out.safetensors").read_bytes(), (self.folder / "b/out.safetensors").read_bytes())

    def test_nothing_is_overwritten_and_nothing_half_done_is_left(self):
        path, out = make(self.folder, 100), self.folder / "out.safetensors"
        out.write_text("mine")
        self.assert_one_line(checkpoint("export", path, out), NO, "exists already: give another name, or remove it")
        self.assertEqual(out.read_text(), "mine")
        flip_bit(path / "model.safetensors", 10_000_000)
        for limit in ("5GB", "2.5MB"):
            self.assert_one_line(checkpoint("export", path, self.folder / "new", "--max-file-size", limit), NO,
                                 "do not match the manifest's checksum")
            self.assertEqual(sorted(each.name for each in self.folder.iterdir()), ["out.safetensors", path.name])


class Diff(CheckpointTest):
    def test_the_same_tensors_are_equal_however_they_are_split(self):
        a, b = make(self.folder / "a", 100), make(self.folder / "b", 200, split=SMALL)
        found = answer("diff", a, b)
        self.assertEqual((found["equal"], found["compared"], found["differences"]), (True, 16, []))
        self.assertTrue(checkpoint("diff", self.folder / "a", self.folder / "b").stdout.endswith(
            "equal: 16 tensors, bit by bit\n"))

    def test_elements_that_differ_are_counted_and_measured(self):
        a, b = make(self.folder / "a", 100), make(self.folder / "b", 100, seed=1)
        found = answer("diff", a, b, code=NO)
        self.assertFalse(found["equal"])
        self.assertEqual(len(found["differences"]), 13)  # all but the three of no element
        [bias] = [each for each in found["differences"] if each["tensor"] == "blocks.0.bias"]
        pairs = list(zip(*(values(path / "model.safetensors", "blocks.0.bias") for path in (a, b))))
        self.assertEqual(bias["differing"], sum(x != y for x, y in pairs))
        self.assertEqual(bias["largest"], max(abs(x - y) for x, y in pairs))
        text = checkpoint("diff", a, b).stdout
        self.assertRegex(text, r"model blocks\.0\.bias: 7 of 7 elements differ, by at most [0-9.]+\n")
        self.assertTrue(text.endswith("16 tensors in both, 13 differences\n"), text)

    def test_damage_is_an_error_and_no_difference(self):
        a, b = make(self.folder / "a", 100), make(self.folder / "b", 100)
        flip_bit(b / "optimizer.safetensors", 10_000_000)
        self.assert_one_line(checkpoint("diff", a, b), NO, "optimizer.safetensors: bytes 8388608 to")


class Options(CheckpointTest):
    def test_what_cannot_be_followed_is_one_line_and_code_2(self):
        for words, arguments in [("a subcommand is missing", []),
                                 ('unknown subcommand "shwo"', ["shwo"]),
                                 ("DIR is required", ["list"]),
                                 ("B is required", ["diff", "a"]),
                                 ("CHECKPOINT is empty", ["show", ""]),
                                 ("fp64", ["export", "a", "b", "--dtype", "fp64"]),
                                 ("--max-file-size takes a size", ["export", "a", "b", "--max-file-size", "x"]),
                                 ("more", ["show", "a", "more"])]:
            self.assert_one_line(checkpoint(*arguments), BAD_OPTIONS, words)

    def test_each_has_a_help_page(self):
        for name in ["list", "show", "verify", "export", "diff"]:
            done = checkpoint(name, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("--json", done.stdout)
            self.assertIn(name, checkpoint("--help").stdout)



if __name__ == "__main__":
    unittest.main()
