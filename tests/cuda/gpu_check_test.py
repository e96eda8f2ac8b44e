#!/usr/bin/env python3
"""scripts/gpu-check where there is no GPU: it says which parts did not run, and that is no failure; what is asked of it must be
there; its report grows, its time is kept, and nothing is left behind. Most of that over a build of small scripts.

usage: gpu_check_test.py SCRIPT [BUILD]
"""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

NO_DEVICE = "#!/bin/sh\necho 'skipped: this machine has no CUDA device'\nexit 77\n"
PASSES = "#!/bin/sh\necho passed here\n"
HANGS = "#!/bin/sh\n[ \"$1\" = --count ] && exit 0\necho begun\nsleep 1000 &\necho $! > \"$GPU_CHECK_TEST_PIDS\"\nwait\n"


def loaded(name, path):
    """A Python program as a module, which may import those beside it."""
    sys.path.insert(0, str(pathlib.Path(path).parent))
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def is_alive(process):
    try:
        state = pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.script = loaded("gpu_check", SCRIPT)
        self.names = [part.name for part in self.script.parts(self.script.Build("."), pathlib.Path("."), None)]

    def made_build(self, program, **others):
        """A build whose programs are this script; of the test programs some may be others."""
        for name in self.script.PROGRAMS:
            path = self.folder / "made" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(others.get(name.removeprefix("tests/cuda/test_cuda_"), program), encoding="utf-8")
            path.chmod(0o755)
        return self.folder / "made"

    def command(self, *arguments):
        return [sys.executable, "-B", SCRIPT, *map(str, arguments)]

    def run_script(self, *arguments, code=0, **options):
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False, **options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_a_part_that_cannot_run_is_named_and_no_failure(self):
        if BUILD is None:
            self.skipTest("no build")
        report = self.folder / "report.md"
        self.run_script("--build", BUILD, "--part", "device", "--report", report)
        text = report.read_text(encoding="utf-8")
        if "## device: passed" in text:
            self.skipTest("there is a GPU")
        self.assertIn("Did not run: device.", text)
        self.assertIn("skipped: this machine has no CUDA device", text)

    def test_the_build_makes_every_program_of_the_pack(self):
        if BUILD is None:
            self.skipTest("no build")
        targets = json.loads((pathlib.Path(BUILD) / "meson-info/intro-targets.json").read_text(encoding="utf-8"))
        made = [file for target in targets for file in target["filename"]]
        missing = [name for name in self.script.PROGRAMS if not any(file.endswith(f"/{name}") for file in made)]
        line = self.script.headers_line(self.script.Build(BUILD))
        without = line.partition("WITHOUT")[2]
        optional = {"libtorch with CUDA (": "tests/torch/test_cuda_torch", "cuDNN (": "tests/cuda/test_cuda_cudnn_plans"}
        self.assertEqual(missing, [program for header, program in optional.items() if header in without], line)

    def test_without_a_gpu_nothing_runs_and_nothing_fails(self):
        done = self.run_script("--build", self.made_build(NO_DEVICE))
        self.assertIn(f"Failed: nothing. Did not run: {', '.join(self.names)}.", done.stdout)

    def test_what_is_learnt_first_runs_first(self):
        self.assertEqual(self.names, ["machine", "device", "own", "nn", "attention", "first", "layers", "strategies", "memory",
                                      "kernels", "gpt", "trace", "ncu", "conformance", "trainers", "others", "torch",
                                      "nccl", "memcheck", "initcheck"])

    def test_a_pack_runs_where_it_is_brought_with_nothing_but_a_loader(self):
        pack = self.folder / "gpu.tar.xz"
        build = self.made_build(NO_DEVICE)
        (build / "built-with").write_text("cuDNN: 9.19.0\nNCCL: no: nccl.h was not found\nlibtorch with CUDA: no: none is here\n",
                                          encoding="utf-8")
        (build / "tests/torch/test_cuda_torch").unlink()
        done = self.run_script("--build", build, "--pack", pack)
        headers = "with the headers of cuDNN 9.19.0, WITHOUT those of NCCL (nccl.h was not found), libtorch with CUDA (none is here)"
        self.assertIn(f"built {headers}", done.stdout)
        self.assertIn("left out: tests/torch/test_cuda_torch is not built", done.stdout)
        self.folder.joinpath("made").rename(self.folder / "gone")
        bare = {"PATH": "/nowhere"}
        done = self.run_script("--build", pack, env=bare)
        self.assertIn(f"Failed: nothing. Did not run: {', '.join(self.names)}.", done.stdout)
        self.assertIn(headers, done.stdout)
        with tarfile.open(pack) as archive:
            archive.extractall(self.folder / "moved")
        moved = self.folder / "moved/gpu-check"
        done = subprocess.run([sys.executable, "-B", moved / "scripts/gpu-check"], env=bare, capture_output=True, text=True,
                              check=False)
        self.assertIn(f"Failed: nothing. Did not run: {', '.join(self.names)}.", done.stdout, done.stderr)
        self.assertTrue((moved / "examples/data/shakespeare.txt").exists())

    def test_what_the_calls_end_cuts_has_not_failed_and_is_left_with_what_would_not_fit(self):
        pids = self.folder / "pids"
        report = self.folder / "report.md"
        done = self.run_script("--build", self.made_build(PASSES, device=HANGS), "--part", "device", "--part", "nn",
                               "--budget", 3, "--report", report, env=os.environ | {"GPU_CHECK_TEST_PIDS": str(pids)})
        self.assertFalse(is_alive(pids.read_text(encoding="utf-8").strip()))
        self.assertIn("Failed: nothing. Did not run: nothing. Left: --part device --part nn", done.stdout)
        self.assertIn("begun", report.read_text(encoding="utf-8"))

    def test_a_part_that_hangs_fails_and_the_next_one_runs(self):
        build = self.script.Build(self.made_build(PASSES, device=HANGS))
        parts = [self.script.Part("device", "it hangs", [[build.test("device")]], seconds=1),
                 self.script.Part("nn", "it passes", [[build.test("nn")]], seconds=1),
                 self.script.Part("long", "it does not fit", [[build.test("nn")]], seconds=1000)]
        report = self.script.Report(None, [])
        processes = self.script.Processes()
        self.addCleanup(processes.close)
        environment = os.environ | {"GPU_CHECK_TEST_PIDS": str(self.folder / "pids")}
        self.script.run_parts(self.script.Check(processes, report, environment, 500), build, parts)
        self.assertEqual(report.verdicts, {"device": "failed", "nn": "passed"})
        self.assertEqual(report.left, ["long"])

    def test_a_call_that_is_killed_has_reported_what_it_knew_and_leaves_nothing_behind(self):
        pids = self.folder / "pids"
        report = self.folder / "report.md"
        with subprocess.Popen(self.command("--build", self.made_build(PASSES, nn=HANGS), "--part", "device", "--part", "nn",
                                           "--report", report), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env=os.environ | {"GPU_CHECK_TEST_PIDS": str(pids)}) as call:
            while not pids.exists() or not pids.read_text(encoding="utf-8").strip():
                self.assertIsNone(call.poll())
                time.sleep(0.02)
            call.send_signal(signal.SIGKILL)
        text = report.read_text(encoding="utf-8")
        self.assertIn("## device: passed", text)
        self.assertIn("passed here", text)
        self.assertIn("## nn: running", text)
        end = time.monotonic() + 20
        while is_alive(pids.read_text(encoding="utf-8").strip()):
            self.assertLess(time.monotonic(), end, "a process is left behind")
            time.sleep(0.02)

    def test_memcheck_counts_no_call_that_a_test_wants_refused(self):
        parts = {part.name: part for part in self.script.parts(self.script.Build("."), pathlib.Path(), None)}
        for command in parts["memcheck"].commands:
            self.assertEqual(command[command.index("--report-api-errors") + 1], "no", command)
        self.assertIn("--test-case=*attention*", parts["attention"].commands[1])

    def test_one_call_holds_what_is_learnt_in_the_first_minutes(self):
        parts = self.script.parts(self.script.Build("."), pathlib.Path(), None)
        self.assertLessEqual(sum(part.seconds for part in parts[:parts.index(next(p for p in parts if p.name == "first"))]), 500)

    def test_libraries_of_pip_are_found(self):
        (self.folder / "nvidia/nccl/lib").mkdir(parents=True)
        sys.path.append(str(self.folder))
        self.addCleanup(sys.path.remove, str(self.folder))
        build = self.script.Build(self.made_build(NO_DEVICE))
        self.assertIn(str(self.folder / "nvidia/nccl/lib"), self.script.environment_for(build)["LD_LIBRARY_PATH"].split(":"))

    def test_the_peers_of_the_benchmarks_have_the_presets_shape(self):
        root = pathlib.Path(SCRIPT).resolve().parent.parent
        presets = (root / "models/gpt/shape.hpp").read_text(encoding="utf-8")
        vocabulary = int(re.search(r"preset_vocabulary = (\d+)", presets).group(1))
        self.assertEqual(loaded("compare", root / "bench/compare.py").GPT2["vocabulary"], vocabulary)
        self.assertEqual(loaded("peer", root / "bench/cuda_layers/peer.py").VOCABULARY, vocabulary)
        ours = (root / "bench/cuda_layers/main.cpp").read_text(encoding="utf-8")
        self.assertIn(f"vocabulary = {vocabulary};", ours)

    def test_bad_options_are_named(self):
        done = self.run_script("--part", "everything", code=2)
        self.assertIn("--part everything", done.stderr)
        done = self.run_script("--build", self.folder / "empty", code=1)
        self.assertIn("is not there: build first", done.stderr)


if __name__ == "__main__":
    SCRIPT, BUILD = [*sys.argv[1:], None][:2]
    unittest.main(argv=sys.argv[:1])
