"""What other rules for the longest answers would have saved a step: its recorded answers, ended otherwise.

An answer that would end after L of its N tokens ends at begin + (end − begin) · L ÷ N: as if its tokens had come
evenly. Requests begin when they did, though a replica that has less to do would have begun some of them earlier. What
the step saves is the time between the new end of the rollout and the recorded one in which the trainer only waited.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.analysis.ledger.slots import SAMPLING
from probe.analysis.long_tail.tail import TENTHS, Requests, Step, covered, order_statistic

#: Where only the first answers are kept, one more is asked for with each so many.
MORE: Final = 8

#: A time lies between these of its quantiles in 95 % of all cases.
_BOUNDS: Final = (0.025, 0.975)


class Rule(NamedTuple):
    """Another rule for the longest answers, and what it would have saved.

    Attributes:
        kind: ``continue``: answers above ``tokens`` go on in the next step; ``limit``: they end there; ``more``: of
            more answers that are asked for the first are kept.
        answers: That go on later, or are cut; of ``more`` those that are asked for.
        kept: That are trained in the step.
        saved_ns: What the step saves, nanoseconds.
        reach_ns: How much more or less that may be, 95 %; 0 where nothing is drawn by chance.
        tokens: After which an answer ends; None for ``more``.
        right: Of the answers that are cut, those with the larger reward; None where that isn't known.
    """

    kind: Literal["continue", "limit", "more"]
    answers: int
    kept: int
    saved_ns: int
    reach_ns: int = 0
    tokens: int | None = None
    right: int | None = None


def rules_of(step: Step) -> tuple[Rule, ...]:
    """What each rule would have saved; () where not all answers of a step have times and tokens, or it hasn't ended.

    The limit is the smallest number of tokens that nine tenths of the answers don't exceed. Where none exceeds it,
    since a tenth or more have the largest number, no answer is cut.

    Args:
        step: The step.
    """
    tokens, requests = step.tokens, _requests(step)
    if step.waited_ns is None or tokens is None or len(tokens) != step.samples or (tokens < 1).any():
        return ()
    count, found = len(tokens), []
    limit = order_statistic(tokens, TENTHS)
    longer = tokens > limit
    if longer.any():
        took = requests.end_ns - requests.begin_ns
        ended = requests.begin_ns + np.where(longer, took * (limit / tokens), took).astype(np.int64)
        cut, saved_ns = int(longer.sum()), _saved(step, int(ended.max()))
        right = None if step.right is None else int((step.right & longer).sum())
        found += [
            Rule("continue", cut, count - cut, saved_ns, tokens=limit),
            Rule("limit", cut, count, saved_ns, tokens=limit, right=right),
        ]
    if count >= MORE:
        asked, first = count + count // MORE, int(requests.begin_ns.min())
        mean, low, high = (_saved(step, first + took) for took in enough(np.sort(requests.end_ns) - first, asked))
        found.append(Rule("more", asked, count, mean, (low - high) // 2))
    return tuple(found)


def _requests(step: Step) -> Requests:
    held = [one.requests for one in step.replicas]
    return Requests(*(np.concatenate([one[at] for one in held]) for at in (0, 1))) if held else Requests(*_NONE)


_NONE: Final = (np.empty(0, np.int64), np.empty(0, np.int64))


def _saved(step: Step, end_ns: int) -> int:
    """What a step saves whose rollout ends then: the rest of it, while no phase of the trainer but sampling ran."""
    begin_ns, whole_ns, last = step.step_begin_ns, step.step_ns, step.end_ns
    if begin_ns is None or whole_ns is None or last is None:
        return 0
    last = min(last, begin_ns + whole_ns)
    since = min(max(end_ns, begin_ns), last)
    other = np.array([one[1:] for one in step.phases if one.name not in SAMPLING], np.int64).reshape(-1, 2)
    return last - since - covered(other[:, 0], other[:, 1], since, last)


def enough(took: npt.NDArray[np.int64], asked: int) -> tuple[int, int, int]:
    """When as many answers as were recorded would have ended if more had been asked for: the mean, and the times
    between which it lies in 95 % of all cases.

    Each answer is drawn from the recorded ones. The n-th of m has ended by a time if at least n of m draws have, each
    of them with the chance that is the recorded share of answers that have.

    Args:
        took: When each ended after the first request, rising, int64 (n,).
        asked: m, at least n.

    >>> enough(np.array([1, 2, 3, 4]), 4)[1:]
    (2, 4)
    """
    count = len(took)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, asked + 1)))])  # of factorials
    share, many = np.arange(1, count) / count, np.arange(count, asked + 1)
    ways = logs[asked] - logs[many] - logs[asked - many]
    each = ways[:, None] + many[:, None] * np.log(share) + (asked - many)[:, None] * np.log1p(-share)
    by_then = np.append(np.minimum(np.exp(each).sum(0), 1.0), 1.0)
    mean = took @ np.diff(by_then, prepend=0.0)
    low, high = (int(took[np.searchsorted(by_then, bound)]) for bound in _BOUNDS)
    return round(float(mean)), low, high
