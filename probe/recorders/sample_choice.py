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
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from probe.recorders.sample_arrays import Array

#: The part of the places that each reason may fill, in their order; the rest is drawn.
PARTS: Final = (("nan", 1 / 4), ("worst", 1 / 4), ("longest", 1 / 8), ("no_advantage", 1 / 8))


class Seen(NamedTuple):
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
    scores = {"nan": seen.nan, "worst": seen.worst, "longest": seen.length, "no_advantage": seen.no_advantage}
    for reason, part in PARTS:
        score = np.where(np.isnan(scores[reason]), -np.inf, scores[reason])
        score[list(found)] = -np.inf
        least = -np.inf if reason in ("worst", "longest") else 0
        order = np.argsort(-score, kind="stable")[: min(int(places * part), places - len(held) - len(found))]
        found.update(dict.fromkeys(order[score[order] > least].tolist(), reason))
    found = {**held, **found}
    left = [at for at in range(count) if at not in found]
    # By the number of held ones too, so that it doesn't hang together with theirs.
    drawing = np.random.Generator(np.random.PCG64([0 if step is None else abs(int(step)), count, len(held)]))
    drawn = drawing.choice(len(left), size=min(places - len(found), len(left)), replace=False)
    found.update({left[at]: "random" for at in drawn.tolist()})
    return dict(sorted(found.items()))
