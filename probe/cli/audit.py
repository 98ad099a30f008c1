"""Check each logged number: what was reported, what weighted means would have said, and why they differ.

The exit code is 1 if a number has a trap: a known mistake in how it was reduced or logged (`trap` in --json).
"""

from __future__ import annotations

import argparse
from typing import Final

from probe.cli.output import add_json, print_json
from probe.cli.runs import add_attempt, add_run, find_run
from probe.text import visible

ABOUT: Final = "check each logged number: what it should have been, and why it isn't"

EXAMPLE: Final = """\
probe audit runs/arithmetic/grpo-small
probe audit runs/arithmetic --json | jq '.[] | select(.trap != null) | .metric'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe audit``."""
    add_run(parser)
    add_attempt(parser)
    parser.add_argument("--step", type=int, help="look at this step only (each metric's worst, else its last)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each metric, those in a trap first."""
    place = find_run(arguments.run_path)
    from probe.analysis.audit import audit
    from probe.runs.reader import Run

    with Run(place, arguments.attempt) as opened:
        found = audit(opened, arguments.step)
    if arguments.json:
        print_json(found.to_list())
    else:
        print(visible(repr(found)))
    return 1 if found.trapped else 0
