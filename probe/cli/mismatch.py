"""Say whether rollout and training agree about the sampled tokens, and if not, why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from probe.cli import step_range

if TYPE_CHECKING:
    from probe.analysis.mismatch import Mismatch
    from probe.runs.reader import Run

ABOUT: Final = "say whether rollout and training agree, and if not, why"

EXAMPLE: Final = """\
probe mismatch runs/arithmetic/grpo-small
probe mismatch runs/arithmetic --first 10 --json | jq .cause"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe mismatch``."""
    step_range.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print it. The exit code is 1 where no tokens with both log-probabilities are kept."""
    from probe.analysis.mismatch import mismatch

    found: Mismatch | None = None

    def ask(run: Run, first: int | None, last: int | None) -> Mismatch | None:
        nonlocal found
        found = mismatch(run, first=first, last=last)
        return found

    nothing = (
        "probe mismatch: no log-probabilities of rollout and training were recorded in these steps; see probe.samples"
    )
    code = step_range.answer(arguments, ask, nothing)
    return code if found is None or found.tokens.answers else 1
