"""The batches of a step as they were cut: one call of each rank, the calls of one time, and all of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from probe.core.balancing.replay import Cut, Parts
from probe.errors import InputError


@dataclass(frozen=True)
class RankCall:
    """One batch that one rank cut into micro-batches.

    Attributes:
        process: That cut it.
        rank: Its rank; None where it has none.
        packer: By whose rule, "" where there is none to name.
        arguments: That the packer was given.
        lengths: Tokens of each row, in the order of the batch where ``ordered``.
        parts: Rows of each micro-batch.
        widths: Padded width of each micro-batch; None for a jagged one.
        cap_tokens: Most tokens of a micro-batch; None where there is no cap.
        ordered: Whether each row's place in the batch is known.
    """

    process: str
    rank: int | None
    packer: str
    arguments: dict[str, Any]
    lengths: list[int]
    parts: Parts
    widths: list[int | None]
    cap_tokens: int | None
    ordered: bool

    def cut(self) -> Cut:
        """What its packer was given.

        Raises:
            UnknownNameError: There is no rule for its packer.
            InputError: Its rows aren't known.
        """
        if self.packer and not self.ordered:
            raise InputError(
                "lengths: the run didn't record the order of the batch's rows, so the batch can't be cut again"
            )
        arguments = {"max_token_len": self.cap_tokens} | self.arguments
        return Cut.of_micro_batches(self.packer, arguments, self.lengths, len(self.parts))


@dataclass(frozen=True)
class Round:
    """What the ranks cut at the same time, one call each.

    Attributes:
        number: Of the calls of the step, role and phase, from 1.
        calls: One for each rank.
    """

    number: int
    calls: tuple[RankCall, ...]

    @property
    def data_ranks(self) -> tuple[RankCall, ...]:
        """One call of each data-parallel rank: ranks of sequence parallelism have the same rows."""
        told = self.calls[0].arguments
        size, parallel = told.get("dp_size"), int(told.get("sp_size") or 1)
        if parallel > 1 and len(self.calls) % parallel == 0 and (size in (None, 1, len(self.calls) // parallel)):
            return self.calls[::parallel]
        return self.calls

    def missing_ranks(self) -> int:
        """How many ranks agreed on the number of parts and have told of no call here."""
        expected = int(self.calls[0].arguments.get("dp_size") or 0)
        return max(0, expected - len(self.calls))


@dataclass(frozen=True)
class StepBatch:
    """What was cut in one step, for one role and phase.

    Attributes:
        step: Its number; None outside of steps.
        role: Of the model.
        phase: Of the step.
        rounds: In their order: mini-batches, and epochs over them.
        dealt: Lengths of the rows that were dealt to the ranks in this step, in the order in which they came; None
            where it wasn't recorded.
        undealt: Where one rule deals rows and cuts micro-batches, as NeMo-RL's do: of each round the lengths of all
            ranks' rows, in the order in which they came. None elsewhere.
    """

    step: int | None
    role: str | None
    phase: str | None
    rounds: tuple[Round, ...]
    dealt: tuple[int, ...] | None
    undealt: tuple[tuple[int, ...], ...] | None = None
