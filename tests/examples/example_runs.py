"""Runs of the short examples for the tests beside this file: their text, with everything that they promise of any example."""
import pathlib

import trainer_runs

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
MOST_LINES = 110


def lines_of(program, *options):
    """The lines that the example prints; it must end well, say nothing on stderr, and refuse what it does not know."""
    done = trainer_runs.run(program, *options)
    assert done.returncode == 0 and not done.stderr, f"{options}: {done.stdout}{done.stderr}"
    return done.stdout.splitlines()


def check_form(program, most_lines=MOST_LINES):
    source = EXAMPLES / (pathlib.Path(program).name + ".cpp")
    lines = source.read_text(encoding="utf-8").count("\n")
    assert lines <= most_lines, f"{source} has {lines} lines"
    assert trainer_runs.run(program, "--surplus").returncode == 2
