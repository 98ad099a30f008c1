"""Say what became of each sampled token of a run, and what was computed beside them."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from probe.cli import step_range
from probe.text import visible

ABOUT: Final = "say what became of the sampled tokens, and what they cost"

EXAMPLE: Final = """\
probe ledger runs/arithmetic/grpo-small
probe ledger runs/arithmetic --first 10 --json | jq .sentence"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe ledger``."""
    step_range.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print it. The exit code is 1 where no samples were recorded."""
    from probe.analysis.ledger import GPU_HOUR_VARIABLE, ledger
    from probe.runs.layout import gpu_hour

    price = os.environ.get(GPU_HOUR_VARIABLE)
    if price and gpu_hour() is None:
        said = f"probe ledger: {GPU_HOUR_VARIABLE}: got {price!r}, expected a number above 0; it isn't used"
        print(visible(said), file=sys.stderr)
    nothing = "probe ledger: no samples were recorded in these steps; see probe.samples"
    return step_range.answer(arguments, lambda run, first, last: ledger(run, first=first, last=last), nothing)
