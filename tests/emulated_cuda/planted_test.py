#!/usr/bin/env python3
"""The emulated device finds what is planted: each kernel of planted.cu is green while it is sound and red with its fault,
whatever the seed. Races that change no result are ThreadSanitizer's to find.

usage: planted_test.py none|address|thread PROGRAM [LEFT_OUT...]
"""
import os
import platform
import subprocess
import sys

SEEDS = {"none": range(1, 4), "address": range(1, 4), "thread": [1]}
# Kernel: what is said of its fault.
FAULTS = {
    "missing_barrier": "element",
    "overwritten_too_early": "element",
    "overwritten_by_a_warp_ahead": "element",
    "missing_warp_barrier": "element",
    "counts_on_the_block_before": "count",
    "race_between_blocks": "",
    "mask_without_the_lane": "by a mask that does not name it",
    "lanes_that_do_not_come": "32 threads of a block wait at __syncthreads, 32 at a warp's barrier",
    "lane_that_has_ended": "element",
    "width_left_out": "element",
    "odd_width": "a shuffle's width is no power of two up to 32",
    "part_one_element_short": "a part of shared memory of 252 bytes was written beyond its end",
    "launch_gives_too_little": "ends behind what the launch gave",
    "counts_on_zeros": "count",
    "misaligned_load": "",  # the program ends by a signal
}
RACES = ("missing_barrier", "overwritten_too_early", "overwritten_by_a_warp_ahead", "missing_warp_barrier",
         "counts_on_the_block_before", "race_between_blocks")


def expected(sanitizer, name):
    """What stands in the output of the faulty kernel; None: nothing is found."""
    if sanitizer == "thread" and name in RACES:
        return "data race"
    if sanitizer == "address" and name == "part_one_element_short":
        return "heap-buffer-overflow"
    return None if name == "race_between_blocks" else FAULTS[name]  # whose result is right


def run(program, name, kind, seed):
    environment = os.environ | {"TESSERA_EMULATED_SEED": str(seed), "TSAN_OPTIONS": "halt_on_error=1 history_size=0",
                                "ASAN_OPTIONS": "detect_stack_use_after_return=0", "UBSAN_OPTIONS": "halt_on_error=1"}
    # ThreadSanitizer needs parts of the address space that much randomisation may already have given away.
    fixed = ["setarch", platform.machine(), "-R"]
    wrapper = fixed if subprocess.run([*fixed, "true"], capture_output=True, check=False).returncode == 0 else []
    done = subprocess.run([*wrapper, program, name, kind], env=environment, capture_output=True, text=True, errors="replace", check=False)
    return done.returncode, done.stdout + done.stderr


def main(sanitizer, program, *left_out):
    seeds = SEEDS[sanitizer]
    for name in (name for name in (RACES if sanitizer == "thread" else FAULTS) if name not in left_out):
        wanted = expected(sanitizer, name)
        missed = []
        for seed in seeds:
            code, output = run(program, name, "sound", seed)
            assert code == 0, f"{name} is sound, and with seed {seed} ends with {code}: {output}"
            code, output = run(program, name, "faulty", seed)
            if code == 0:
                missed.append(seed)
            else:
                assert wanted is not None and wanted in output, f"{name} ends with {code} for another reason: {output}"
        # An order may happen to be the one that the fault needs.
        assert len(missed) == len(seeds) if wanted is None else len(missed) < len(seeds), f"{name}: nothing is found with seeds {missed}"
    print(f"what is planted is found where it can be ({sanitizer})")


if __name__ == "__main__":
    main(*sys.argv[1:])
