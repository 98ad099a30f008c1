"""What each replica did of a batch of samples: when they were asked for and ended, by which weights, and how far its
log-probabilities are from training's. All samples count, as many as there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.records import Rollout

Array = npt.NDArray[Any]

#: Requests of one told batch whose times are kept; of more of them every k-th is, in the order of their ends.
TIMES_KEPT: Final = 4096

#: A log ratio is cut here before it is exponentiated, and these are the bounds of the ratio whose tails are counted:
#: those of probe/analysis/mismatch/measures.py.
LARGEST_LOG_RATIO: Final = 20.0
BELOW, ABOVE = 0.5, 2.0

#: What is told of the mismatch of a step: see probe/analysis/mismatch/measures.py, which has the same names.
MEASURES: Final = ("k1", "k3", "effective_ratio", "below_ratio", "above_ratio")

#: Stands for a time that wasn't recorded.
UNTOLD: Final = -1


class Times(NamedTuple):
    """When samples were asked for and ended.

    Attributes:
        begin_ns: Monotonic, int64 (n,), :data:`UNTOLD` where it isn't known.
        end_ns: Likewise.
        together: Whether both are the whole batch's, and no sample's own.
    """

    begin_ns: Array
    end_ns: Array
    together: bool = False

    @property
    def known(self) -> Array:
        """Of which samples both are known, bool (n,)."""
        return np.asarray((self.begin_ns > UNTOLD) & (self.end_ns >= self.begin_ns))

    def own(self, at: Array) -> dict[str, list[int | None]]:
        """``begin_ns`` and ``end_ns`` of some samples, None where they aren't known; nothing where both are the whole
        batch's.

        Args:
            at: Which samples, int64 (k,).
        """
        if self.together:
            return {}
        known = self.known[at].tolist()
        told = {"begin_ns": self.begin_ns[at].tolist(), "end_ns": self.end_ns[at].tolist()}
        return {
            name: [one if held else None for one, held in zip(values, known, strict=True)]
            for name, values in told.items()
        }


class Answers(NamedTuple):
    """What is known of the samples of a batch; None is not recorded.

    Attributes:
        replicas: The name of each one's engine.
        times: When they were sampled.
        weight_versions: Float (n,), NaN where it isn't known.
        trainer_version: Of the trainer.
        row_of: Of each compared token its sample, int64 (tokens,).
        log_ratio: Of each compared token, float64 (tokens,), finite.
        tokens: Response tokens of each, int64 (n,).
        rewards: Of each, float64 (n,).
    """

    replicas: Sequence[str] | None = None
    times: Times | None = None
    weight_versions: Array | None = None
    trainer_version: int | None = None
    row_of: Array | None = None
    log_ratio: Array | None = None
    tokens: Array | None = None
    rewards: Array | None = None

    @property
    def right(self) -> Array | None:
        """Which have the larger reward, bool (n,), where there are two; else None."""
        if self.rewards is None:
            return None
        kinds = np.unique(self.rewards)  # of which all NaN are one
        return np.asarray(self.rewards == kinds[1]) if len(kinds) == 2 and np.isfinite(kinds).all() else None


def times_of(begin_ns: Any, end_ns: Any, count: int) -> Times | None:
    """What was told of times: one each, or one for all.

    Args:
        begin_ns: Whole numbers, or one; None is not recorded.
        end_ns: Likewise.
        count: How many samples there are.

    Returns:
        None where it wasn't recorded, or the numbers are on a device.

    >>> times_of([5, None], [9, 9], 2).known.tolist(), times_of(5, 9, 2).together
    ([True, False], True)
    """
    if begin_ns is None or end_ns is None:
        return None
    devices = [getattr(getattr(one, "device", None), "type", "cpu") for one in (begin_ns, end_ns)]
    if devices != ["cpu", "cpu"]:  # reading them would wait for the device
        return None
    together = not hasattr(begin_ns, "__len__")
    if together:
        begin_ns, end_ns = [begin_ns] * count, [end_ns] * count
    return Times(_wholes(begin_ns), _wholes(end_ns), together)


def _wholes(values: Any) -> Array:
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        return values.astype(np.int64)
    listed = values.tolist() if hasattr(values, "tolist") else values
    return np.array([UNTOLD if one is None or one != one else int(one) for one in listed], np.int64)  # noqa: PLR0124  (NaN, of whatever type)


def rollouts(answers: Answers, count: int, batch_id: int, source: str) -> Iterator[Rollout]:
    """A row for each replica; none where neither times, versions nor log-probabilities were told.

    Args:
        answers: What is known of them.
        count: How many there are.
        batch_id: Of their batch.
        source: Who told.

    Yields:
        The rows, in the order of the replicas' names. Their samples sum to ``count``.
    """
    known_at_all = (answers.times, answers.weight_versions, answers.log_ratio)
    if all(one is None for one in known_at_all) or not count:
        return
    replicas = [""] * count if answers.replicas is None else list(map(str, answers.replicas))
    places = {name: place for place, name in enumerate(sorted(set(replicas)))}
    of = np.array(list(map(places.__getitem__, replicas)), np.int64)
    known = 0 if answers.times is None or answers.times.together else int(answers.times.known.sum())
    every = -(-known // TIMES_KEPT)
    for name, place in places.items():
        held = of == place
        row = Rollout(batch_id=batch_id, source=source, replica=name, samples=int(np.count_nonzero(held)))
        row.trainer_version = answers.trainer_version
        if answers.times is not None:
            _time(row, answers, answers.times, held, every)
        if answers.weight_versions is not None:
            _count_versions(row, answers.weight_versions[held])
        if answers.log_ratio is not None and answers.row_of is not None:
            _measure(row, answers.log_ratio if len(places) == 1 else answers.log_ratio[held[answers.row_of]])
        yield row


def _time(row: Rollout, answers: Answers, times: Times, held: Array, every: int) -> None:
    held = held & times.known
    begin, end = times.begin_ns[held], times.end_ns[held]
    if not len(begin):
        return
    row.together, row.begin_ns, row.end_ns = times.together, int(begin.min()), int(end.max())
    if times.together:
        return
    row.timed = len(begin)
    took = np.sort(end - begin)
    row.median_ns, row.ninth_decile_ns = int(took[rank(len(took), 5) - 1]), int(took[rank(len(took), 9) - 1])
    row.longest_ns = int(took[-1])
    order = np.lexsort((begin, end))[::-1][::every][::-1]
    row.requests_begin_ns = (begin[order] - row.begin_ns).tolist()
    row.requests_end_ns = (end[order] - row.begin_ns).tolist()
    if answers.tokens is not None:
        row.requests_tokens = answers.tokens[held][order].tolist()
    right = answers.right
    if right is not None:
        row.requests_right = right[held][order].astype(int).tolist()


def rank(count: int, tenths: int) -> int:
    """Which of so many values, from 1 and in rising order, is the smallest that so many tenths of them don't exceed.

    >>> rank(10, 9), rank(11, 9), rank(1, 5)
    (9, 10, 1)
    """
    return -(-tenths * count // 10)


def _count_versions(row: Rollout, versions: Array) -> None:
    found, counted = np.unique(versions[np.isfinite(versions)].astype(np.int64), return_counts=True)
    row.weight_versions, row.version_samples = found.tolist(), counted.tolist()


def _measure(row: Rollout, log_ratio: Array) -> None:
    cut = np.clip(log_ratio, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    ratio = np.exp(cut)
    row.compared_tokens = len(log_ratio)
    row.minus_log_ratio_sum = -float(log_ratio.sum())
    row.k3_sum = float((np.expm1(cut) - log_ratio).sum())
    row.ratio_sum, row.ratio_squares_sum = float(ratio.sum()), float((ratio**2).sum())
    row.below_tokens, row.above_tokens = int(np.count_nonzero(ratio < BELOW)), int(np.count_nonzero(ratio > ABOVE))


def mismatch(rows: Sequence[Rollout]) -> dict[str, float]:
    """The measures of all tokens that some rows compared, by the names of :data:`MEASURES`; without any, nothing.

    Args:
        rows: Of one process and step.
    """
    tokens = sum(row.compared_tokens or 0 for row in rows)
    if not tokens:
        return {}
    squares = sum(row.ratio_squares_sum for row in rows)
    return {
        "k1": sum(row.minus_log_ratio_sum for row in rows) / tokens,
        "k3": sum(row.k3_sum for row in rows) / tokens,
        "effective_ratio": sum(row.ratio_sum for row in rows) ** 2 / (tokens * squares),
        "below_ratio": sum(row.below_tokens for row in rows) / tokens,
        "above_ratio": sum(row.above_tokens for row in rows) / tokens,
    }
