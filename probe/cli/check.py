"""Check a run against limits, beside a base run, for CI.

A limit is NAME=+5%, a change from the base run, or NAME=0.8, a number in the metric's own unit (bytes, seconds, a share
of one). NAME is step, peak, carried, padding, a quantity, or a metric that the trainer logged. `probe compare BASE RUN`
lists them all.

A change is judged by the variation of the runs' own steps, at the given confidence: the run is shown to be within the
limit, or beyond it, or neither. Then the sentence says how many steps would tell. A number is compared exactly.

The exit code is 0 if no limit is exceeded, 1 if one is, and 2 if one can't be checked or is wrong. With --unsure fail a
limit that isn't shown to be kept counts as exceeded.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from probe.cli.output import add_json, print_json
from probe.cli.runs import RUN_HELP, find_run
from probe.errors import InputError
from probe.text import visible

ABOUT: Final = "check a run against limits, beside a base run, for CI"

EXAMPLE: Final = """\
probe check runs/arithmetic/before runs/arithmetic/after --max peak=+3% --max step=+5%
probe check runs/main runs/branch --max step=+5% --confidence 0.99 --unsure fail
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
    about = "of what is said about a change, such as 0.95: at most 5 of 100 changes at the limit are judged wrong"
    add("--confidence", type=float, default=0.95, metavar="C", help=about)
    about = "whether a limit that isn't shown to be kept, nor to be exceeded, fails (exit code 1); pass by default"
    add("--unsure", choices=("pass", "fail"), default="pass", help=about)
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
        found = check(base, opened, limits, confidence=arguments.confidence)
        names = base.path, opened.path
    verdicts = {one.verdict for one in found}
    unsure = sum(one.verdict == "not_shown" for one in found)
    code = (
        1 if "beyond" in verdicts else 2 if "unknown" in verdicts else int(bool(unsure) and arguments.unsure == "fail")
    )
    if arguments.json:
        told = {"base": names[0], "run": names[1], "kept": verdicts == {"within"}, "exit_code": code}
        print_json(told | {"limits": [one.to_dict() for one in found]})
    else:
        for one in found:
            print(visible(one.sentence()))
    if unsure and not code:
        limits_are = "1 limit is" if unsure == 1 else f"{unsure} limits are"
        sys.stderr.write(f"warning: {limits_are} not shown to be kept; with --unsure fail the check fails.\n")
    return code
