"""What the tables of the mismatch have: views and their lines, the worst tokens, and how their numbers are written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from probe.analysis.mismatch.measures import Measures
from probe.text import UNKNOWN

#: By what tokens are told apart, and what it is called.
VIEWS: Final = {
    "turn": "Turn",
    "position": "Position in the answer",
    "version": "Weight version",
    "lag": "Versions behind",
    "length": "Tokens of the answer",
    "rank": "Rank",
    "replica": "Replica",
    "micro_batch": "Micro-batch",
    "step": "Step",
}


class Line(NamedTuple):
    """One line of a view.

    Attributes:
        label: Such as "3", or "8 to 15" of a range.
        measures: Of its tokens.
    """

    label: str
    measures: Measures


@dataclass(frozen=True, slots=True)
class WorstToken:
    """One token about which rollout and training disagree most; what isn't known is None."""

    step: int | None
    rank: int | None
    process: str
    batch_id: int | None
    row: int | None
    position: int
    turn: int | None
    rollout_log_prob: float
    log_prob: float
    log_ratio: float
    lag: int | None = None  #: versions that the weights of its answer are behind
    confident: bool = False  #: whether one of the two is sure of it and the other finds it unlikely


def short(value: float | None) -> str:
    """A number with two digits.

    >>> short(0.000123), short(None), short(-0.5)
    ('0.00012', '–', '−0.5')
    """
    if value is None or math.isnan(value):
        return UNKNOWN
    return f"{value:.2g}".replace("-", "\N{MINUS SIGN}") if value else "0"
