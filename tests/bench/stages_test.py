#!/usr/bin/env python3
"""bench/stages.py on images that are made up: a row for each number of micro-batches, and bubbles as the schedule has them.

usage: stages_test.py STAGES BUILD
"""
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
import made_images


def main(stages, build):
    with tempfile.TemporaryDirectory() as folder:
        made_images.write_mnist(folder, 128, 20)
        page = pathlib.Path(folder) / "page.md"
        command = [sys.executable, "-B", stages, build, str(page), "--rounds", "1", "--steps", "2", "--micro-batches"]
        done = subprocess.run([*command, "1,4", "--", "--data", f"mnist:{folder}", "--width", "12"], capture_output=True, text=True,
                              check=False, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        text = page.read_text(encoding="utf-8")
        refused = subprocess.run([*command, "3"], capture_output=True, text=True, check=False)
        assert refused.returncode == 2 and "64 images cannot be dealt to them" in refused.stderr, refused
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")][1:]
    assert [row[:2] + row[5:6] for row in rows] == [["1", "64", "50.0 %"], ["4", "16", "20.0 %"]], text
    for row in rows:
        assert all(0 < float(cell.rstrip(" %")) < 100 for cell in row[6:]) and float(row[4]) > 0, text


if __name__ == "__main__":
    main(*sys.argv[1:])
