"""Rows to ranks, and each rank's rows into micro-batches, under other settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from probe.analysis.what_if.batches import RankCall, Round, StepBatch
from probe.analysis.what_if.settings import Deal, Settings
from probe.core.balancing.other_rules import nemo_rl_dynamic
from probe.core.balancing.partition import calculate_workload, karmarkar_karp
from probe.core.balancing.replay import Cut, replay, replay_pieces, replay_ranks
from probe.core.balancing.verl_rule import verl_partition
from probe.errors import InputError, UnknownNameError

#: Lengths of the rows of each micro-batch of each rank.
Made = list[list[list[int]]]

#: Packers that are given the rows of all ranks at once and deal out what they made.
_TOGETHER: Final = ("nemo_rl.", "prime_rl.", "packing.")


class Dealing:
    """Rows dealt to ranks, each way once for all settings that ask for it.

    Args:
        batch: Of one step, role and phase.
    """

    def __init__(self, batch: StepBatch) -> None:
        self.batch = batch
        self._made: dict[Any, list[list[list[int]]]] = {}
        self._rows: tuple[list[int], int] | None = None

    def rounds(self, settings: Settings) -> list[list[list[int]]]:
        """Lengths of the rows of each rank in each round, as ``settings`` deal them.

        Args:
            settings: What is changed.

        Raises:
            InputError: The rows can't be shared so.
        """
        if self.batch.undealt is not None:
            if settings.balance is not None:
                raise InputError(f"balance: got {settings.balance!r}, expected None: NeMo-RL's own rule deals the rows")
            return [_stretches(one, self._ranks(settings)) for one in self.batch.undealt]
        if not settings.deals:
            return [[call.lengths for call in one.data_ranks] for one in self.batch.rounds]
        ranks, how = self._ranks(settings), settings.balance or self._usual()
        theirs = _packer(self.batch).startswith("verl")
        key = (ranks, how, theirs)
        if key not in self._made:
            self._made[key] = self._dealt(ranks, how, theirs)
        return self._made[key]

    def _ranks(self, settings: Settings) -> int:
        first = self.batch.rounds[0]
        now = len(first.data_ranks)
        if settings.dp_size is not None:
            return settings.dp_size
        if settings.sp_size is None:
            return now
        world = now * parallel_of(first)
        if world % settings.sp_size:
            raise InputError(f"sp_size: got {settings.sp_size}, expected a divisor of the {world} ranks")
        return world // settings.sp_size

    def _usual(self) -> Deal:
        """How the run dealt: where a driver told of it, over the whole batch."""
        return "batch" if self.batch.dealt is not None else "none"

    def whole(self) -> tuple[list[int], int]:
        """The rows of a whole batch in the order in which they came, and how many epochs over it the rounds are."""
        if self._rows is None:
            self._rows = self._found()
        return self._rows

    def _found(self) -> tuple[list[int], int]:
        rounds, dealt = self.batch.rounds, self.batch.dealt
        total = sum(len(call.lengths) for one in rounds for call in one.data_ranks)
        if dealt and total % len(dealt) == 0 and len(rounds) % (total // len(dealt)) == 0:
            return list(dealt), total // len(dealt)
        ranks = range(len(rounds[0].data_ranks))
        told = [[one.data_ranks[rank].lengths for one in rounds if rank < len(one.data_ranks)] for rank in ranks]
        return [length for mine in told for lengths in mine for length in lengths], 1

    def _dealt(self, ranks: int, how: Deal, theirs: bool) -> list[list[list[int]]]:
        lengths, epochs = self.whole()
        minis = max(1, len(self.batch.rounds) // epochs)
        if len(lengths) % (ranks * minis):
            raise InputError(
                f"dp_size: {len(lengths)} rows can't be shared equally by {ranks} ranks and {minis} mini-batches"
            )
        each = len(lengths) // (ranks * minis)
        if how == "mini_batch":
            pieces = [lengths[begin : begin + each * ranks] for begin in range(0, len(lengths), each * ranks)]
            made = [_shared(piece, ranks, theirs) for piece in pieces]
        else:
            size = each * minis
            mine = (
                _shared(lengths, ranks, theirs)
                if how == "batch"
                else [lengths[rank * size : (rank + 1) * size] for rank in range(ranks)]
            )
            made = [[one[begin : begin + each] for one in mine] for begin in range(0, size, each)]
        return made * epochs


def _stretches(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Neighbours for each rank, in the order in which they came: for rules that take them all together."""
    return [list(lengths[len(lengths) * at // ranks : len(lengths) * (at + 1) // ranks]) for at in range(ranks)]


def _shared(lengths: list[int], ranks: int, theirs: bool) -> list[list[int]]:
    """As many rows for each rank, as even in work as the rule makes them."""
    work = calculate_workload(lengths)
    parts = verl_partition(work, ranks, True) if theirs else karmarkar_karp(work, ranks, equal_size=True)
    return [[lengths[row] for row in part] for part in parts]


def _packer(batch: StepBatch) -> str:
    return batch.rounds[0].calls[0].packer


def parallel_of(one: Round) -> int:
    """Ranks that share a sequence, as far as the run tells: 1 where it doesn't.

    Args:
        one: A round.
    """
    return int(one.calls[0].arguments.get("sp_size") or 1)


def recorded_cut(call: RankCall) -> Cut | None:
    """What a call's packer was given; None where that isn't known.

    Args:
        call: Of one rank.
    """
    try:
        return call.cut()
    except (UnknownNameError, InputError):
        return None


def cut_ranks(ranks: Sequence[list[int]], cut: Cut, order: str | None = None) -> Made:
    """Micro-batches of each rank.

    Args:
        ranks: Lengths of the rows of each rank.
        cut: The packer and its arguments; its lengths aren't looked at.
        order: See :data:`probe.analysis.what_if.settings.Order`.

    Raises:
        InputError: The packer refuses.
        CapacityError: A row is above the cap.
    """
    if cut.packer.startswith(_TOGETHER):
        made = _together(ranks, cut)
    elif cut.packer.startswith("trl.packed"):
        made = [
            [[tokens for _, tokens in part] for part in replay_pieces(replace(cut, lengths=mine))] for mine in ranks
        ]
    else:
        parts = replay_ranks([replace(cut, lengths=mine) for mine in ranks])
        made = [[[mine[row] for row in part] for part in own] for mine, own in zip(ranks, parts, strict=True)]
    if order in ("largest_first", "smallest_first"):
        for own in made:
            own.sort(key=sum, reverse=order == "largest_first")
    return made


def _together(ranks: Sequence[list[int]], cut: Cut) -> Made:
    count, lengths = len(ranks), [length for mine in ranks for length in mine]
    if cut.packer == "nemo_rl.dynamic_batching":
        cap, width = cut.needed("cap_tokens"), cut.width_tokens
        dealt = nemo_rl_dynamic(lengths, count, cap, round_to=cut.pad_multiple, width_tokens=width)
        return [[[lengths[row] for row in part] for part in parts] for parts, _ in dealt]
    if cut.packer.startswith("packing."):
        bins = replay(replace(cut, lengths=lengths, minimum_count=count, divisor=count))
        return [[[lengths[row] for row in part] for part in bins[rank::count]] for rank in range(count)]
    parts = replay(replace(cut, lengths=lengths))
    each = math.ceil(len(parts) / count)
    parts += [[] for _ in range(each * count - len(parts))]  # dummies, so that all ranks have as many
    own = [parts[rank * each : (rank + 1) * each] for rank in range(count)]
    return [[[lengths[row] for row in part] for part in mine] for mine in own]
