#!/usr/bin/env python3
"""All timed benchmarks on sizes that take no time: each checks its own results, and the page has a row for every mark.

usage: report_test.py REPORT BUILD
"""
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

ROWS = ["AdamW", "cast fp32 to bf16", "cast bf16 to fp32", "cast fp32 to fp16", "cast fp16 to fp32", "norm",
        "hideable communication hidden, 60 % communication", "host time, µs per unit and pass, 16 units",
        "MLP on one rank over its floor"]
FIGURES = ["collectives/local/2/all-gather/1", "collectives/plain/4/reduce-scatter/1",
           "collectives/plain-streaming/2/all-gather/1", "kernels/triad-streaming"]


def main(report, build):
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.md"
        # No such Python has PyTorch: its part is left out, and the page says so.
        command = [sys.executable, "-B", report, build, str(page), "--tiny", "--torch", str(page)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        text = page.read_text(encoding="utf-8")
    assert "minutes: " in done.stderr and "has not ended" not in text and "Time was over" not in text, (done.stderr, text)
    assert "has no PyTorch" in text and "Steps against PyTorch" not in text, text
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    ratios = {row[0].strip(): row[1:] for row in rows}
    for name in ROWS:
        float(ratios[name][0])  # of nearly nothing: any number
        assert ratios[name][2].strip() in ("met", "missed"), (name, text)
    for name in FIGURES:
        assert float(ratios[name][0]) > 0, (name, text)
    for product in ["fp32/tiny/forward", "bf16/tiny/dw"]:
        assert float(ratios[product][0]) > 0, (product, text)
    for case in ["mlp/fp32/1", "gpt/bf16/1-threads", "mlp/bf16/1", "mlp/fp32/2-ddp", "gpt/fp32/2-fsdp"]:
        assert float(ratios[case][0]) > 0, (case, text)
    if platform.machine() == "x86_64":
        assert all(float(cell.split("(")[0]) > 0 for cell in ratios["AVX2"]), text
    check_that_losses_are_compared(report)
    check_that_time_is_bounded(report, build)


def check_that_time_is_bounded(report, build):
    """What runs when time is over is ended with what it has started, and the page has what came before it."""
    sys.path.insert(0, str(pathlib.Path(report).parent))
    import report as report_module
    import turns
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.md"
        kept = []
        runner = report_module.Runner(build, 0.05, kept.append)
        runner.figures_of("kernels/", sys.executable, "-c", "print('kernels/adamw 2.5 GB/s')")
        began = time.monotonic()
        runner.figures_of("", "sh", "-c", f"(sleep 60; touch {page}) & sleep 60")
        runner.figures_of("", "sh", "-c", "echo late 1 ms")
        assert time.monotonic() - began < 30 and len(kept) == 3 and list(runner.figures.values()) == [2.5], runner.figures
        runner.ended = True
        text = "\n".join(report_module.page(runner, {}, 3.0))
        assert "Time was over after 0.05 minutes" in text and "echo late 1 ms" in text and "| 2.5 |" in text, text
    cases = turns.in_turns(2, ["fast", "slow", "never"], lambda case: {"fast": 1}.get(case) or turns.run(["sleep", 9], timeout=0.5), 0.004)
    assert cases == {"fast": [1]}, cases


def check_that_losses_are_compared(report):
    sys.path.insert(0, str(pathlib.Path(report).parent))
    import processors
    figures = {f"processor/{cap}/{model}/{precision}/last-loss": 2.0 for cap in ["AVX2", "AVX-512"] for model, precision in processors.CASES}
    processors.require_same_losses(figures)
    figures["processor/AVX-512/gpt/bf16/last-loss"] = 2.1
    try:
        processors.require_same_losses(figures)
    except SystemExit as wrong:
        assert "gpt in bf16: the loss is 2.1 with AVX-512, and 2.0 with AVX2" in str(wrong), wrong
    else:
        raise AssertionError("losses that differ were taken")


if __name__ == "__main__":
    main(*sys.argv[1:])
