"""Compare two runs: numbers, configurations, findings, and what makes step time, peak memory and carried tokens differ.

Carried tokens are those that carried policy gradient. Numbers are those of the whole run, as in the report. A metric
that the trainer logged is its last value. If the second run carries out what `probe advise` says of the first, the
command also says whether the promise held.
"""

from __future__ import annotations

import argparse
from typing import Final

from probe.cli.output import add_json, print_json
from probe.cli.runs import RUN_HELP, find_run
from probe.text import rows, visible

ABOUT: Final = "compare two runs: metrics, configuration, findings, and what makes them differ"

EXAMPLE: Final = "probe compare runs/arithmetic/before runs/arithmetic/after"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe compare``."""
    parser.add_argument("a", metavar="A", help=RUN_HELP)
    parser.add_argument("b", metavar="B", help="the run to compare it with")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print what differs."""
    places = [find_run(one) for one in (arguments.a, arguments.b)]
    from probe.analysis.run_comparison import compare_runs
    from probe.runs.reader import Run

    with Run(places[0]) as a, Run(places[1]) as b:
        found = compare_runs(a, b)
    if arguments.json:
        frames = {"metrics": found.metrics, "config": found.config, "findings": found.findings}
        frames["promises"] = found.promises
        told = {name: rows(frame) for name, frame in frames.items()}
        print_json({"a": found.a, "b": found.b, **told, "difference": found.difference.to_dict()})
    else:
        print(visible(repr(found)))
    return 0
