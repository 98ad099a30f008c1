"""The tail of one step's rollout, in whole nanoseconds, so that its parts add up exactly.

Of n requests with known ends, the *tail* begins when the ⌈0.9 n⌉-th of them ends and ends with the last. Always,

* first request to last end = before the tail + the tail;
* replicas × the tail = their busy time in it + their idle time in it, where a replica is idle while none of its
  requests is under way;
* the samples of the replicas sum to those of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]

#: The share of the requests, in tenths, after whose end the tail begins.
TENTHS: Final = 9


class Requests(NamedTuple):
    """Requests of one replica.

    Attributes:
        begin_ns: Wall-clock nanoseconds, int64 (n,).
        end_ns: Likewise, none before its begin.
    """

    begin_ns: Array
    end_ns: Array


class Replica(NamedTuple):
    """What one replica did in a step. Times are None where no request has its own.

    Attributes:
        name: Its name.
        samples: That it sampled.
        requests: Those whose times are kept.
        begin_ns: Its first request, wall-clock nanoseconds.
        end_ns: When its last one ended.
        median_ns: From request to end: the smallest time that half of them don't exceed.
        ninth_decile_ns: That 90 % don't exceed.
        longest_ns: The longest.
        late: Its requests that ended in the tail.
        idle_ns: Of the tail, while none of its requests was under way, of this step or of another.
        meanwhile_ns: Of the tail, while any of its requests of other steps was under way.
        idle: When it was idle in the tail.
    """

    name: str
    samples: int
    requests: Requests
    begin_ns: int
    end_ns: int
    median_ns: int | None = None
    ninth_decile_ns: int | None = None
    longest_ns: int | None = None
    late: int | None = None
    idle_ns: int | None = None
    meanwhile_ns: int | None = None
    idle: tuple[tuple[int, int], ...] = ()


class Phase(NamedTuple):
    """What the trainer did for a while, all of its ranks together.

    Attributes:
        name: Of the phase.
        begin_ns: Wall-clock nanoseconds.
        end_ns: Likewise.
    """

    name: str
    begin_ns: int
    end_ns: int


class Step(NamedTuple):
    """The rollout of one step.

    Attributes:
        step: Its number.
        samples: That were told, by all replicas.
        timed: Of these, with begin and end of their own.
        whole: Whether each timed one's times are kept; else every k-th is, and the tail is that of them.
        replicas: By name; those of which times are known.
        begin_ns: The first request, wall-clock nanoseconds; None where no time is known.
        ninth_ns: When 90 % had ended; None where ends of single samples aren't known.
        end_ns: When the last ended.
        median_ns: From request to end, of all replicas.
        ninth_decile_ns: Likewise.
        longest_ns: Likewise.
        phases: What the trainer did, in order.
        step_begin_ns: When the step began, likewise; None where it hasn't ended.
        step_ns: How long the step took; None where it hasn't ended.
        inside_ns: Of the tail, within the step.
        waited_ns: Of that, while no phase of the trainer but sampling ran: what the tail costs the step.
        staleness: Samples by how many versions their weights were behind the trainer's.
        tokens: Of each request of the replicas, one behind the other, int64 (n,); below 1 where it isn't known.
        right: Likewise which have the larger reward of a batch with two, bool (n,); None where it has others.
    """

    step: int
    samples: int
    timed: int
    whole: bool
    replicas: tuple[Replica, ...]
    begin_ns: int | None = None
    ninth_ns: int | None = None
    end_ns: int | None = None
    median_ns: int | None = None
    ninth_decile_ns: int | None = None
    longest_ns: int | None = None
    phases: tuple[Phase, ...] = ()
    step_begin_ns: int | None = None
    step_ns: int | None = None
    inside_ns: int | None = None
    waited_ns: int | None = None
    staleness: Mapping[int, int] = {}
    tokens: Array | None = None
    right: npt.NDArray[np.bool_] | None = None

    @property
    def tail_ns(self) -> int | None:
        """From the end of 90 % of the requests to the end of the last."""
        return None if self.ninth_ns is None or self.end_ns is None else self.end_ns - self.ninth_ns

    @property
    def before_ns(self) -> int | None:
        """From the first request to the end of 90 % of them."""
        return None if self.ninth_ns is None or self.begin_ns is None else self.ninth_ns - self.begin_ns

    @property
    def idle_ns(self) -> int | None:
        """Of the tail, added up over the replicas: without a request under way."""
        idle = [one.idle_ns for one in self.replicas if one.idle_ns is not None]
        return sum(idle) if idle else None

    @property
    def share(self) -> float | None:
        """The tail within the step, as a share of the step."""
        return None if self.inside_ns is None or not self.step_ns else self.inside_ns / self.step_ns

    @property
    def waited_share(self) -> float | None:
        """What the tail costs the step, as a share of it."""
        return None if self.waited_ns is None or not self.step_ns else self.waited_ns / self.step_ns


def order_statistic(values: Array, tenths: int) -> int:
    """The smallest of the values that so many tenths of them don't exceed.

    Args:
        values: At least one.
        tenths: From 1 to 10.

    >>> order_statistic(np.array([5, 1, 3]), 5), order_statistic(np.arange(20), 9)
    (3, 17)
    """
    at = -(-tenths * len(values) // 10) - 1
    return int(np.partition(values, at)[at])


def covered(begin_ns: Array, end_ns: Array, first: int, last: int) -> int:
    """How much of a stretch of time some intervals cover, however they overlap.

    Args:
        begin_ns: Of the intervals.
        end_ns: Likewise.
        first: Begin of the stretch.
        last: Its end.

    >>> covered(np.array([0, 2, 8]), np.array([3, 5, 20]), 1, 10)
    6
    """
    begin, end = np.clip(begin_ns, first, last), np.clip(end_ns, first, last)
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    reached = np.concatenate([[first], np.maximum.accumulate(end)[:-1]]) if len(end) else end
    return int(np.maximum(end - np.maximum(begin, reached), 0).sum())


def merged(begin_ns: Sequence[int] | np.ndarray, end_ns: Sequence[int] | np.ndarray) -> Requests:
    """The same time as stretches that neither overlap nor touch, in order.

    Args:
        begin_ns: Of the stretches.
        end_ns: Likewise, none before its begin.

    >>> [one.tolist() for one in merged([5, 0, 2], [6, 3, 4])]
    [[0, 5], [4, 6]]
    """
    begin, end = np.asarray(begin_ns, np.int64), np.asarray(end_ns, np.int64)
    if not len(begin):
        return Requests(begin, end)
    order = np.argsort(begin, kind="stable")
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    last = np.append(begin[1:] > reached[:-1], True)  # of those that are one
    return Requests(begin[np.append(0, np.flatnonzero(last[:-1]) + 1)], reached[last])


def between(spans: Requests, first: int, last: int) -> Requests:
    """Those of merged stretches that reach into another one.

    Args:
        spans: As :func:`merged` gives them.
        first: Where it begins.
        last: Where it ends.
    """
    begin = int(np.searchsorted(spans.end_ns, first, "right"))
    end = int(np.searchsorted(spans.begin_ns, last, "left"))
    return Requests(spans.begin_ns[begin:end], spans.end_ns[begin:end])


def step_of(
    step: int,
    replicas: Mapping[str, Sequence[Requests]],
    *,
    samples: int,
    timed: int,
    counts: Mapping[str, int],
    spans: Mapping[str, tuple[int, int]] | None = None,
    others: Mapping[str, Requests] | None = None,
    **more: Any,
) -> Step:
    """A step from its requests.

    Args:
        step: Its number.
        replicas: Requests by replica, in parts; without any where only those of whole batches are known.
        samples: That were told.
        timed: Of these, with times of their own.
        counts: Samples of each replica.
        spans: Of a replica the first begin and last end, where that is all that is known.
        others: Requests of other steps, by replica, merged.
        **more: Fields of :class:`Step` that don't come from these.
    """
    held = {name: _together(parts) for name, parts in replicas.items()}
    held = {name: one for name, one in held.items() if len(one.begin_ns)}
    if not held:
        alone = tuple(
            Replica(name, counts[name], _NONE, begin, end) for name, (begin, end) in sorted((spans or {}).items())
        )
        if alone:
            more |= {"begin_ns": min(one.begin_ns for one in alone), "end_ns": max(one.end_ns for one in alone)}
        return Step(step, samples, timed, whole=False, replicas=alone, **more)
    every = _together(list(held.values()))
    ninth, end_ns = order_statistic(every.end_ns, TENTHS), int(every.end_ns.max())
    took = every.end_ns - every.begin_ns
    return Step(
        step,
        samples,
        timed,
        whole=len(took) == timed,
        replicas=tuple(
            _replica(name, counts[name], held[name], (others or {}).get(name, _NONE), (ninth, end_ns))
            for name in sorted(held)
        ),
        begin_ns=int(every.begin_ns.min()),
        ninth_ns=ninth,
        end_ns=end_ns,
        median_ns=order_statistic(took, 5),
        ninth_decile_ns=order_statistic(took, TENTHS),
        longest_ns=int(took.max()),
        **more,
    )


_NONE: Final = Requests(np.empty(0, np.int64), np.empty(0, np.int64))


def _together(parts: Sequence[Requests]) -> Requests:
    if not parts:
        return _NONE
    return Requests(np.concatenate([one.begin_ns for one in parts]), np.concatenate([one.end_ns for one in parts]))


def _replica(name: str, samples: int, requests: Requests, others: Requests, tail: tuple[int, int]) -> Replica:
    took, (first, last) = requests.end_ns - requests.begin_ns, tail
    own = merged(*requests)
    others = between(others, first, last)
    every = between(merged(*(np.concatenate(both) for both in zip(own, others, strict=True))), first, last)
    edges = np.concatenate([[first], np.clip(np.stack(every, axis=1).ravel(), first, last), [last]]).reshape(-1, 2)
    idle = [(int(begin), int(end)) for begin, end in edges if begin < end]
    return Replica(
        name,
        samples,
        requests,
        int(requests.begin_ns.min()),
        int(requests.end_ns.max()),
        median_ns=order_statistic(took, 5),
        ninth_decile_ns=order_statistic(took, TENTHS),
        longest_ns=int(took.max()),
        late=int((requests.end_ns > first).sum()),
        idle_ns=sum(end - begin for begin, end in idle),
        meanwhile_ns=covered(*others, first, last),
        idle=tuple(idle),
    )
