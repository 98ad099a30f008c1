"""Commands that print one answer about a range of steps: their options, and how the answer is printed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from probe.cli.output import add_json, print_json
from probe.cli.runs import add_attempt, add_run, find_run
from probe.text import visible

if TYPE_CHECKING:
    from probe.runs.reader import Run


class Answer(Protocol):
    """What is printed: as text, or as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, its attempt, the range and ``--json``."""
    add_run(parser)
    add_attempt(parser)
    parser.add_argument("--first", type=int, metavar="STEP", help="the first step (the run's)")
    parser.add_argument("--last", type=int, metavar="STEP", help="the last step (the run's)")
    add_json(parser)


def answer(
    arguments: argparse.Namespace, ask: Callable[[Run, int | None, int | None], Answer | None], nothing: str
) -> int:
    """Ask a run, and print what it answers.

    Args:
        arguments: Of :func:`add_arguments`.
        ask: Takes the run and the first and last step.
        nothing: What is said where there is no answer.

    Returns:
        The exit code: 1 where there is none.
    """
    place = find_run(arguments.run_path)
    from probe.runs.reader import Run

    with Run(place, arguments.attempt) as run:
        found = ask(run, arguments.first, arguments.last)
    if arguments.json:
        print_json(None if found is None else found.to_dict())
    elif found is None:
        print(nothing, file=sys.stderr)
    else:
        print(visible(str(found)))
    return 0 if found is not None else 1
