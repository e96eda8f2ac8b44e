#!/usr/bin/env python3
"""How runs end: by a signal, with standard streams that are closed or full, and with values that are not finite.

usage: stop_test.py TRAIN_MLP TRAIN_GPT
"""
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import trainer_runs

SMALL = {"mlp": ["--hidden", 8, "--depth", 0, "--batch", 4, "--threads", 1],
         "gpt": ["--layers", 1, "--dim", 8, "--heads", 1, "--seq", 8, "--batch", 2, "--threads", 1, "--sample", 0]}
LONG = 100_000_000  # steps: more than any of these runs takes
SECONDS = 60


def start(program, *options):
    return subprocess.Popen([str(part) for part in [program, *options]], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)


def wait_for_steps(metrics, process):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and process.poll() is None:
        if metrics.exists() and metrics.read_text(encoding="utf-8").count("\n") >= 2:
            return
        time.sleep(0.01)
    raise AssertionError(f"no steps: {process.communicate(timeout=SECONDS)}")


def wait_for_first_step(process):
    """Its line of progress: an evaluation comes right behind it."""
    end = time.monotonic() + SECONDS
    for line in process.stdout:
        if re.match(r" *step +1/", line):
            return
        assert time.monotonic() < end, line
    raise AssertionError(f"no step: {process.communicate(timeout=SECONDS)}")


def check_signal_saves(program, options, number):
    with tempfile.TemporaryDirectory() as folder:
        metrics, runs = pathlib.Path(folder) / "m.jsonl", pathlib.Path(folder) / "runs"
        command = [*options, "--ranks", 2, "--metrics", metrics, "--checkpoint-dir", runs]
        process = start(program, *command, "--steps", LONG, "--eval-every", 0)
        wait_for_steps(metrics, process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 128 + number, (process.returncode, errors)
        [saved] = list(runs.glob("step-*"))
        step = int(saved.name.split("-")[1])
        assert errors == (f"stopped by {number.name} after step {step} of {LONG}, which is saved in {saved}; --resume goes "
                          "on from there\n"), errors
        assert trainer_runs.read_metrics(metrics)[-1]["step"] == step
        more = trainer_runs.run(program, *command, "--steps", LONG, "--eval-every", 0, "--resume", "--stop-after", step + 1)
        assert more.returncode == 0 and f"from {saved}" in more.stdout, (more.stdout, more.stderr)


def check_signal_without_checkpoints(program, options):
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "m.jsonl"
        process = start(program, *options, "--metrics", metrics, "--steps", LONG, "--eval-every", 0)
        wait_for_steps(metrics, process)
        process.terminate()
        process.communicate(timeout=SECONDS)
        assert process.returncode == -signal.SIGTERM, process.returncode


def check_second_signal(program):
    """The first is noted: a long evaluation goes on. The second ends the run where it is."""
    with tempfile.TemporaryDirectory() as folder:
        process = start(program, "--layers", 6, "--dim", 128, "--heads", 2, "--seq", 8, "--batch", 1, "--threads", 1, "--steps",
                        LONG, "--eval-every", 1, "--eval-batches", 0, "--sample", 0, "--data", large_text(folder),
                        "--checkpoint-dir", pathlib.Path(folder) / "runs")
        wait_for_first_step(process)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None, "ended by the first signal, within an evaluation"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
        assert process.returncode == -signal.SIGTERM, process.returncode


def large_text(folder):
    path = pathlib.Path(folder) / "large.txt"
    path.write_bytes(bytes(range(32, 127)) * 40_000)
    return path


def check_streams(program, options):
    short = [*map(str, [program, *options, "--steps", 2])]

    def shell(redirection, *more):
        return subprocess.run(["sh", "-c", f'exec "$@" {redirection}', "sh", *short, *map(str, more)], text=True,
                              capture_output=True, timeout=SECONDS)

    bad = shell("2>/dev/full", "--hidden" if "mlp" in str(program) else "--layers", "x")
    assert bad.returncode == 2, bad
    failed = shell("2>&-", "--data", "/nowhere")
    assert failed.returncode == 1, failed
    full = shell(">/dev/full")
    assert full.returncode == 1, full
    assert full.stderr == "error: standard output cannot be written: No space left on device\n", full.stderr
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "m.jsonl"
        closed = shell("<&- >&- 2>&-", "--metrics", metrics)
        assert closed.returncode == 0, closed
        lines = metrics.read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 2], lines


def check_not_finite(program, options):
    with tempfile.TemporaryDirectory() as folder:
        weights = pathlib.Path(folder) / "w.safetensors"
        trainer_runs.train(program, folder, *options, "--steps", 1, "--dump-weights", weights)
        tensors = trainer_runs.read_safetensors(weights)
        name, (shape, content) = next(iter(tensors.items()))
        tensors[name] = (shape, b"\x00\x00\xc0\x7f" + content[4:])
        trainer_runs.write_safetensors(weights, tensors)
        for ranks in [1, 3]:
            done = trainer_runs.run(program, *options, "--steps", 1, "--ranks", ranks, "--init", weights)
            assert done.returncode == 1, done
            line = re.sub(r"rank \d: ", "", done.stderr)  # of several, one speaks for all
            assert line == f"error: --init {weights}: 1 of its values are not finite, so nothing can be trained from it\n", line


def check_held_out_loss(program, options):
    """An update that takes the weights beyond what fp16 holds: training never sees their loss."""
    done = trainer_runs.run(program, *options, "--steps", 100, "--stop-after", 1, "--optimizer", "sgd", "--lr", 1000, "--precision",
                            "fp16", "--loss-scale", 1, "--warmup", 0, "--weight-decay", 1000)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "error: step 1: the held-out loss is " in done.stderr and done.stderr.count("\n") == 1, done.stderr


def check_one_step(program, options):
    """The last step trains, too."""
    with tempfile.TemporaryDirectory() as folder:
        weights = pathlib.Path(folder) / "w.safetensors"

        def dumped(*more):
            trainer_runs.train(program, folder, *options, "--steps", 1, "--dump-weights", weights, *more)
            return trainer_runs.read_safetensors(weights)

        assert dumped() != dumped("--lr", 0)


def check_fixed_scale(program, options):
    """A fixed loss scale that overflows in every step ends the run, which would train nothing."""
    done = trainer_runs.run(program, *options, "--precision", "fp16", "--loss-scale", 2**24, "--steps", 5, "--eval-every", 0)
    assert done.returncode == 1 and "error: step 5: " in done.stderr, done
    assert "or --loss-scale 0, which finds one" in done.stderr, done.stderr


def check_skipped_steps(program, options):
    """Under a scale that overflows now and then the last line counts this run's steps, not those of the run that it resumes."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "m.jsonl"
        command = [*options, "--precision", "fp16", "--loss-scale", 2**18, "--lr", 1e-6, "--steps", 20, "--eval-every", 0,
                   "--checkpoint-dir", folder, "--metrics", metrics]
        for more, steps in [(["--stop-after", 10], range(1, 11)), (["--resume"], range(11, 21)), (["--resume"], [])]:
            done = trainer_runs.run(program, *command, *more)
            assert done.returncode == 0, done.stderr
            skipped = [step["skipped"] for step in trainer_runs.read_metrics(metrics) if step["step"] in steps]
            assert not skipped or 0 < sum(skipped) < len(skipped) == 10, skipped
            found = re.search(r"steps skipped for overflow in fp16: (\d+)", done.stdout)
            assert (int(found[1]) if found else 0) == sum(skipped), (more, skipped, done.stdout)


def check_metrics_to_a_pipe(program, options):
    """A resumed run leaves what it has written there: reading a pipe would wait for itself."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*options, "--steps", 3, "--quiet", "--checkpoint-dir", folder, "--resume", "--metrics", "/dev/stdout"]
        for more, steps in [(["--stop-after", 1], [1]), ([], [2, 3])]:
            done = trainer_runs.run(program, *command, *more)
            assert done.returncode == 0, done.stderr
            assert [json.loads(line)["step"] for line in done.stdout.splitlines()] == steps, done.stdout


def check_eval_batches(program, options, all_of_them):
    """--eval-batches bounds what an evaluation looks at; 0 looks at everything; the metrics say how much that was."""
    with tempfile.TemporaryDirectory() as folder:
        def samples(*more):
            return trainer_runs.train(program, folder, *options, "--steps", 1, "--ranks", 2, *more)[-1]["held_out_samples"]

        batch = options[options.index("--batch") + 1]
        assert samples("--eval-batches", 3) == 3 * batch * 2
        assert samples() == min(30 * batch * 2, all_of_them)
        assert samples("--accumulate", 2) == min(60 * batch * 2, all_of_them)
        assert samples("--eval-batches", 0) == all_of_them


def main():
    mlp, gpt = sys.argv[1:]
    check_eval_batches(mlp, SMALL["mlp"], 359)
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        text.write_bytes(b"0123456789abcdef" * 1250)  # a twentieth of it: 1,000 bytes in sequences of 8
        check_eval_batches(gpt, [*SMALL["gpt"], "--data", text], 124)
    for program, options in [(mlp, SMALL["mlp"]), (gpt, SMALL["gpt"])]:
        check_streams(program, options)
        check_not_finite(program, options)
        check_one_step(program, options)
        for number in [signal.SIGTERM, signal.SIGINT]:
            check_signal_saves(program, options, number)
        check_signal_without_checkpoints(program, options)
    check_fixed_scale(mlp, SMALL["mlp"])
    check_skipped_steps(mlp, SMALL["mlp"])
    check_metrics_to_a_pipe(mlp, SMALL["mlp"])
    check_second_signal(gpt)
    check_held_out_loss(gpt, SMALL["gpt"])
    print("runs end as they should")


if __name__ == "__main__":
    main()
