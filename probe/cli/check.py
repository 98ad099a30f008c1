"""Check a run against limits, beside a base run, for CI.

The exit code is 0 if all limits are kept, 1 if one isn't, and 2 if one can't be checked or is wrong.

A limit is NAME=+5%, a change from the base run, or NAME=0.8, a number in the metric's own unit (bytes, seconds, a share
of one). NAME is step, peak, carried, padding, a quantity, or a metric that the trainer logged (its last value).
`probe compare BASE RUN` lists them all.
"""

from __future__ import annotations

import argparse
from typing import Final

from probe.cli.output import add_json, print_json
from probe.cli.runs import RUN_HELP, find_run
from probe.errors import InputError
from probe.text import visible

ABOUT: Final = "check a run against limits, beside a base run, for CI"

EXAMPLE: Final = """\
probe check runs/arithmetic/before runs/arithmetic/after --max peak=+3% --max step=+5%
probe check runs/main runs/branch --max padding=0.2 --min reward/mean=-2% --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe check``."""
    parser.add_argument("base", metavar="BASE", help=RUN_HELP)
    parser.add_argument("run_path", metavar="RUN", help="the run to check")
    add = parser.add_argument
    about = "largest allowed value, such as peak=+3%% or padding=0.2; may be repeated"
    add("--max", action="append", default=[], metavar="LIMIT", help=about)
    about = "smallest allowed value, such as reward/mean=-2%%; may be repeated"
    add("--min", action="append", default=[], metavar="LIMIT", help=about)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print a sentence for each limit."""
    if not arguments.max and not arguments.min:
        raise InputError("--max and --min: got neither, expected at least one limit, such as --max peak=+3%")
    places = [find_run(one) for one in (arguments.base, arguments.run_path)]
    from probe.analysis.limits import Limit, check
    from probe.runs.reader import Run

    limits = [Limit.of(one, "max") for one in arguments.max] + [Limit.of(one, "min") for one in arguments.min]
    with Run(places[0]) as base, Run(places[1]) as opened:
        found = check(base, opened, limits)
        names = base.path, opened.path
    code = 2 if any(one.kept is None for one in found) else 0
    code = 1 if any(one.kept is False for one in found) else code
    if arguments.json:
        print_json({"base": names[0], "run": names[1], "kept": code == 0, "limits": [one.to_dict() for one in found]})
    else:
        for one in found:
            print(visible(one.sentence()))
    return code
