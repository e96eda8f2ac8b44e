"""What the tests of bad input share: a case is a run that must end with one line and an exit code."""
import time

import trainer_runs

BAD_OPTIONS, FAILED = 2, 1
LONGEST_SECONDS = 30  # of one case, on a busy machine; an answer takes a fraction of a second


class Cases:
    def __init__(self, program):
        self.program, self.count, self.failures = program, 0, []

    def check(self, options, words, codes, variables=None):
        self.count += 1
        start = time.monotonic()
        done = trainer_runs.run(self.program, *options, seconds=LONGEST_SECONDS, variables=variables)
        seconds = time.monotonic() - start
        line = done.stderr
        wrong = []
        if done.returncode not in codes:
            wrong.append(f"exit code {done.returncode}")
        if not line.startswith("error: ") or line.count("\n") != 1 or not line.endswith("\n"):
            wrong.append("not one line")
        if len(line) > 1000:
            wrong.append(f"a line of {len(line)} characters")
        wrong += [f"does not name {word}" for word in words if str(word) not in line]
        if "step" in done.stdout:
            wrong.append("training had begun")
        if wrong:
            text = " ".join(map(str, [*(variables or {}).items(), *options]))
            self.failures.append(f"{text[:200]}: {', '.join(wrong)} after {seconds:.1f} s: {line[:300]!r}")

    def result(self):
        """Prints what was found; the exit code."""
        print("\n".join(self.failures))
        print(f"{self.count} bad inputs, {len(self.failures)} answered wrongly")
        return 1 if self.failures else 0
