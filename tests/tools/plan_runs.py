"""What the tests of `tessera plan` share: running it, and reading what it says."""
import json
import subprocess


def run(tool, *arguments):
    return subprocess.run([tool, "plan", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


def plan(tool, *arguments):
    """The JSON object of an answer that must be given."""
    done = run(tool, *arguments, "--json")
    assert done.returncode == 0, (arguments, done.stderr)
    return json.loads(done.stdout)
