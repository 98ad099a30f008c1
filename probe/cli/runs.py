"""The RUN that commands take: a run directory, an ``fsspec`` URL of one, or a directory that holds runs."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from probe.runs import finding

#: What ``--help`` says of the argument.
RUN_HELP: Final = "a run directory, its fsspec URL, or a directory of runs (the newest is taken)"


def add_run(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """The positional argument RUN."""
    if optional:
        parser.add_argument("run_path", metavar="RUN", nargs="?", help=RUN_HELP)
    else:
        parser.add_argument("run_path", metavar="RUN", help=RUN_HELP)


def add_attempt(parser: argparse.ArgumentParser) -> None:
    """The option ``--attempt``."""
    about = "one launch only, if the run had several (default: of each step the newest launch that has it)"
    parser.add_argument("--attempt", type=int, metavar="N", help=about)


def find_run(text: str, *, rollouts: str | None = None) -> str:
    """The run that ``text`` means, as :func:`probe.runs.finding.find_run` says; which one is taken is said on
    standard error.

    Args:
        text: A directory or a URL.
        rollouts: Where verl's rollout dumps are.

    Raises:
        RunNotFoundError: There is nothing, or no run in it.
        InputError: An empty text, or no kind of URL that is known.
        RunError: The store can't be read.
    """
    return finding.find_run(
        text, argument="RUN", tell=lambda told: print(f"probe: {told}", file=sys.stderr), rollouts=rollouts
    )
