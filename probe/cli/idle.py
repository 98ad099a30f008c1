"""Say how long training waits for sampling, and sampling for training."""

from __future__ import annotations

import argparse
from typing import Final

from probe.cli import step_range

ABOUT: Final = "say how long the trainer waits for answers, and replicas for requests"

EXAMPLE: Final = """\
probe idle runs/arithmetic/grpo-small
probe idle runs/arithmetic --first 10 --json | jq .replicas"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe idle``."""
    step_range.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print it. The exit code is 1 where sampling times weren't recorded."""
    from probe.analysis.idle import idle

    nothing = "probe idle: no step is known in which answers were sampled to their end; see probe.samples"
    return step_range.answer(arguments, lambda run, first, last: idle(run, first=first, last=last), nothing)
