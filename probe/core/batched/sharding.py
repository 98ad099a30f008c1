"""Which rows of a batch go to which rank, and in which micro-batches: plans from lengths alone.

:meth:`probe.core.batched_data_dict.BatchedDataDict.shard_by_batch_size` is carried out from such a plan. A *global
batch* is what one optimizer step sees over all ranks; a *shard* is what one rank gets of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Self

import numpy as np
import torch

from probe._check import whole_number
from probe.core.columns.batch_columns import rows_of
from probe.core.columns.jagged import is_jagged, jagged_lengths
from probe.core.packing import Packer, get_packer, rounded_up
from probe.errors import CapacityError, InputError, InputTypeError, MissingKeyError, ShapeError, UnknownNameError
from probe.hooks import emit, point
from probe.moments import DEALT, tell_dealt

#: Told once for each global batch that is cut into micro-batches of dynamic shapes.
PARTITION = point(
    "batched_data_dict.partition",
    "dynamic batching cut a global batch into micro-batches; carries lengths of its rows, partitions (rows of each "
    "micro-batch, from 0 in the global batch; those of all shards, step after step), cap_tokens, widths (padded width "
    "of each), longest (longest row over all shards of its step), shards (the shard of each), first_row, batch, "
    "width_tokens (of the whole batch, None for jagged rows), source",
)


def inverse_of(indices: Sequence[int] | torch.Tensor, count: int) -> torch.Tensor:
    """The inverse of a permutation of ``count`` rows: int64 on the CPU.

    Raises:
        InputError: Not each of 0 … ``count`` − 1 once.

    >>> inverse_of([2, 0, 1], 3).tolist()
    [1, 2, 0]
    """
    given = np.array(indices.tolist() if isinstance(indices, torch.Tensor) else list(indices))
    if given.size and given.dtype.kind not in "iu":
        raise InputTypeError(f"reordered_indices: got {given.dtype}, expected whole numbers")
    order = np.argsort(given, kind="stable")
    if given.shape != (count,) or not np.array_equal(given[order], np.arange(count)):
        raise InputError(f"reordered_indices: got {given.size} numbers, expected each of 0 … {count - 1} once")
    return torch.from_numpy(order.astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class _Args:
    """What both ways of forming micro-batches are told."""

    max_tokens_per_microbatch: int
    input_key: str
    input_lengths_key: str

    @classmethod
    def from_dict(cls, argument: str, given: Mapping[str, Any]) -> Self:
        """From the caller's dict.

        Raises:
            UnknownNameError: A key that isn't one of the fields.
            MissingKeyError: A field without default is lacking.
        """
        known = {one.name: one for one in fields(cls)}
        for key in given:
            if key not in known:
                raise UnknownNameError.of(argument, key, known)
        for name, one in known.items():
            if name not in given and one.default is MISSING:
                raise MissingKeyError(f"{argument}: lacks {name!r}; it has {', '.join(map(str, given)) or 'nothing'}")
        made = cls(**given)
        whole_number(f"{argument}['max_tokens_per_microbatch']", made.max_tokens_per_microbatch, 1)
        return made


@dataclass(frozen=True, kw_only=True)
class DynamicBatchingArgs(_Args):
    """How dynamic batching forms micro-batches.

    Attributes:
        sequence_length_round: Widths are multiples of it, but never wider than S.
        max_tokens_per_microbatch: Most tokens of a rectangle, padding included.
        input_key: The column of tokens, padded (N, S) or jagged.
        input_lengths_key: The column of its lengths, (N,).
    """

    sequence_length_round: int = 1


@dataclass(frozen=True, kw_only=True)
class SequencePackingArgs(_Args):
    """How sequences are packed into micro-batches.

    Attributes:
        algorithm: See :func:`probe.core.packing.get_packer`.
        sequence_length_pad_multiple: Every sequence takes a multiple of it.
        largest_first: Whether bins with the most tokens come first, so that memory shows its peak at once, and ranks
            get bins of like size at the same time.
        max_tokens_per_microbatch: Capacity of a bin in tokens, after rounding.
        input_key: The column of tokens, padded (N, S) or jagged.
        input_lengths_key: The column of its lengths, (N,).
    """

    algorithm: str = "modified_first_fit_decreasing"
    sequence_length_pad_multiple: int = 1
    largest_first: bool = False


@dataclass
class Shard:
    """What one rank gets.

    Attributes:
        rows: Numbers of its rows in the whole batch.
        sequence_key: The column of tokens that micro-batches were planned for; None where none were, and the rest is
            empty then.
        elem_counts: How many rows there are in each global batch.
        micro_batch_indices: See :class:`probe.core.batched_data_dict.BatchedDataDict`.
        micro_batch_lengths: See :class:`probe.core.batched_data_dict.BatchedDataDict`.
        micro_batch_tokens: See :class:`probe.core.batched_data_dict.BatchedDataDict`.
    """

    rows: list[int] = field(default_factory=list)
    sequence_key: str | None = None
    elem_counts: list[int] = field(default_factory=list)
    micro_batch_indices: list[list[list[int]]] = field(default_factory=list)
    micro_batch_lengths: list[list[int]] = field(default_factory=list)
    micro_batch_tokens: list[list[int]] = field(default_factory=list)

    def add(self, parts: Iterable[tuple[Sequence[int], int, int]]) -> None:
        """One more global batch of micro-batches: rows, padded length and tokens of each."""
        spans: list[list[int]] = []
        lengths: list[int] = []
        tokens: list[int] = []
        count = 0
        for rows, length, inside in parts:
            spans.append([count, count + len(rows)])
            lengths.append(length)
            tokens.append(inside)
            self.rows.extend(rows)
            count += len(rows)
        self.elem_counts.append(count)
        self.micro_batch_indices.append(spans)
        self.micro_batch_lengths.append(lengths)
        self.micro_batch_tokens.append(tokens)


def plan(
    data: Mapping[str, Any],
    shards: int,
    batch_size: int | None,
    allow_uneven_shards: bool,
    dynamic_batching_args: Mapping[str, Any] | None,
    sequence_packing_args: Mapping[str, Any] | None,
) -> list[Shard]:
    """One :class:`Shard` for each rank; see ``BatchedDataDict.shard_by_batch_size``."""
    whole_number("shards", shards, 1)
    if dynamic_batching_args is not None and sequence_packing_args is not None:
        raise InputError("sequence_packing_args: got dynamic_batching_args too, expected only one of the two")
    count = rows_of(data)
    if allow_uneven_shards and batch_size is not None:
        raise InputError(f"batch_size: got {batch_size} with allow_uneven_shards=True, expected None")
    if allow_uneven_shards and dynamic_batching_args is not None:
        raise InputError("allow_uneven_shards: got True with dynamic_batching_args, which need shards of equal size")
    each = _global_batch(count, shards, batch_size, even=not allow_uneven_shards and sequence_packing_args is None)
    if dynamic_batching_args is not None:
        dynamic = DynamicBatchingArgs.from_dict("dynamic_batching_args", dynamic_batching_args)
        return dynamic_shards(data, count, each, shards, dynamic)
    if sequence_packing_args is not None:
        packing = SequencePackingArgs.from_dict("sequence_packing_args", sequence_packing_args)
        return packed_shards(data, count, each, shards, packing)
    return plain_shards(count, each, shards)


def _global_batch(count: int, shards: int, batch_size: int | None, *, even: bool) -> int:
    """Rows of a global batch."""
    if batch_size is None:
        each, argument = count, "shards"
    else:
        whole_number("batch_size", batch_size, 1)
        each, argument = batch_size, "batch_size"
        if count % batch_size:
            raise InputError(f"batch_size: {count} rows can't be cut into global batches of {batch_size}")
    if even and each % shards:
        raise InputError(f"{argument}: a global batch of {each} rows can't be shared equally by {shards} shards")
    return each


def plain_shards(count: int, batch_size: int, shards: int) -> list[Shard]:
    """Of each global batch shard i gets the i-th stretch; the first stretches are one row longer where they differ.

    >>> [shard.rows for shard in plain_shards(5, 5, 2)]
    [[0, 1, 2], [3, 4]]
    """
    made = [Shard() for _ in range(shards)]
    for begin in range(0, count, batch_size or 1):
        each, more = divmod(batch_size, shards)
        start = begin
        for number, shard in enumerate(made):
            stop = start + each + (number < more)
            shard.rows.extend(range(start, stop))
            start = stop
    return made


# ------------------------------------------------------------------------------------------------- lengths of rows


def _lengths(data: Mapping[str, Any], args: _Args) -> tuple[list[int], int | None]:
    """Tokens of each row, and the padded width (None for jagged rows). One copy to the CPU.

    Raises:
        MissingKeyError: Columns that aren't there or don't fit.
        InputTypeError: Columns that aren't there or don't fit.
        ShapeError: Columns that aren't there or don't fit.
        InputError: Columns that aren't there or don't fit.
    """
    for name in ("input_key", "input_lengths_key"):
        key = getattr(args, name)
        if key not in data:
            raise MissingKeyError(f"{name}: no column {key!r}; there are {', '.join(data) or 'none'}")
    tokens, given = data[args.input_key], data[args.input_lengths_key]
    if not isinstance(tokens, torch.Tensor) or tokens.ndim < 2:
        got = f"a tensor of shape {tuple(tokens.shape)}" if isinstance(tokens, torch.Tensor) else type(tokens).__name__
        raise InputTypeError(
            f"input_key: column {args.input_key!r}: got {got}, expected a tensor of 2 dimensions or more"
        )
    lengths = _whole_numbers(args.input_lengths_key, given)
    if is_jagged(tokens):
        widths = jagged_lengths(tokens).tolist()
        width = None
    else:
        width = int(tokens.shape[1])
        widths = [width] * len(lengths)
    for row, (length, most) in enumerate(zip(lengths, widths, strict=True)):
        if not 0 <= length <= most:
            raise InputError(
                f"{args.input_lengths_key!r}: row {row} has length {length}, expected 0 to {most}, the width of "
                f"{args.input_key!r} in that row"
            )
    return lengths, width


def _whole_numbers(key: str, given: Any) -> list[int]:
    if isinstance(given, torch.Tensor):
        given = given.detach().cpu()
    found = np.asarray(given)
    if found.ndim != 1:
        raise ShapeError(f"{key!r}: got shape {found.shape}, expected one length for each row")
    if found.dtype.hasobject:
        found = np.array(found.tolist())
    if found.size and found.dtype.kind not in "iu":
        raise InputTypeError(f"{key!r}: got {found.dtype}, expected whole numbers")
    return [int(length) for length in found.tolist()]


# ------------------------------------------------------------------------------------------------ dynamic batching


def dynamic_shards(
    data: Mapping[str, Any], count: int, batch_size: int, shards: int, args: DynamicBatchingArgs
) -> list[Shard]:
    """Rows of like length together, the same number of micro-batches and of rows in each on every shard.

    The k-th rows of all shards are neighbours by length. A micro-batch takes on further rows while its rectangle,
    as wide as its longest row over all shards (rounded), stays within the cap.
    """
    whole_number("dynamic_batching_args['sequence_length_round']", args.sequence_length_round, 1)
    lengths, width = _lengths(data, args)
    most = max(lengths, default=0) if width is None else width
    _check_widths(lengths, most, width is None, args)
    made = [Shard(sequence_key=args.input_key) for _ in range(shards)]
    for begin in range(0, count, batch_size or 1):
        chunk = lengths[begin : begin + batch_size]
        order = sorted(range(batch_size), key=chunk.__getitem__)
        dealt = [order[shard::shards] for shard in range(shards)]
        longest = [max(chunk[rows[place]] for rows in dealt) for place in range(batch_size // shards)]
        widths = [_width(length, width, args.sequence_length_round) for length in longest]
        steps = _steps(widths, args.max_tokens_per_microbatch)
        for shard, rows in zip(made, dealt, strict=True):
            shard.add(
                ([begin + row for row in rows[start:stop]], most_wide, sum(chunk[row] for row in rows[start:stop]))
                for start, stop, most_wide in steps
            )
        if PARTITION.listeners:
            _tell(data, chunk, dealt, steps, longest, args, width, begin)
    _tell_dealt("dynamic_batching", (lengths, width), made, batch_size, args)
    return made


def _check_widths(lengths: Sequence[int], most: int, jagged: bool, args: DynamicBatchingArgs) -> None:
    cap = args.max_tokens_per_microbatch
    for row, length in enumerate(lengths):
        wide = _width(length, None if jagged else most, args.sequence_length_round)
        if wide > cap:
            raise CapacityError(
                f"max_tokens_per_microbatch: row {row} has {length} tokens, {wide} when rounded to a multiple of "
                f"{args.sequence_length_round}; the cap is {cap}"
            )


def _width(length: int, padded: int | None, multiple: int) -> int:
    wide = rounded_up(length, multiple)
    return wide if padded is None else min(wide, padded)


def _steps(widths: Sequence[int], cap: int) -> list[tuple[int, int, int]]:
    """(start, stop, width) of stretches of rows whose ``rows × widest`` is at most ``cap``."""
    steps: list[tuple[int, int, int]] = []
    start, widest = 0, 0
    for place, width in enumerate(widths):
        if place > start and max(widest, width) * (place + 1 - start) > cap:
            steps.append((start, place, widest))
            start, widest = place, 0
        widest = max(widest, width)
    if start < len(widths):
        steps.append((start, len(widths), widest))
    return steps


def _tell_dealt(
    rule: str, rows: tuple[list[int], int | None], made: Sequence[Shard], batch_size: int, args: _Args
) -> None:
    """By whose rule the rows came to their ranks and micro-batches: it is NeMo-RL's, and both are one plan."""
    if not DEALT.listeners:
        return
    lengths, width = rows
    tell_dealt(
        lengths=lengths,
        partitions=[shard.rows for shard in made],
        source="batched_data_dict.shard_by_batch_size",
        packer=f"nemo_rl.{rule}",
        arguments={"shards": len(made), "batch_size": batch_size, "width_tokens": width, **asdict(args)},
    )


def _tell(
    data: Mapping[str, Any],
    lengths: Sequence[int],
    dealt: Sequence[Sequence[int]],
    steps: Sequence[tuple[int, int, int]],
    longest: Sequence[int],
    args: DynamicBatchingArgs,
    width: int | None,
    begin: int,
) -> None:
    each = [(start, stop, widest, number) for start, stop, widest in steps for number in range(len(dealt))]
    emit(
        PARTITION,
        lengths=list(lengths),
        partitions=[list(dealt[number][start:stop]) for start, stop, _, number in each],
        cap_tokens=int(args.max_tokens_per_microbatch),
        widths=[widest for _, _, widest, _ in each],
        longest=[max(longest[start:stop]) for start, stop, _, _ in each],
        shards=[number for *_, number in each],
        first_row=begin,
        batch=data,
        width_tokens=width,
        source="batched_data_dict.shard_by_batch_size",
    )


# ------------------------------------------------------------------------------------------------ sequence packing


def packed_shards(
    data: Mapping[str, Any], count: int, batch_size: int, shards: int, args: SequencePackingArgs
) -> list[Shard]:
    """Each global batch packed into bins, as many for every shard, dealt in turn."""
    lengths, width = _lengths(data, args)
    packer = get_packer(
        args.algorithm,
        args.max_tokens_per_microbatch,
        min_bin_count=shards,
        bin_count_multiple=shards,
        sequence_length_pad_multiple=args.sequence_length_pad_multiple,
    )
    made = [Shard(sequence_key=args.input_key) for _ in range(shards)]
    for begin in range(0, count, batch_size or 1):
        chunk = lengths[begin : begin + batch_size]
        bins = _packed(packer, chunk, begin, args, {"batch": data, "width_tokens": width, "first_row": begin})
        for number, shard in enumerate(made):
            shard.add(
                ([begin + row for row in one], packer.padded_tokens(chunk, one), sum(chunk[row] for row in one))
                for one in bins[number::shards]
            )
    _tell_dealt("sequence_packing", (lengths, width), made, batch_size, args)
    return made


def _packed(
    packer: Packer, lengths: Sequence[int], begin: int, args: SequencePackingArgs, about: Mapping[str, Any]
) -> list[list[int]]:
    try:
        bins = packer.pack(lengths, source="batched_data_dict.shard_by_batch_size", **about)
    except CapacityError as error:
        if not begin:
            raise
        raise CapacityError(f"in the global batch that begins with row {begin}: {error}") from error
    if args.largest_first:
        bins = sorted(bins, key=lambda one: (-packer.padded_tokens(lengths, one), one[0]))
    return bins
