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
    """Print it. The exit code is 1 where no rollout was recorded."""
    from probe.analysis.long_tail import long_tail

    nothing = "probe long-tail: when answers were sampled wasn't recorded; see probe.samples"
    return step_range.answer(arguments, lambda run, first, last: long_tail(run, first=first, last=last), nothing)
