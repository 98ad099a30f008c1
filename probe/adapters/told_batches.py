"""A batch that a framework has cut, told of micro-batch by micro-batch, and at its end by whose rule it was cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from probe.adapters.lengths import Arrivals, rows_of
from probe.adapters.telling import session
from probe.guard import attempt
from probe.hooks import scope
from probe.moments import Content, tell_cut, tell_micro_batch


class Rule(NamedTuple):
    """By whose rule a batch is cut.

    Attributes:
        packer: Such as ``"trl 1.16.0"``; "" where there is none to name.
        arguments: All that the packer was given, by name; without a packer what is known of how it was cut.
    """

    packer: str
    arguments: dict[str, Any]


#: Of a batch of which nobody knows.
UNKNOWN: Final = Rule("", {})


class ToldBatch:
    """One batch, from its first micro-batch to its last. What is told waits for no device.

    Args:
        arrivals: Of the trainer: what is told keeps its order.
        source: Who cut it.
        rule: Says by whose rule. Where it raises, the batch is told of without one, and an incident says so once.
        count: Its micro-batches; None where that isn't known before.
    """

    def __init__(self, arrivals: Arrivals, source: str, rule: Callable[[], Rule], count: int | None = None) -> None:
        self._arrivals = arrivals
        self._source = source
        self._rule = attempt(rule, self._untold)
        self._count = count
        self._parts: list[list[int]] = []
        self._rows = 0

    def micro_batch(self, index: int, inputs: Any) -> scope:
        """A micro-batch begins. Its rows are told of when they are known.

        Args:
            index: Its number.
            inputs: What the model receives.

        Returns:
            Its scope, to be entered.
        """
        opened = scope("micro_batch", str(index), micro_batch=index)
        content = opened.values["content"] = Content(inputs, None)
        found = rows_of(inputs)
        if found is None:
            return opened
        width, fields = found.width, found.fields  # what is told later keeps no tensor

        def told(lengths: list[int], effective: list[int] | None) -> None:
            content.lengths = lengths
            opened.values.update(tokens=sum(lengths), sequences=len(lengths))
            first, self._rows = self._rows, self._rows + len(lengths)
            self._parts.append(lengths)
            tell_micro_batch(
                index,
                lengths=lengths,
                source=self._source,
                width_tokens=width,
                fields=fields,
                count=self._count,
                indices=range(first, self._rows) if self._rule.packer else None,
                effective=effective,
            )

        self._arrivals.deliver()
        self._arrivals.read(found, told)
        return opened

    def end(self) -> None:
        """All of its micro-batches have been computed. Called in the scope in which they began."""
        self._arrivals.later(_now, self._tell)
        self._arrivals.deliver()

    def _untold(self, error: Exception) -> Rule:
        """A user's loader or sampler was asked, and raised: its batches are told all the same."""
        message = f"it isn't known by whose rule batches are made: {error!r}"
        open_now = session()
        if open_now is not None and self._arrivals.first_time(message):
            open_now.recording.incident("adapter", self._source, message, error)
        return UNKNOWN

    def _tell(self) -> None:
        if self._parts:
            packer, arguments = self._rule
            tell_cut(parts=self._parts, source=self._source, packer=packer, arguments=arguments)


def _now() -> bool:
    return True
