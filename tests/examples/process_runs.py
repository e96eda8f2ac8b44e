"""Runs of trainers whose ranks are processes, for the tests beside this file."""
import pathlib
import sys

import trainer_runs

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "comm"))
from launched import Ranks  # noqa: E402
from mpi_job import Job  # noqa: E402


def trained_by(way, mpirun):
    """As trainer_runs.train(), with processes by mpirun, or with torchrun's variables, in place of --ranks."""
    def train(program, folder, *options):
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        at = options.index("--ranks")
        ranks, rest = options[at + 1], options[:at] + options[at + 2:]
        command = [program, *map(str, rest), "--metrics", str(metrics), "--quiet"]
        if way == "mpirun":
            code, output, _ = Job(mpirun, ranks, command).finish(trainer_runs.SECONDS)
            assert code == 0, f"{' '.join(command)}\nended with {code}: {output}"
        else:
            with Ranks(command, ranks) as job:
                codes, _ = job.wait(trainer_runs.SECONDS)
                assert not any(codes.values()), f"{' '.join(command)}\nended with {codes}: {job.output(0)}"
        return trainer_runs.read_metrics(metrics)
    return train
