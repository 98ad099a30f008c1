"""The tests that use a browser, processes or servers, again and again beside busy loops: ``make soak ROUNDS=10``.

As many busy loops as there are cores run beside them; the cases marked ``thorough`` are among the tests. What fails now
and then depends on something being quick, on the order of two threads, or on what another test left; how often it
did is printed, with the first message.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from tests.twice import play

CHOSEN = "browser or multiprocess or slow"
BUSY = "while True: pass"


def main(arguments: list[str]) -> int:
    """Run the rounds.

    Args:
        arguments: How many; then options and files for pytest. Without files, those of the configuration.

    Returns:
        The exit code: 1 where a test failed in any round, or a round could not be run.
    """
    rounds, more = int(arguments[0] if arguments else 10), arguments[1:]
    failures: dict[str, list[str]] = {}
    os.environ["PROBE_THOROUGH"] = "1"
    with busy(os.cpu_count() or 2):
        for number in range(1, rounds + 1):
            played = play(["-q", "-m", CHOSEN, *more])
            if played.code not in {0, 1}:
                return played.code
            for test, why in played.failed.items():
                failures.setdefault(test, []).append(why)
            print(f"round {number} of {rounds}: {len(played.failed)} failed", flush=True)
    for test, whys in sorted(failures.items(), key=lambda one: -len(one[1])):
        print(f"{len(whys)} of {rounds}: {test}\n    {whys[0].splitlines()[0]}")
    print(f"{len(failures)} tests failed in {rounds} rounds", flush=True)
    return int(bool(failures))


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Hold the cores.

    Args:
        loops: How many processes do nothing, as fast as they can.
    """
    held = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in held:
            one.kill()
            one.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
