#!/usr/bin/env python3
"""scripts/speedup on images that are made up: a page with a row for every case, speed-ups over one rank, and equal losses.

usage: speedup_test.py SPEEDUP BUILD
"""
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
import made_images


def main(speedup, build):
    with tempfile.TemporaryDirectory() as folder:
        made_images.write_mnist(folder, 80, 20)
        page = pathlib.Path(folder) / "page.md"
        command = [sys.executable, "-B", speedup, build, str(page), "--global-batch", "8", "--rounds", "1", "--calibrate", "1", "--",
                   "--data", f"mnist:{folder}", "--width", "2"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        text = page.read_text(encoding="utf-8")
        refused = subprocess.run([*command[:5], "--ranks", "3", "--global-batch", "8"], capture_output=True, text=True, check=False)
        assert refused.returncode == 2 and "cannot be divided among 3 ranks" in refused.stderr, refused
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")][1:]
    assert [row[:2] for row in rows] == [["1", "any"], ["2", "ddp"], ["2", "fsdp"], ["4", "ddp"], ["4", "fsdp"]], text
    assert rows[0][4:7] == ["1.00", "1.00", "100 %"] and all(float(row[4]) > 0 for row in rows), text
    assert all(float(row[5]) >= 0 for row in rows), text  # of so small a model nearly nothing is left
    assert all(float(row[3].replace(",", "")) > 0 for row in rows), text
    assert len({row[8] for row in rows}) == 1 and rows[0][8].endswith("%"), text  # the same model, to roundings
    losses = [float(row[9]) for row in rows]
    assert max(losses) - min(losses) < 2e-4, losses
    check_amdahl(speedup)
    import speedup as program
    assert program.passed_on(["--lr", "1", "--precision", "bf16", "--sync-batch-norm", "--optimizer=sgd"]) == [
        "--precision", "bf16", "--sync-batch-norm", "--optimizer", "sgd"]


def check_amdahl(speedup):
    sys.path.insert(0, str(pathlib.Path(speedup).parent))
    import speedup as program
    for share in [0.0, 0.05, 0.3, 1.0]:
        assert program.amdahl({ranks: 1 / (share + (1 - share) / ranks) for ranks in [1, 2, 4, 8]}) == share
    assert program.on_cores({1: 1.0, 2: 1.8, 4: 1.7}, 2) == {1: 1.0, 2: 1.8}
    assert program.on_cores({1: 1.0, 4: 1.7}, 2) == {1: 1.0, 4: 1.7}


if __name__ == "__main__":
    main(*sys.argv[1:])
