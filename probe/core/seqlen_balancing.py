"""A batch into micro-batches of balanced size that never exceed a token cap, the same number of them on every rank.

The arithmetic is in ``probe.core.balancing.partition``; here it meets batches, ranks and hooks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed
from tensordict import TensorDict, TensorDictBase

from probe.core.balancing.capped import Balance, Options, Units, filled_parts, fitting_parts
from probe.core.balancing.partition import (
    Array,
    Lengths,
    as_weights,
    calculate_workload,
    ceildiv,
    get_group_balanced_partitions,
    greedy_partition,
    karmarkar_karp,
    roundup_divisible,
)
from probe.core.columns.jagged import is_jagged
from probe.core.columns.row_selection import RowSelector, host_lengths, select_jagged, sequence_lengths
from probe.core.protocol import DataProto
from probe.errors import InputError, InputTypeError, PeerError, ShapeError
from probe.guard import attempt
from probe.hooks import emit, observed, scope
from probe.moments import PARTITION, Content

__all__ = [
    "PARTITION",
    "MicroBatches",
    "calculate_workload",
    "ceildiv",
    "get_group_balanced_partitions",
    "get_reverse_idx",
    "get_seqlen_balanced_partitions",
    "greedy_partition",
    "karmarkar_karp",
    "log_seqlen_unbalance",
    "micro_batches",
    "prepare_dynamic_batch",
    "rearrange_micro_batches",
    "restore_dynamic_batch",
    "roundup_divisible",
]

Index = TypeVar("Index", bound="Sequence[int] | Array | torch.Tensor")


def get_reverse_idx(idx_map: Index) -> Index:
    """The inverse of a permutation: ``result[idx_map[i]] == i``.

    Args:
        idx_map: Each of 0 … n−1 once; a list, tuple, array or tensor. The result is of the same kind.

    Raises:
        InputError: A number is missing, repeated or out of range.

    >>> get_reverse_idx([2, 0, 1])
    [1, 2, 0]
    """
    given = idx_map.tolist() if isinstance(idx_map, torch.Tensor | np.ndarray) else list(idx_map)
    inverse: list[int] = [-1] * len(given)
    for place, index in enumerate(given):
        if not 0 <= index < len(given) or inverse[index] >= 0:
            raise InputError(f"idx_map: got {index} at {place}, expected each of 0 … {len(given) - 1} once")
        inverse[index] = place
    if isinstance(idx_map, torch.Tensor):
        return cast("Index", torch.tensor(inverse, dtype=idx_map.dtype, device=idx_map.device))
    if isinstance(idx_map, np.ndarray):
        return cast("Index", np.array(inverse, dtype=idx_map.dtype))
    return cast("Index", tuple(inverse) if isinstance(idx_map, tuple) else inverse)


@observed("seqlen_balancing.get_seqlen_balanced_partitions", "lengths are cut into balanced parts")
def get_seqlen_balanced_partitions(seqlen_list: Lengths, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Indices of ``seqlen_list`` in ``k_partitions`` parts of nearly equal sum, ascending inside each part.

    Args:
        seqlen_list: One number for each row.
        k_partitions: Number of parts.
        equal_size: Whether every part has the same number of rows.

    Raises:
        InputError: There are fewer rows than parts, or with ``equal_size`` the rows can't be shared equally.

    >>> get_seqlen_balanced_partitions([9, 1, 5, 5], 2, equal_size=True)
    [[0, 1], [2, 3]]
    """
    return [sorted(part) for part in karmarkar_karp(seqlen_list, k_partitions, equal_size)]


@observed("seqlen_balancing.log_seqlen_unbalance", "sums of lengths before and after balancing become metrics")
def log_seqlen_unbalance(seqlen_list: Lengths, partitions: Sequence[Sequence[int]], prefix: str) -> dict[str, float]:
    """How uneven the parts were and are: sums of lengths before (neighbours together) and after balancing.

    Args:
        seqlen_list: Length of each row.
        partitions: Rows of each part.
        prefix: What the keys of the result begin with.

    Returns:
        ``{prefix}/min``, ``max`` and ``minmax_diff`` of the sums of neighbours, in blocks of as many rows as k parts of
        n rows have at least, n // k: as in verl there are more than k blocks, the last one perhaps shorter, where k
        doesn't divide n. ``balanced_min``, ``balanced_max`` of the given parts, and ``mean``, the sum of all over k.

    Raises:
        InputError: There are no partitions.

    >>> log_seqlen_unbalance([4, 4, 1, 1], [[0, 2], [1, 3]], "global_seqlen")["global_seqlen/minmax_diff"]
    6
    """
    weights = as_weights(seqlen_list, "seqlen_list")
    if not len(partitions):
        raise InputError("partitions: got none, expected at least one")
    k = len(partitions)
    each = max(1, len(weights) // k)
    before = [weights[start : start + each].sum().item() for start in range(0, len(weights), each)]
    before += [0] * (k - len(before))  # fewer rows than parts
    after = [weights[list(part)].sum().item() for part in partitions]
    return {
        f"{prefix}/min": min(before),
        f"{prefix}/max": max(before),
        f"{prefix}/minmax_diff": max(before) - min(before),
        f"{prefix}/balanced_min": min(after),
        f"{prefix}/balanced_max": max(after),
        f"{prefix}/mean": weights.sum().item() / k,
    }


def _options(max_token_len: int, dp_group: Any, others: dict[str, Any]) -> Options:
    known = [field.name for field in fields(Options)]
    for name in others:
        if name not in known:
            raise InputTypeError(f"unexpected argument {name!r}, expected one of {', '.join(known)}")
    return Options(max_token_len, dp_group, **others)


@observed(
    "seqlen_balancing.rearrange_micro_batches",
    "a TensorDict is cut into micro-batches; result (micro-batches, indices)",
)
def rearrange_micro_batches(
    batch: TensorDictBase,
    max_token_len: int,
    dp_group: Any = None,
    num_batches_divided_by: int | None = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: int | None = None,
    *,
    balance: Balance = "workload",
    strict: bool = True,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
    packed: bool = False,
) -> tuple[list[TensorDict], list[list[int]]]:
    """Cut a batch into balanced micro-batches of at most ``max_token_len`` tokens.

    Args:
        batch: B rows with ``attention_mask`` (B, S), non-zero where a token is valid, or jagged ``input_ids``. Padding
            doesn't count: S may be above the cap.
        max_token_len: Most tokens of a micro-batch.
        dp_group: Ranks that must make the same number of micro-batches; they agree by one all-reduce of two integers.
            With None there is no communication, whether or not ``torch.distributed`` is initialised, so that every rank
            may come to a number of its own.
        num_batches_divided_by: The number of micro-batches is rounded up to a multiple of it (virtual pipeline stages).
        same_micro_num_in_dp: With False the ranks of ``dp_group`` needn't agree and don't communicate.
        min_num_micro_batch: Make at least so many micro-batches.
        balance: What is balanced under the cap on tokens: ``"workload"`` (:func:`calculate_workload`, in which long
            sequences weigh more than their tokens), as verl does, or ``"tokens"``.
        strict: Whether as many micro-batches are made as the cap needs. False is the old, loose behaviour:
            ``ceil(tokens / cap)`` of them, of which some may exceed the cap.
        use_dynamic_bsz_balance: Whether the largest micro-batch comes first, so that memory shows its peak at once;
            with False they are in the order of their first rows.
        force_group_size: So many neighbouring rows stay together.
        packed: Whether the model takes the padding out of a micro-batch before it computes. Nothing is cut otherwise:
            it is for those who observe, since such padding takes memory and no work.

    Returns:
        The micro-batches, copies of the rows of ``batch``, and for each the rows that it holds, ascending. Where more
        are asked for than there are rows, the last ones are empty (0 rows).

    Raises:
        CapacityError: With ``strict``, a row (or group) has more tokens than the cap; the message names the row.
        MissingKeyError: The batch has neither of the columns that tell lengths.
        InputError: Arguments can't be used or don't fit each other.
        ShapeError: The columns have other shapes than expected.
        PeerError: Another rank of ``dp_group`` failed; every rank raises with the same message.

    >>> batch = TensorDict({"attention_mask": torch.tensor([[1, 1], [1, 0], [1, 0]])}, batch_size=[3])
    >>> parts, rows = rearrange_micro_batches(batch, max_token_len=2)
    >>> rows, [tuple(part["attention_mask"].shape) for part in parts]
    ([[0], [1, 2]], [(1, 2), (2, 2)])
    """
    options = Options(
        max_token_len,
        dp_group,
        num_batches_divided_by,
        same_micro_num_in_dp,
        min_num_micro_batch,
        balance,
        strict,
        use_dynamic_bsz_balance,
        force_group_size,
        packed,
    )
    partitions, _ = _partition(batch, options, "rearrange_micro_batches")
    selector = RowSelector(batch)
    return [selector.select(rows) for rows in partitions], partitions


@observed("seqlen_balancing.prepare_dynamic_batch", "a DataProto is cut into micro-batches; result (list, indices)")
def prepare_dynamic_batch(
    data: DataProto, max_token_len: int, dp_group: Any = None, **options: Any
) -> tuple[list[DataProto], list[list[int]]]:
    """:func:`rearrange_micro_batches` for a DataProto: non-tensors go with their rows, each part has its own meta_info.

    Args:
        data: A batch with ``attention_mask`` or jagged ``input_ids``.
        max_token_len: Most tokens of a micro-batch.
        dp_group: Ranks that must make the same number of micro-batches, see :func:`rearrange_micro_batches`.
        **options: The other arguments of :func:`rearrange_micro_batches`.
    """
    partitions, _ = _partition(_tensors(data), _options(max_token_len, dp_group, options), "prepare_dynamic_batch")
    selector = RowSelector(_tensors(data))
    return [_part(data, selector, rows) for rows in partitions], partitions


@observed("seqlen_balancing.restore_dynamic_batch", "outputs of micro-batches return to the order of the batch")
def restore_dynamic_batch(data: torch.Tensor, batch_idx_list: Sequence[Sequence[int]]) -> torch.Tensor:
    """Rows of concatenated micro-batch outputs, back in the order of the batch.

    Args:
        data: A tensor (B, …) or a jagged one, rows in the order of the micro-batches.
        batch_idx_list: Numbers of the rows of each micro-batch.

    Raises:
        ShapeError: ``data`` has another number of rows.
        InputError: The indices aren't a permutation.

    >>> restore_dynamic_batch(torch.tensor([30, 10, 20]), [[2], [0, 1]]).tolist()
    [10, 20, 30]
    """
    order = get_reverse_idx([row for rows in batch_idx_list for row in rows])
    if data.shape[0] != len(order):
        raise ShapeError(f"data: got {data.shape[0]} rows, expected {len(order)} as in batch_idx_list")
    index = torch.tensor(order, dtype=torch.long, device=data.device)
    if not is_jagged(data):
        return data.index_select(0, index)
    lengths = host_lengths(data)
    return select_jagged(data, index, [lengths[row] for row in order])


class MicroBatches:
    """What :func:`micro_batches` returns: iterate over it; ``len()`` tells how many, ``indices`` their rows.

    Args:
        batch: The batch that is cut.
        options: The arguments of :func:`micro_batches`, checked.
    """

    def __init__(self, batch: DataProto | TensorDictBase | Mapping[str, Any], options: Options) -> None:
        self._data = batch if isinstance(batch, DataProto) else None
        self._columns: Mapping[str, Any] | None = None
        if isinstance(batch, TensorDictBase):
            tensors = batch
        elif isinstance(batch, Mapping):
            tensors, self._columns = _columns_of(batch)
        else:
            tensors = _tensors(batch)
        self.indices, lengths = _partition(tensors, options, "micro_batches")
        self._lengths = lengths
        self._tokens = [sum(lengths[row] for row in rows) for rows in self.indices]
        self._selector = RowSelector(tensors)

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Any]:
        # Each is copied out when its turn comes, inside its scope: its memory is its own, and freed before the next.
        for index, rows in enumerate(self.indices):
            tokens = self._tokens[index]
            with scope("micro_batch", str(index), micro_batch=index, tokens=tokens, sequences=len(rows)) as opened:
                try:
                    yield self._told(opened, rows)
                except GeneratorExit:  # the loop was left early, by a break or by an exception in its body
                    opened.abandon()
                    return

    def _told(self, opened: scope, rows: list[int]) -> Any:
        part = self._cut(rows)
        opened.values["content"] = Content(part, [self._lengths[row] for row in rows])
        return part

    def _cut(self, rows: list[int]) -> Any:
        """The micro-batch of ``rows``, of the class of the batch."""
        if self._data is not None:
            return _part(self._data, self._selector, rows)
        tensors = self._selector.select(rows)
        if self._columns is None:
            return tensors
        names = tensors.keys()  # a TensorDict itself refuses `in`
        return {
            key: tensors.get(key) if key in names else _rows_of(value, rows) for key, value in self._columns.items()
        }


@observed("seqlen_balancing.micro_batches", "a batch is about to be iterated over in micro-batches")
def micro_batches(
    batch: DataProto | TensorDictBase | Mapping[str, Any], max_token_len: int, dp_group: Any = None, **options: Any
) -> MicroBatches:
    """Iterate over balanced micro-batches, each in a scope of its own while the loop's body runs.

    A micro-batch so has its own peak memory and its own time. ``for part in micro_batches(batch, max_token_len=8192)``.

    Args:
        batch: A DataProto, a TensorDict, or a dict; the parts are of the same class. Of a dict, such as a collate
            function gives, tensors, arrays and lists are columns with an entry for each row; anything else, such as a
            number, goes into each part as it is. Lengths come from ``attention_mask`` (B, S) or jagged ``input_ids``.
        max_token_len: Most tokens of a micro-batch.
        dp_group: Ranks that must make the same number of micro-batches, see :func:`rearrange_micro_batches`.
        **options: The other arguments of :func:`rearrange_micro_batches`, which also says what is raised.

    >>> batch = {"attention_mask": torch.tensor([[1, 1], [1, 0]]), "uid": ["a", "b"]}
    >>> [part["uid"] for part in micro_batches(batch, max_token_len=2)]
    [['a'], ['b']]
    """
    return MicroBatches(batch, _options(max_token_len, dp_group, options))


# ------------------------------------------------------------------------------------------------------ how it is done


def _partition(batch: TensorDictBase, options: Options, source: str) -> tuple[list[list[int]], list[int]]:
    """Rows of each micro-batch, and the length of each row; tells :data:`PARTITION`."""
    units, fitting, failure = attempt(lambda: _own_parts(batch, options), _no_parts)  # the other ranks wait to be told
    count = _agreed(max(len(fitting), options.min_num_micro_batch or 0), failure, options)
    if units is None:  # _agreed has raised; this is for the type checker
        raise InputError("batch: no lengths")
    partitions = filled_parts(units, fitting, count, options)
    if PARTITION.listeners:
        emit(
            PARTITION,
            lengths=units.lengths,
            partitions=partitions,
            cap_tokens=options.max_token_len,
            width_tokens=units.width,
            packed=options.packed,
            batch=batch,
            workload=units.workload,
            strict=options.strict,
            source=source,
            packer="probe",
            arguments=options.told(),
        )
    return partitions, units.lengths


def _own_parts(batch: TensorDictBase, options: Options) -> tuple[Units, list[list[int]], None]:
    options.check()
    if not isinstance(batch, TensorDictBase):
        raise InputTypeError(f"batch: got {type(batch).__name__}, expected a TensorDict")
    units = Units.of(*sequence_lengths(batch), options)
    return units, fitting_parts(units, options), None


def _no_parts(failure: Exception) -> tuple[None, list[list[int]], Exception]:
    return None, [], failure


def _agreed(count: int, failure: Exception | None, options: Options) -> int:
    """The number of micro-batches of every rank; raises on every rank when one has failed."""
    group = options.dp_group if options.same_micro_num_in_dp else None
    if group is None:
        if failure is not None:
            raise failure
    else:
        told = torch.tensor([count, failure is not None], dtype=torch.int64, device=_meeting_device(group))
        torch.distributed.all_reduce(told, op=torch.distributed.ReduceOp.MAX, group=group)
        count, failed = told.tolist()
        if failed:
            _fail_together(failure, group)
    divisor = options.num_batches_divided_by or 1
    return roundup_divisible(count, divisor)


def _meeting_device(group: Any) -> str:
    """A device whose tensors the group can reduce; the CPU where it can, because the result is read there."""
    backends = str(torch.distributed.get_backend_config(group))  # such as "cpu:gloo,cuda:nccl"
    devices = [pair.partition(":")[0] for pair in backends.split(",")]
    return "cpu" if "cpu" in devices else devices[0]


def _fail_together(failure: Exception | None, group: Any) -> None:
    messages: list[str | None] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(messages, None if failure is None else str(failure), group=group)
    text = "; ".join(
        f"rank {rank} of the group: {message}" for rank, message in enumerate(messages) if message is not None
    )
    if failure is None:
        raise PeerError(text)
    kind = type(failure)
    raise attempt(lambda: kind(text), lambda _: PeerError(text)) from failure  # a constructor may want more than that


def _tensors(data: DataProto) -> TensorDictBase:
    if not isinstance(data, DataProto):
        raise InputTypeError(f"batch: got {type(data).__name__}, expected a DataProto, a TensorDict or a dict")
    if data.batch is None:
        raise InputError("batch: the DataProto has no tensors, expected an attention_mask or jagged input_ids")
    return data.batch


def _columns_of(batch: Mapping[str, Any]) -> tuple[TensorDictBase, Mapping[str, Any]]:
    """The tensors of a dict as a TensorDict, and the dict itself, checked: each column has an entry for each row."""
    tensors = {key: one for key, one in batch.items() if isinstance(one, torch.Tensor) and one.ndim}
    if not tensors:
        raise InputError(f"batch: got a dict with {sorted(map(str, batch))}, expected tensors such as attention_mask")
    count = len(tensors.get("attention_mask", next(iter(tensors.values()))))
    for key, one in batch.items():
        is_column = key in tensors or isinstance(one, list | tuple) or (isinstance(one, np.ndarray) and one.ndim)
        if is_column and len(one) != count:
            raise ShapeError(f"batch[{key!r}]: got {len(one)} rows, expected {count} as in the other columns")
    return TensorDict(tensors, batch_size=[count]), dict(batch)


def _rows_of(value: Any, rows: list[int]) -> Any:
    """Entries of a column that isn't a tensor; anything else as it is."""
    if isinstance(value, list | tuple):
        chosen = [value[row] for row in rows]
        return tuple(chosen) if isinstance(value, tuple) else chosen
    return value[rows] if isinstance(value, np.ndarray) and value.ndim else value


def _part(data: DataProto, selector: RowSelector, rows: list[int]) -> DataProto:
    others = {key: value[rows] for key, value in data.non_tensor_batch.items()}
    return type(data)(batch=selector.select(rows), non_tensor_batch=others, meta_info=dict(data.meta_info))
