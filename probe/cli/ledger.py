"""Say what became of each sampled token of a run, and what was computed beside them."""

from __future__ import annotations

import argparse
from typing import Final

from probe.cli import step_range

ABOUT: Final = "say what became of the sampled tokens, and what they cost"

EXAMPLE: Final = """\
probe ledger runs/arithmetic/grpo-small
probe ledger runs/arithmetic --first 10 --json | jq .sentence"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe ledger``."""
    step_range.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print it. The exit code is 1 where no samples were recorded."""
    from probe.analysis.ledger import ledger

    nothing = "probe ledger: no samples were recorded in these steps; see probe.samples"
    return step_range.answer(arguments, lambda run, first, last: ledger(run, first=first, last=last), nothing)
