"""Say how long each step waits for the last answers of its rollout."""

from __future__ import annotations

import argparse
from typing import Final

from probe.cli import step_range

ABOUT: Final = "say how long a step waits for the last answers of its rollout"

EXAMPLE: Final = """\
probe long-tail runs/arithmetic/grpo-small
probe long-tail runs/arithmetic --first 10 --json | jq .sentence"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe long-tail``."""
    step_range.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print it. The exit code is 1 where nobody told of any rollout."""
    from probe.analysis.long_tail import long_tail

    nothing = "probe long-tail: nobody told when answers were sampled; see probe.samples"
    return step_range.answer(arguments, lambda run, first, last: long_tail(run, first=first, last=last), nothing)
