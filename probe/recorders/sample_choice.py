"""Which answers of a large batch are kept: the first of these that fills its part, and what is left at random.

An answer with NaN comes first (up to a quarter of the places), then the worst (a quarter: in turns the largest
difference between the log-probabilities of rollout and training at one token, and the largest in the mean of an answer;
where these aren't known the lowest reward), the longest (an eighth), answers without advantage (an eighth), and answers
drawn at random. The draw depends on the step and the size of the batch alone, and takes nothing from any generator of
the training. Answers that must be kept, because their tokens are, take places of drawn ones: those among them that were
drawn themselves leave the drawn ones a fair draw from all that weren't chosen by what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Final

import numpy as np

from probe.recorders.sample_arrays import Array

#: The part of the places that each reason may fill, in their order; the rest is drawn.
PARTS: Final = (("nan", 1 / 4), ("worst", 1 / 4), ("longest", 1 / 8), ("no_advantage", 1 / 8))


@dataclass(frozen=True)
class Seen:
    """What is chosen by, each (n,).

    Attributes:
        nan: How many NaN each answer has.
        worst: The larger the worse; NaN where it isn't known.
        length: Response tokens.
        no_advantage: Tokens without advantage.
    """

    nan: Array
    worst: Array
    length: Array
    no_advantage: Array

    @cached_property
    def orders(self) -> dict[str, list[int]]:
        """By reason the answers that may be kept for it, the first to be kept first."""
        scores = {"nan": self.nan, "worst": self.worst, "longest": self.length, "no_advantage": self.no_advantage}
        return {reason: _order(score, reason in ("nan", "no_advantage")) for reason, score in scores.items()}


def _order(score: Array, positive: bool) -> list[int]:
    """Places in falling order of their scores, of equal ones the earlier first, without NaN, −∞ and, where only
    positive ones count, all others.
    """
    places = np.flatnonzero(score > (0 if positive else -np.inf))
    return places[np.argsort(-score[places], kind="stable")].tolist() if len(places) else []


def chosen(seen: Seen, places: int, step: int | None, held: Mapping[int, str] = MappingProxyType({})) -> dict[int, str]:
    """Which answers are kept, and why.

    Args:
        seen: Of all answers.
        places: How many may be kept.
        step: That they are of.
        held: Answers that must be among them, at most as many as there are places, with their reasons.

    Returns:
        The reason by the answer's place in the batch, in rising order of places; "all" where every one is kept.

    >>> nothing = np.zeros(4)
    >>> chosen(Seen(nothing, nothing, np.array([3, 9, 1, 4]), nothing), 4, 0)
    {0: 'all', 1: 'all', 2: 'all', 3: 'all'}
    """
    count = len(seen.length)
    if count <= places:
        return dict.fromkeys(range(count), "all")
    found: dict[int, str] = {}
    for reason, part in PARTS:
        room = min(int(places * part), places - len(held) - len(found))
        best = islice((at for at in seen.orders[reason] if at not in found), room)
        found.update(dict.fromkeys(list(best), reason))
    found = {**held, **found}
    left = [at for at in range(count) if at not in found]
    # By the number of held ones too, so that it doesn't hang together with theirs.
    drawing = np.random.Generator(np.random.PCG64([0 if step is None else abs(int(step)), count, len(held)]))
    drawn = drawing.choice(len(left), size=min(places - len(found), len(left)), replace=False)
    found.update({left[at]: "random" for at in drawn.tolist()})
    return dict(sorted(found.items()))
