#!/usr/bin/env python3
"""--simulate-world: the imagined rank takes the bytes of the real one in each category, says that it is a simulation, and can
be a rank of a job that no machine has room for. Bad combinations are one line.

usage: simulated_rank_test.py TRAIN_MLP TRAIN_GPT [--not-measurable] [--mpirun MPIRUN]
"""
import sys
import tempfile

import bad_input
import process_runs
import trainer_runs

LENGTH = ["--steps", 2, "--threads", 1]
MLP = ["--hidden", 37, "--depth", 1, "--batch", 5, *LENGTH]
GPT = ["--layers", 2, "--dim", 12, "--heads", 3, "--seq", 11, "--batch", 2, "--dropout", 0.1, *LENGTH]
STRATEGIES = ["ddp", "zero1", "zero2", "fsdp"]
PRECISIONS = ["fp32", "bf16", "fp16"]


def memory_of_ranks(program, *options):
    """The objects of a run's last step, one per rank."""
    with tempfile.TemporaryDirectory() as folder:
        return trainer_runs.train(program, folder, *options)[-1]["memory"]["ranks"]


def simulated_step(program, world, rank, *options):
    with tempfile.TemporaryDirectory() as folder:
        step = trainer_runs.train(program, folder, *options, "--simulate-world", world, "--rank", rank)[-1]
    assert step["simulated"] == {"rank": rank, "ranks": world}, step
    assert len(step["memory"]["ranks"]) == 1, "only one rank is real"
    return step


def check_equal_memory(program, options, world, ranks):
    real = memory_of_ranks(program, *options, "--ranks", world)
    for rank in ranks:
        found = simulated_step(program, world, rank, *options)["memory"]["ranks"][0]
        assert found == real[rank], f"{options}, rank {rank} of {world}:\nreal      {real[rank]}\nsimulated {found}"
    return len(ranks)


def check_matrix(mlp, gpt):
    count = 0
    for strategy in STRATEGIES:
        for precision in PRECISIONS:
            sharding = ["--strategy", strategy, "--precision", precision]
            count += check_equal_memory(gpt, [*GPT, *sharding, "--accumulate", 2], 3, [1] if trainer_runs.REDUCED else range(3))
        count += check_equal_memory(mlp, [*MLP, "--strategy", strategy], 5, [4] if trainer_runs.REDUCED else [0, 2, 4])
    for strategy, (world, replicas) in zip([*STRATEGIES, "hsdp", "hfsdp", "hsdp", "hfsdp"], [(4, 2), (6, 3), (6, 2), (3, 3)] * 2):
        sharding = ["--strategy", strategy, "--replicas", replicas, "--precision", PRECISIONS[world % 3]]
        count += check_equal_memory(mlp, [*MLP, *sharding, "--accumulate", 2], world, [1] if trainer_runs.REDUCED else [0, world - 1])
    count += check_equal_memory(gpt, [*GPT, "--precision", "bf16"], 8, [7] if trainer_runs.REDUCED else range(8))
    return count


def check_processes(program, mpirun):
    """What a job of MPI's takes, in each category."""
    options = [*GPT, "--precision", "bf16"]
    with tempfile.TemporaryDirectory() as folder:
        train = process_runs.trained_by("mpirun", mpirun)
        real = train(program, folder, *options, "--ranks", 3)[-1]["memory"]["ranks"]
    for rank in range(3):
        found = simulated_step(program, 3, rank, *options, "--simulate-backend", "mpi")["memory"]["ranks"]
        assert found == [real[rank]], f"rank {rank}: {found} and {real[rank]}"


def check_large_worlds(program, measurable):
    """In fp16 too no value appears that is not finite: a loss that is none would end the run."""
    for world, rank in [(512, 17), (16384, 0), (16384, 16383)]:
        for precision in PRECISIONS:
            step = simulated_step(program, world, rank, *GPT, "--precision", precision, "--strategy", "fsdp")
            peak = step["memory"]["ranks"][0]["peak"]
            assert peak["planned"] < 1 << 28, peak
            assert peak["measured"] == (peak["planned"] if measurable else None), peak
    for strategy in ["hsdp", "hfsdp"]:
        for replicas in [2, 64, 512]:
            step = simulated_step(program, 512, 17, *GPT, "--strategy", strategy, "--replicas", replicas)
            for name, figure in step["memory"]["ranks"][0]["categories"].items():
                assert figure["measured"] == (figure["planned"] if measurable else None), (strategy, replicas, name, figure)


def check_text(program):
    done = trainer_runs.run(program, *GPT, "--simulate-world", 512, "--rank", 17, "--eval-every", 1)
    assert done.returncode == 0 and not done.stderr, done.stderr
    for words in ["SIMULATED: rank 17 of 512", "note     a simulation", "nothing of a training", "Bytes per rank",
                  "fsdp measured", "--eval-every is without effect", "simulated, so losses and speed"]:
        assert words in done.stdout, f"{words} not in\n{done.stdout}"
    assert "held-out loss" not in done.stdout, done.stdout
    done = trainer_runs.run(program, *GPT, "--simulate-world", 512, "--replicas", 64, "--strategy", "hsdp")
    assert done.returncode == 0 and "SIMULATED: rank 0 of 512" in done.stdout, done.stdout + done.stderr
    assert "; 64 replicas of 8 ranks; strategy hsdp, prefetch 1" in done.stdout, done.stdout
    done = trainer_runs.run(program, *GPT, "--simulate-world", 512, "--simulate-backend", "mpi")
    assert done.returncode == 0 and "staging areas of up to 2048 MiB" in done.stdout, done.stdout + done.stderr


def bad_cases(program):
    cases = bad_input.Cases(program)
    for options, words in [
            (["--simulate-world", 4, "--ranks", 2], ["--ranks", "--simulate-world"]),
            (["--simulate-world", 4, "--rank", 4], ["--rank 4", "4 ranks"]),
            (["--simulate-world", 0], ["--simulate-world"]),
            (["--simulate-world", 1048577], ["--simulate-world"]),
            (["--rank", 0], ["--rank", "--simulate-world"]),
            (["--simulate-backend", "local"], ["--simulate-backend", "--simulate-world"]),
            (["--simulate-latency", 5], ["--simulate-latency", "--simulate-world"]),
            (["--simulate-world", 4, "--simulate-bandwidth", -1], ["--simulate-bandwidth"]),
            (["--simulate-world", 4, "--simulate-backend", "nccl"], ["nccl", "no such backend"]),
            (["--simulate-world", 4, "--simulate-backend", "gloo"], ["--simulate-backend takes local|mpi|nccl"]),
            (["--simulate-world", 4, "--dump-weights", "w.safetensors"], ["--dump-weights"])]:
        cases.check([*options, "--steps", 1], words, [bad_input.BAD_OPTIONS])
    return cases.result()


def main(mlp, gpt, *more):
    measurable = "--not-measurable" not in more
    if "--mpirun" in more:
        check_processes(gpt, more[-1])
    print(f"{check_matrix(mlp, gpt)} simulated ranks take the bytes of real ones")
    check_large_worlds(gpt, measurable)
    check_text(gpt)
    return bad_cases(mlp) + bad_cases(gpt)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
