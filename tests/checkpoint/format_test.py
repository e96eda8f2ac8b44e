#!/usr/bin/env python3
"""docs/checkpoint_format.md, read without any of Tessera's code: a checkpoint that a trainer saved is what it says, byte by
byte.

usage: format_test.py TRAIN_MLP
"""
import functools
import json
import math
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

TRAINER = sys.argv.pop(1)
BLOCK = 4 << 20
SEAL = re.compile(rb'"manifest_crc32c": "([0-9a-f]{8})"\n\}\n$')


def crc32c_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82f63b78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = crc32c_table()


def crc32c(data):
    remainder = 0xffffffff
    for byte in data:
        remainder = remainder >> 8 ^ TABLE[(remainder ^ byte) & 0xff]
    return f"{remainder ^ 0xffffffff:08x}"


@functools.cache
def saved(test_class, *options):
    """The checkpoint of a short run's seventh step, which is there as long as the class is tested."""
    scratch = tempfile.TemporaryDirectory()
    test_class.addClassCleanup(scratch.cleanup)
    folder = pathlib.Path(scratch.name) / "runs"
    command = [TRAINER, "--hidden", 20, "--depth", 1, "--batch", 5, "--steps", 12, "--stop-after", 7,
               "--checkpoint-dir", folder, "--save-every", 7, "--quiet", *options]
    subprocess.run([str(part) for part in command], check=True, timeout=120)
    return folder / "step-00000007"


class Format(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.checkpoint = saved(cls, "--ranks", 3)
        cls.manifest = json.loads((cls.checkpoint / "manifest.json").read_text())

    def test_the_check_value_of_crc32c(self):
        self.assertEqual(crc32c(b"123456789"), "e3069283")

    def test_the_folder_has_what_the_manifest_names(self):
        self.assertEqual(list(self.manifest), ["format", "version", "step", "block_bytes", "files", "manifest_crc32c"])
        self.assertEqual([self.manifest[name] for name in ["format", "version", "step", "block_bytes"]],
                         ["tessera-checkpoint", 1, 7, BLOCK])
        names = [file["name"] for file in self.manifest["files"]]
        self.assertEqual(names, ["model.safetensors", "optimizer.safetensors", "state.json"])
        self.assertEqual(sorted(path.name for path in self.checkpoint.iterdir()), sorted([*names, "manifest.json"]))

    def test_every_block_has_its_checksum(self):
        for file in self.manifest["files"]:
            self.assertEqual(list(file), ["name", "bytes", "crc32c"])
            content = (self.checkpoint / file["name"]).read_bytes()
            self.assertEqual(file["bytes"], len(content))
            self.assertEqual(file["crc32c"], [crc32c(content[i:i + BLOCK]) for i in range(0, len(content), BLOCK)])

    def test_the_manifest_s_last_32_bytes_have_the_checksum_of_the_rest(self):
        content = (self.checkpoint / "manifest.json").read_bytes()
        self.assertEqual(SEAL.search(content).group(1).decode(), crc32c(content[:-32]))

    def tensors(self, name):
        """The header's entries, having checked where they lie."""
        content = (self.checkpoint / name).read_bytes()
        [length] = struct.unpack("<Q", content[:8])
        self.assertEqual((8 + length) % 64, 0)
        header = json.loads(content[8:8 + length])
        header.pop("__metadata__", None)
        end = 0
        for entry in header.values():
            self.assertEqual(entry["dtype"], "F32")
            begin, after = entry["data_offsets"]
            self.assertEqual((begin, after - begin), (end, 4 * math.prod(entry["shape"])))
            end = after
        self.assertEqual(8 + length + end, len(content))
        return header

    def test_states_are_grouped_and_in_the_model_s_order(self):
        model, optimizer = self.tensors("model.safetensors"), self.tensors("optimizer.safetensors")
        self.assertEqual(list(optimizer), [f"{state}/{name}" for state in ["m", "v"] for name in model])
        for name, entry in optimizer.items():
            self.assertEqual(entry["shape"], model[name.split("/", 1)[1]]["shape"])

    def test_the_state_has_its_members_and_its_numbers_their_bits(self):
        state = json.loads((self.checkpoint / "state.json").read_text())
        self.assertEqual(list(state)[:3], ["format", "version", "revision"])
        self.assertEqual([state[name] for name in ["format", "version", "revision", "step", "updates"]],
                         ["tessera-state", 2, 0, 7, 7])
        self.assertLessEqual(set(state), {"format", "version", "revision", "step", "updates", "skipped_updates", "loss_scale",
                                          "good_steps", "decay_power", "sampler", "values"})
        self.assertEqual(struct.pack(">f", state["loss_scale"]["value"]).hex(), state["loss_scale"]["bits"])
        for power in state["decay_power"]:
            self.assertEqual(struct.pack(">d", power["value"]).hex(), power["bits"])
        self.assertEqual(state["sampler"]["position"], 7 * 5 * 3)


class OuterSteps(unittest.TestCase):
    """Between outer steps: what replicas have in common, and what each has for itself."""

    def tensors(self, checkpoint, name):
        """By name: shape and bytes."""
        content = (checkpoint / name).read_bytes()
        [length] = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + length])
        header.pop("__metadata__", None)
        return {tensor: (entry["shape"], content[8 + length:][slice(*entry["data_offsets"])])
                for tensor, entry in header.items()}

    def saved(self, every):
        return saved(type(self), "--ranks", 4, "--replicas", 2, "--outer-every", every, "--outer-lr", 1,
                     "--outer-momentum", 0)

    def test_each_replica_has_masters_and_states_of_its_own(self):
        checkpoint = self.saved(4)
        model, optimizer = (self.tensors(checkpoint, f"{kind}.safetensors") for kind in ["model", "optimizer"])
        prefixes = ["outer_momentum"] + [f"replica.{r}/{what}" for r in range(2) for what in ["master", "m", "v"]]
        self.assertEqual(list(optimizer), [f"{prefix}/{name}" for prefix in prefixes for name in model])
        for name, (shape, common) in model.items():
            self.assertEqual(optimizer[f"replica.0/master/{name}"][0], shape)
            own = [optimizer[f"replica.{r}/master/{name}"][1] for r in range(2)]
            self.assertEqual(len({common, *own}), 3, f"{name}: replicas did not part")

    def test_right_after_an_outer_step_that_averages_all_have_the_same(self):
        checkpoint = self.saved(7)
        optimizer = self.tensors(checkpoint, "optimizer.safetensors")
        for name, (_, common) in self.tensors(checkpoint, "model.safetensors").items():
            for replica in range(2):
                self.assertEqual(optimizer[f"replica.{replica}/master/{name}"][1], common, name)

    def test_each_replica_counts_for_itself(self):
        state = json.loads((self.saved(4) / "state.json").read_text())
        self.assertEqual(state["version"], 3)
        counts = ["updates", "skipped_updates", "loss_scale", "good_steps", "decay_power"]
        self.assertEqual([list(replica) for replica in state["replicas"]], [counts, counts])
        self.assertEqual([state[count] for count in counts], [state["replicas"][0][count] for count in counts])


if __name__ == "__main__":
    unittest.main()
