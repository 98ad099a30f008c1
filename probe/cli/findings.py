"""Say what is wrong in a run, what is worth a change, and which change."""

from __future__ import annotations

import argparse
from typing import Final

from probe.cli.output import add_json, print_json
from probe.cli.runs import add_attempt, add_run, find_run
from probe.text import visible

ABOUT: Final = "say what was found in a run, and what to do about it"

EXAMPLE: Final = """\
probe findings runs/arithmetic/grpo-small
probe findings runs/arithmetic --json | jq '.[] | select(.kind == "alarm") | .sentence'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe findings``."""
    add_run(parser)
    add_attempt(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print them, alarms first. The exit code is 1 where there is an alarm."""
    place = find_run(arguments.run_path)
    from probe.analysis.verdict import findings
    from probe.runs.reader import Run

    with Run(place, arguments.attempt) as opened:
        found = findings(opened)
    if arguments.json:
        print_json([one.to_dict() for one in found.everything])
    else:
        print(visible(repr(found)))
    return 1 if found.alarms else 0
