"""Compare two runs: what makes step time, peak memory and tokens that carried policy gradient differ; their numbers,
their configurations, and what was found in each. Where the second has carried out what `probe advise` says of the
first, whether the promise held.

Numbers are those of the whole run, as the report shows them; of a metric that the trainer logged it is the last value.
"""

from __future__ import annotations

import argparse
from typing import Final

from probe.cli.output import add_json, print_json
from probe.cli.runs import RUN_HELP, find_run
from probe.text import rows, visible

ABOUT: Final = "compare two runs: what makes them differ, metrics, configuration, findings"

EXAMPLE: Final = "probe compare runs/arithmetic/before runs/arithmetic/after"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe compare``."""
    parser.add_argument("a", metavar="A", help=RUN_HELP)
    parser.add_argument("b", metavar="B", help="what it is compared with")
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
