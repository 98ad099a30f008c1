"""Where the tokens went, as a page draws it: of a step, of the steps up to it, and of the attempt.

Nothing is worked out here that :func:`probe.analysis.ledger.ledger` doesn't say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from probe.analysis.ledger import Ledger, ledger
from probe.analysis.ledger.lines import told_money, told_seconds
from probe.analysis.ledger.markup import bars

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Steps of the middle choice, with the chosen one.
RECENT: Final = 20
#: Lines of a funnel, at most.
MOST: Final = 30


def kept(run: Run) -> dict[str, Any] | None:
    """The funnel of the attempt that is shown, and those of its last step and of the last steps.

    Args:
        run: The run.

    Returns:
        As :func:`shown` gives it, of all steps, with ``at``, the last of them, and what :func:`told` says of that one;
        None where no samples were recorded.
    """
    found = ledger(run)
    return None if found is None else shown(found) | told(run, found.last)


def told(run: Run, step: int) -> dict[str, Any]:
    """The funnels of one step, and of the steps up to it.

    Args:
        run: The run.
        step: Its number.

    Returns:
        ``at``, the step; ``step`` and ``recent``, as :func:`shown` gives them, null where what became of the tokens
        wasn't recorded.
    """
    of_step = ledger(run, first=step, last=step)
    recent = ledger(run, first=step - RECENT + 1, last=step)
    return {
        "at": step,
        "step": None if of_step is None else shown(of_step),
        "recent": None if recent is None else shown(recent),
    }


def shown(found: Ledger) -> dict[str, Any]:
    """What a page shows of the ledgers, as plain JSON: ``tiles``, the numbers above the funnel; ``lines`` of the
    funnel, with shares of the sampled tokens; ``sentence``, ``head`` and ``notes``; ``first`` and ``last`` step. A line
    has ``money`` of a ``step``, the mean of these, and of ``all`` of them, in words; null without a price.

    Args:
        found: Both ledgers.
    """
    money = found.money is not None
    lines = [
        {
            "title": line.title,
            "about": line.about,
            "cells": [
                line.amount,
                line.share,
                told_seconds(line.seconds),
            ],
            "money": _money(line.money, found.steps) if money else None,
            "stream": line.stream,
            "part": line.part,
            "kind": line.kind,
        }
        for line in bars(found)
    ]
    return {
        "first": found.first,
        "last": found.last,
        "sentence": found.sentence,
        "tiles": [{"value": one.value, "about": one.about} for one in found.headline],
        "head": ["Tokens", "Share", found.unit],
        "lines": lines[:MOST],
        "notes": list(found.notes),
    }


def _money(value: float | None, steps: int) -> dict[str, str]:
    """What a line costs, in words; "" where that isn't known."""
    return {"step": told_money(None if value is None else value / steps), "all": told_money(value)}
