#!/usr/bin/env python3
"""`tessera trace summary`: the figures of hand-written traces whose answers are known, and of real ones; whatever is no trace
is one line.

usage: tessera_trace_test.py TESSERA [TRAIN_MLP]
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

HOST, COMPUTE, GATHER, REDUCE = range(4)
ABOUT = {"tessera_trace": 1, "ranks": 2, "strategy": "fsdp", "prefetch": 1, "micro_batches": 1, "units": 2, "first_step": 4,
         "last_step": 5, "compute_stream": "immediate", "clocks": "", "plan_hash": ""}


def run(tool, *arguments):
    return subprocess.run([tool, "trace", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


def names(rank):
    return [{"ph": "M", "pid": rank, "tid": thread, "name": "thread_name", "args": {"name": name}}
            for thread, name in enumerate(["host", "compute", "gather", "reduce"])]


def slice_of(rank, thread, begin, end, name, category, **about):
    return {"ph": "X", "pid": rank, "tid": thread, "ts": begin, "dur": end - begin, "name": name, "cat": category,
            "args": {"unit": "", **about}}


def window(rank, begin, end, pass_, unit, step=4):
    return slice_of(rank, COMPUTE, begin, end, f"{pass_} window {unit}", "window", step=step, kind="window", unit=unit,
                    **{"pass": pass_}, bytes=8)


def gather(rank, begin, end, unit, step=4):
    return slice_of(rank, GATHER, begin, end, f"all-gather {unit}", "communication", step=step, kind="all-gather", unit=unit,
                    bytes=1000)


def reduction(rank, begin, end, unit, step=4):
    return slice_of(rank, REDUCE, begin, end, f"reduce-scatter {unit}", "communication", step=step, kind="reduce-scatter",
                    unit=unit, bytes=3000)


def cast(rank, thread, begin, end, unit, step=4):
    return slice_of(rank, thread, begin, end, f"cast {unit}", "computation", step=step, kind="cast", unit=unit, bytes=500)


def wait(rank, thread, begin, end, operation, cause, step=4):
    return slice_of(rank, thread, begin, end, f"wait for {cause}", "wait", step=step, operation=operation, unit="b",
                    for_stream="gather", **{"for": cause})


def host(rank, call, pass_, unit, own, step=4):
    name = "update" if call == "update" else f"{call} {pass_} {unit}"
    return slice_of(rank, HOST, 0, own + 1, name, "host", step=step, unit=unit, call=call, host_us=own, **{"pass": pass_})


def known_trace():
    """Rank 0, step 4: gathers [0, 40] and [50, 90], a reduction [80, 120]: together 110. Windows [40, 60] and [70, 100], a cast
    on another stream [95, 110]: of the 110, [50, 60], [70, 110] overlap, less [90, …) that the reduction covers: 10 + 40 = 50.
    Step 5 is a window alone. Rank 1 hides all that it communicates."""
    return names(0) + names(1) + [
        gather(0, 0, 40, "a"), gather(0, 50, 90, "b"), reduction(0, 80, 120, "b"),
        window(0, 40, 60, "forward", "a"), window(0, 70, 100, "backward", "b"), cast(0, GATHER, 95, 110, "b"),
        wait(0, COMPUTE, 0, 40, "forward window a", "all-gather a"),
        wait(0, COMPUTE, 60, 70, "backward window b", "all-gather b"),
        wait(0, GATHER, 40, 90, "cast b", "release p0"),
        host(0, "open", "forward", "a", 2), host(0, "close", "forward", "a", 3), host(0, "update", "update", "", 7),
        window(0, 200, 230, "forward", "a", step=5),
        host(0, "open", "forward", "a", 4, step=5), host(0, "close", "forward", "a", 5, step=5),
        window(1, 0, 100, "forward", "a"), gather(1, 10, 20, "a"),
        host(1, "open", "forward", "a", 100), host(1, "close", "forward", "a", 100),
        {"ph": "s", "pid": 0, "tid": 1, "ts": 3, "id": 1, "name": "wait", "cat": "wait"},
    ]


def write(folder, name, about, events):
    path = folder / name
    path.write_text(json.dumps({"otherData": about, "traceEvents": events}))
    return path


def summary(tool, path, *options):
    done = run(tool, "summary", path, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_known(tool, folder):
    path = write(folder, "known.json", ABOUT, known_trace())
    found = summary(tool, path, "--waits", 2)
    zero, one = found["ranks"]
    expected = {"rank": 0, "step_us": (120 + 30) / 2, "computing_us": (20 + 40 + 30) / 2, "communicating_us": 110 / 2,
                "hidden_us": 50 / 2, "exposed_us": 60 / 2, "compute_waited_us": 50 / 2, "bubble": 1 - (20 + 30 + 30) / 130}  # of [0, 100] and [200, 230]
    assert zero == expected, (zero, expected)
    assert one == {"rank": 1, "step_us": 50, "computing_us": 50, "communicating_us": 5, "hidden_us": 5, "exposed_us": 0,
                   "compute_waited_us": 0, "bubble": 1 - 100 / 130}, one
    assert math.isclose(found["overlap"], (25 + 5) / (55 + 5)), found["overlap"]

    assert [(w["us"], w["stream"], w["operation"], w["for"]) for w in found["waits"]] == [
        (50, "gather", "cast b", "release p0"), (40, "compute", "forward window a", "all-gather a")], found["waits"]

    kinds = {kind["kind"]: kind for kind in found["operations"]}  # four shares: two ranks, two steps
    assert kinds["all-gather"] == {"kind": "all-gather", "count": 0.75, "us": 90 / 4, "bytes": 750}, kinds
    assert kinds["forward window"]["us"] == (20 + 30 + 100) / 4, kinds
    assert [kind["us"] for kind in found["operations"]] == sorted((k["us"] for k in kinds.values()), reverse=True)

    units = {unit["unit"]: unit for unit in found["units"]}
    assert units["a"]["forward_us"] == 150 / 4 and units["a"]["backward_us"] == 0, units
    assert units["b"]["communicating_us"] == 80 / 4 and units["b"]["compute_waited_us"] == 50 / 4, units
    assert units["b"]["other_computing_us"] == 15 / 4 and units["b"]["backward_us"] == 30 / 4, units

    assert found["host"] == [{"unit": "a", "pass": "forward", "us": 9}, {"unit": "-", "pass": "update", "us": 7}], found["host"]


def check_text(tool, folder):
    done = run(tool, "summary", write(folder, "text.json", ABOUT, known_trace()))
    assert done.returncode == 0, done.stderr
    for words in ["steps 4 to 5 on 2 ranks: fsdp, prefetch 1, 1 micro-batch, 2 units", "overlap 50.0 %",
                  "rank 0, step 4, compute: forward window a waited for all-gather a (gather)"]:
        assert words in done.stdout, (words, done.stdout)
    assert "recompute" not in done.stdout, "a column of nothing"

    quiet = names(0) + [window(0, 0, 10, "forward", "a")]
    done = run(tool, "summary", write(folder, "quiet.json", {**ABOUT, "last_step": 4}, quiet))
    assert "step 4 on 1 rank:" in done.stdout and "overlap 100.0 %" in done.stdout, done.stdout


def check_one_line(done, *words):
    assert done.returncode in (1, 2) and not done.stdout, (done.returncode, done.stdout)
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("tessera: "), done.stderr
    for word in words:
        assert word in done.stderr, (word, done.stderr)


def check_bad_files(tool, folder):
    events = known_trace()

    def without(key, position=len(names(0)) * 2):
        changed = json.loads(json.dumps(events))
        del changed[position]["args"][key]
        return changed

    def changed(position=len(names(0)) * 2, **values):
        return [*events[:position], {**events[position], **values}, *events[position + 1:]]

    (folder / "bytes").write_bytes(os.urandom(500))
    (folder / "empty").write_bytes(b"")
    (folder / "list").write_text("[1, 2]")
    (folder / "other.json").write_text('{"traceEvents": [], "otherData": {"version": "My app"}}')
    (folder / "chrome.json").write_text('[{"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 1, "name": "f"}]')
    whole = write(folder, "whole.json", ABOUT, events).read_text()
    (folder / "cut.json").write_text(whole[:len(whole) // 2])
    bad = [folder / "missing", folder, folder / "bytes", folder / "empty", folder / "list", folder / "other.json",
           folder / "chrome.json", folder / "cut.json",
           write(folder, "later.json", {**ABOUT, "tessera_trace": 2}, events),
           write(folder, "none.json", ABOUT, []),
           write(folder, "no-list.json", ABOUT, 7),
           write(folder, "steps.json", {**ABOUT, "last_step": 3}, events),
           write(folder, "many.json", {**ABOUT, "last_step": 10**15}, events),
           write(folder, "about.json", {"tessera_trace": 1}, events),
           write(folder, "nobody.json", {**ABOUT, "ranks": 0}, events),
           write(folder, "kindless.json", ABOUT, without("bytes")),
           write(folder, "stepless.json", ABOUT, without("step")),
           write(folder, "thread.json", ABOUT, changed(tid=9)),
           write(folder, "pid.json", ABOUT, changed(pid=-1, tid="x")),
           write(folder, "backwards.json", ABOUT, changed(dur=-5)),
           write(folder, "text.json", ABOUT, changed(ts="soon")),
           write(folder, "null.json", ABOUT, changed(args=None))]
    for path in bad:
        check_one_line(run(tool, "summary", path), str(path))
    check_one_line(run(tool), "summary")
    check_one_line(run(tool, "draw"), "draw")
    check_one_line(run(tool, "summary"), "FILE")
    check_one_line(run(tool, "summary", "x", "--waits", "many"), "--waits")
    return len(bad)


def check_names_cannot_steer(tool, folder):
    events = [*names(0), window(0, 0, 10, "forward", "\x1b[31mred")]
    done = run(tool, "summary", write(folder, "escape.json", {**ABOUT, "last_step": 4}, events))
    assert done.returncode == 0 and "\x1b" not in done.stdout, done.stdout


def check_real(tool, trainer, folder):
    path = folder / "real.json"
    subprocess.run([trainer, "--ranks", "2", "--steps", "6", "--hidden", "40", "--depth", "2", "--trace", path, "--quiet"],
                   check=True, timeout=120)
    found = summary(tool, path)
    assert len(found["ranks"]) == 2 and len(found["waits"]) == 5, found
    for rank in found["ranks"]:
        assert math.isclose(rank["hidden_us"] + rank["exposed_us"], rank["communicating_us"]), rank
        assert 0 <= rank["hidden_us"] <= rank["computing_us"] <= rank["step_us"], rank
    kinds = {kind["kind"]: kind for kind in found["operations"]}
    assert kinds["forward window"]["count"] == 4 and kinds["optimize"]["count"] == 4, kinds
    assert [unit["unit"] for unit in found["units"]][:4] == ["input", "hidden.0", "hidden.1", "output"], found["units"]
    assert {(h["unit"], h["pass"]) for h in found["host"]} >= {("input", "forward"), ("output", "backward"), ("-", "update")}
    assert "longest waits" in run(tool, "summary", path).stdout


def main():
    tool = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_known(tool, folder)
        check_text(tool, folder)
        count = check_bad_files(tool, folder)
        check_names_cannot_steer(tool, folder)
        if len(sys.argv) > 2:
            check_real(tool, sys.argv[2], folder)
    print(f"known figures are found, {count} files that are no traces are one line each")


if __name__ == "__main__":
    main()
