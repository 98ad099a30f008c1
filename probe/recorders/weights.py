"""What the values of a metric stand for: the tokens and the sequences of the micro-batch that they were collected in.

A list of plain numbers can't carry weights, so they are kept beside it, by the list itself, from the
``append_to_dict`` that fills it until the ``reduce_metrics`` that empties it. A list that anything else has changed in
between has none: no weight is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from probe.core.metric import Metric, exact_sum
from probe.hooks import Scope

_PLAIN: Final = frozenset({float, int, bool})

#: Lists that are followed at once; the oldest goes first.
_MOST: Final = 1024


class Weights(NamedTuple):
    """What each value stands for; None where that isn't known of every one."""

    tokens: Sequence[float] | None
    sequences: Sequence[float] | None


class _Held:
    """A list or a Metric, and what its values stand for."""

    __slots__ = ("count", "into", "sequences", "tokens")

    def __init__(self, into: list[Any] | Metric) -> None:
        self.into = into  # alive, so that no other one has its identity; nothing but numbers is in it
        self.count = 0
        self.tokens: list[float] | None = []
        self.sequences: list[float] | None = []

    def add(self, count: int, weights: Weights) -> None:
        self.count += count
        self.tokens = _joined(self.tokens, weights.tokens)
        self.sequences = _joined(self.sequences, weights.sequences)

    def add_one(self, tokens: float, sequences: float) -> None:
        """A value of a whole micro-batch, as nearly all are."""
        self.count += 1
        if self.tokens is not None:
            self.tokens.append(tokens)
        if self.sequences is not None:
            self.sequences.append(sequences)


class Collected:
    """Weights of values that wait to be reduced."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._step: int | None = None

    def add(self, data: Mapping[str, Any], new_data: Mapping[str, Any], prefix: str, scope: Scope) -> None:
        """``append_to_dict`` has added to ``data`` what stands in ``new_data``.

        Args:
            data: What it has filled.
            new_data: What it was given.
            prefix: As it was given.
            scope: That it was called in.
        """
        if scope.step != self._step:
            self._step = scope.step
            self._held.clear()
        around = _micro_batch(scope)
        if around is None and not self._held:
            return
        tokens, sequences = (0.0, 0.0) if around is None else (float(around["tokens"]), float(around["sequences"]))
        for name, value in new_data.items():
            into = data.get(name if not prefix or name.startswith(prefix) else prefix + name)
            if type(value) is float and around is not None and type(into) is list:
                held = self._held.get(id(into))
                if held is not None and held.into is into and held.count + 1 == len(into):
                    held.add_one(tokens, sequences)
                    continue
            if isinstance(into, list | Metric):
                self._add(into, value, around)

    def knows(self, scope: Scope) -> bool:
        """Whether anything may be known of values that are about to be reduced in ``scope``."""
        return bool(self._held) or scope.micro_batch is not None

    def of(self, values: Any, scope: Scope) -> Weights | None:
        """What the values stand for that are about to be reduced in ``scope``; None where nothing is known."""
        held = self._held.get(id(values))
        if held is not None and held.into is values and held.count == _count(values):
            return Weights(_copied(held.tokens), _copied(held.sequences))
        around = _micro_batch(scope)
        return None if around is None or held is not None else _shared(_count(values), around)

    def _add(self, into: list[Any] | Metric, value: Any, around: Mapping[str, Any] | None) -> None:
        held, added = self._held.get(id(into)), _count(value)
        known = held is not None and held.into is into
        before = held.count if known and held is not None else 0
        weights = self._weights(value, added, around)
        if weights is None or before + added != _count(into):
            self._held.pop(id(into), None)
            return
        if held is None or not known:
            held = self._held[id(into)] = _Held(into)
            if len(self._held) > _MOST:
                self._held.pop(next(iter(self._held)))
        held.add(added, weights)

    def _weights(self, value: Any, added: int, around: Mapping[str, Any] | None) -> Weights | None:
        travelling = self._held.get(id(value))
        if travelling is not None and travelling.into is value and travelling.count == added:
            return Weights(travelling.tokens, travelling.sequences)
        values = value if isinstance(value, list) else () if isinstance(value, Metric) else (value,)
        if around is None or not _PLAIN.issuperset(map(type, values)):  # a tensor would be kept alive
            return None
        return _shared(added, around)


def _micro_batch(scope: Scope) -> Mapping[str, Any] | None:
    """What is told of the micro-batch that a scope lies in; None outside of one, or where its tokens aren't told."""
    if scope.micro_batch is None:
        return None
    found = next((one for one in scope.ancestors() if one.kind == "micro_batch"), None)
    values = {} if found is None else found.values
    return values if "tokens" in values and "sequences" in values else None


def _shared(count: int, around: Mapping[str, Any]) -> Weights | None:
    """Of so many values of one micro-batch: one is about all of it, and as many as it has sequences about one each."""
    if count == 1:
        return Weights([float(around["tokens"])], [float(around["sequences"])])
    return Weights(None, [1.0] * count) if count and count == around["sequences"] else None


def _count(values: Any) -> int:
    return values.count if isinstance(values, Metric) else len(values) if isinstance(values, list) else 1


def _joined(some: list[float] | None, more: Sequence[float] | None) -> list[float] | None:
    if some is None or more is None:
        return None
    some += more
    return some


def _copied(weights: Sequence[float] | None) -> list[float] | None:
    return None if weights is None else list(weights)


def mean_by(values: Sequence[float], weights: Sequence[float] | None) -> tuple[float | None, float | None]:
    """The mean of the values that aren't NaN by what they stand for, Σ weight × value ÷ Σ weight.

    Args:
        values: Of a metric.
        weights: One for each, at least 0; None where they aren't known.

    Returns:
        The sum of the weights, and the mean; None and None without weights, or where they sum to 0.

    >>> mean_by([2.0, 4.0, math.nan], [30.0, 10.0, 5.0])
    (40.0, 2.5)
    """
    if weights is None or len(weights) != len(values):
        return None, None
    pairs = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight and value == value]  # noqa: PLR0124  (NaN, without a call for each)
    whole = exact_sum([weight for _, weight in pairs])
    if not whole:
        return None, None
    return whole, exact_sum([value * weight for value, weight in pairs]) / whole


def total_of(values: Sequence[float]) -> float:
    """The sum of the values that aren't NaN."""
    total = exact_sum(values)
    return exact_sum([value for value in values if not math.isnan(value)]) if math.isnan(total) else total
