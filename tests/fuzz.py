"""The property tests again and again, with new seeds, for as many minutes as asked: ``make fuzz MINUTES=60``.

`make test` and CI draw the same examples every time. Here each round draws others; what fails is told once, with how to
draw it again, and left out of the rounds that follow. Write what it finds as an ``@example`` above the test.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Run rounds until the minutes are over; a round that has begun is ended.

    Args:
        arguments: The minutes, then whatever pytest shall be told beside (files, ``-k name``).

    Returns:
        The exit code: 1 when something was found.
    """
    ends = time.monotonic() + 60 * float(arguments[0] if arguments else 10)
    chosen = arguments[1:] or [str(path) for path in with_properties()]
    found: list[str] = []
    rounds = 0
    while not rounds or time.monotonic() < ends:
        rounds += 1
        seed = random.SystemRandom().randrange(2**32)
        failed, text = play(seed, chosen, found)
        found += failed
        print(*([text] if failed else []), *(f"seed {seed} found {test}" for test in failed), sep="\n", flush=True)
        print(f"round {rounds}, seed {seed}: {len(found)} tests have failed so far", flush=True)
    print("\n".join(["", *found]) if found else "nothing found", flush=True)
    return bool(found)


def with_properties() -> list[Path]:
    """The files that have a property test: the others need not be imported."""
    return sorted(path for path in TESTS.rglob("test_*.py") if "@given" in path.read_text())


def play(seed: int, chosen: list[str], without: list[str]) -> tuple[list[str], str]:
    """One round.

    Args:
        seed: Of everything that is drawn in it.
        chosen: Files and options for pytest.
        without: The tests that are left out.

    Returns:
        The tests that failed, and what pytest wrote about them.

    Raises:
        RuntimeError: When pytest ran no test.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-m", "hypothesis and not browser", "-n", "auto", "--timeout=3600"]
    command += [f"--hypothesis-seed={seed}", *(f"--deselect={test}" for test in without), *chosen]
    environment = {**os.environ, "PROBE_EXAMPLES": "fuzz", "PROBE_FUZZ_SEED": str(seed)}
    done = subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in ({0, 1, 5} if without else {0, 1}):  # 5: no test is left
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return FAILED.findall(done.stdout), done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
