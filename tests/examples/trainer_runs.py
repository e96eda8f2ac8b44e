"""Runs of train_mlp for the tests beside this file: start it, read its metrics, read and write safetensors files."""
import json
import os
import pathlib
import struct
import subprocess

SECONDS = 120  # no run of these tests takes a fraction of it
REDUCED = os.environ.get("TESSERA_TEST_MATRIX") == "reduced"  # some of the settings stand for all
# Sanitizers look at accesses and at the order of threads, and not at values: one setting of each kind is enough.
# scripts/test says which one it is; the sanitizers' own variables would not do, because Meson sets them for every test.
SANITIZER = os.environ.get("TESSERA_TEST_SANITIZER")
OF_THREADS = SANITIZER == "thread"
SANITIZED = SANITIZER is not None


def run(program, *options, seconds=SECONDS, variables=None):
    """Runs the trainer to its end, whatever that is; `variables` stand in its environment beside this process's."""
    command = [str(program), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, errors="replace",
                          env=os.environ | (variables or {}))


def train(program, folder, *options):
    """Runs the trainer with --metrics and --quiet; returns the objects of the metrics file. A failure is an error."""
    metrics = pathlib.Path(folder) / "metrics.jsonl"
    done = run(program, *options, "--metrics", metrics, "--quiet")
    if done.returncode != 0 or done.stderr or done.stdout:
        raise AssertionError(f"{' '.join(done.args)}\nended with {done.returncode}: {done.stdout}{done.stderr}")
    return read_metrics(metrics)


def read_metrics(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]


def crc32c(data):
    """Bit by bit, as the polynomial says."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def read_safetensors(path):
    """{name: (shape, bytes)} of a safetensors file of F32 tensors."""
    content = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + length])
    data = content[8 + length:]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["dtype"] == "F32", entry
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["shape"], data[begin:end])
    return tensors


def write_safetensors(path, tensors):
    """The inverse of read_safetensors."""
    header, data = {}, b""
    for name, (shape, content) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)
