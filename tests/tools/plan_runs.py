"""What the tests of the command-line tool share: running `tessera plan`, reading what it says, and what pages show of it."""
import json
import os
import pathlib
import subprocess


def run(tool, *arguments):
    return subprocess.run([tool, "plan", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


def plan(tool, *arguments):
    """The JSON object of an answer that must be given."""
    done = run(tool, *arguments, "--json")
    assert done.returncode == 0, (arguments, done.stderr)
    return json.loads(done.stdout)


def has_matplotlib(python):
    try:
        return subprocess.run([python, "-c", "import matplotlib"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def plotting_python():
    """A Python that can draw; None where there is none."""
    chosen = os.environ.get("TESSERA_PLOT_PYTHON")
    pythons = [chosen] if chosen else ["python3", "/usr/bin/python3"]
    return next(filter(has_matplotlib, pythons), None)


def shown_in_docs(command):
    """What docs/cost.md shows of `tessera plan` or `tessera cost`: arguments behind that command, and the output."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "cost.md").read_text(encoding="utf-8")
    for block in page.split("```\n"):
        line, _, output = block.partition("\n")
        if line.startswith(f"$ {command} "):
            yield line.split()[3:], output
