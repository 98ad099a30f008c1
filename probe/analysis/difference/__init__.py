"""What makes two runs differ in step time, in peak memory and in tokens that carried policy gradient, cause by cause.

The parts of each difference sum to it exactly. What several factors do together is shared among them by Shapley's value
(L. S. Shapley, *A Value for n-Person Games*, 1953): the mean, over all orders in which the factors could have changed,
of what each changes in its turn; no order is preferred, and a factor that didn't change gets nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe.analysis.difference.carried import carried
from probe.analysis.difference.parts import CAUSES, Difference, Part, Waterfall
from probe.analysis.difference.peak import peak
from probe.analysis.difference.step_time import step_time

if TYPE_CHECKING:
    from probe.runs.reader import Run

__all__ = ["CAUSES", "Difference", "Part", "Waterfall", "difference"]


def difference(a: Run, b: Run) -> Difference:
    """What makes ``b`` other than ``a``: step time, peak memory and tokens that carried policy gradient.

    Args:
        a: A run, such as the one before a change.
        b: What it is compared with, such as the one after it.

    Returns:
        A waterfall of each of these numbers that both runs tell; what can't be said stands in its notes.
    """
    found, missing = [], []
    for look in (step_time, peak, carried):
        told = look(a, b)
        if isinstance(told, str):
            missing.append(told)
        else:
            found.append(told)
    return Difference(tuple(found), tuple(missing))
