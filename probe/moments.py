"""Points that other code than our own tells: adapters of frameworks, collate functions. Neither torch nor numpy.

A recorder doesn't see who tells. What is said here needs no batch object: lengths, partitions, widths, fields and their
bytes are enough.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from probe.hooks import emit, point

#: Told when a batch has been cut.
PARTITION: Final = point(
    "seqlen_balancing.partition",
    "a batch was cut into micro-batches; carries lengths of all rows, partitions, cap_tokens, width_tokens (None for "
    "jagged rows), widths (of each micro-batch, if they differ), packed (whether the model removes padding), batch, "
    "fields (a TokenField each, without a batch), workload of each row, effective (loss-mask tokens of each), strict, "
    "source, packer (whose rule cut it), arguments (of the packer, by name)",
)

#: Told as a micro-batch begins that other code has cut, in the scope around it.
TOLD: Final = point(
    "micro_batch.told",
    "a micro-batch that other code has cut begins; carries micro_batch, lengths, width_tokens (None without padding), "
    "cap_tokens, batch, fields (a TokenField each, without a batch), count, indices, workload of each row, effective "
    "(loss-mask tokens of each row), source",
)

#: Told when all micro-batches of such a batch have been told of, in the scope in which they began.
CUT: Final = point(
    "micro_batch.cut",
    "other code cut a batch, and its last micro-batch has been computed; carries parts (row lengths of each "
    "micro-batch), source, packer (whose rule cut it; empty if there is none), arguments (of the packer, by name)",
)

#: Told when the rows of a batch have been dealt to the ranks of a group.
DEALT: Final = point(
    "token_balance.dealt",
    "a batch was dealt to ranks; carries lengths of all rows, partitions (rows of each rank), padded_rows "
    "(filler rows), workload of each row, source, packer, arguments",
)

#: Told when a data set has been packed into sequences of a fixed size, before the training.
PACKED_DATA: Final = point(
    "data_set.packed",
    "rows of a data set were packed into sequences, from which micro-batches are made; carries lengths of the rows, "
    "parts_tokens (of each sequence), source, packer, arguments",
)

#: Told when rows or tokens are added that a rectangle of micro-batches doesn't show.
ADDED: Final = point(
    "padding.added",
    "tokens were added to a batch; carries cause (see docs/design/padding_causes.md), tokens (valid), "
    "pad_tokens, rows, fields (TokenField each), source",
)

#: Told about once a second while an engine computes.
ENGINE_LOADED: Final = point(
    "engine.loaded",
    "an engine of this process has computed for about a second, or has nothing left to do; carries step, phase and "
    "role, and the columns of the table engine_load",
)

#: Told when calls that are counted, and not recorded one by one, have ended.
COUNTED: Final = point(
    "calls.counted",
    "calls of a function that runs for every sample have ended; carries their step, phase and role, source, name, "
    "begin_ns of the first, calls, failed, total_ns, smallest_ns, largest_ns, moved_bytes and moved_keys (None if "
    "unknown)",
)


class TokenField(NamedTuple):
    """A column that holds something for each token.

    Attributes:
        name: Its key in the batch.
        bytes_per_token: How much memory a token of it takes.
    """

    name: str
    bytes_per_token: int


def workload_of(lengths: Sequence[int]) -> list[int]:
    """The cost of each sequence: 24576·s + s², as verl weighs a row of s tokens (a transformer of 7 billion weights).

    Args:
        lengths: Tokens of each sequence.

    >>> workload_of([1, 100])
    [24577, 2467600]
    """
    return [24576 * length + length * length for length in lengths]


def tell_partition(
    *,
    lengths: Sequence[int],
    partitions: Sequence[Sequence[int]],
    source: str,
    cap_tokens: int | None = None,
    width_tokens: int | None = None,
    widths: Sequence[int] | None = None,
    packed: bool = False,
    fields: Sequence[TokenField] = (),
    effective: Sequence[int] | None = None,
    packer: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """A batch has been cut into micro-batches.

    Args:
        lengths: Tokens of each row, on the CPU.
        partitions: Rows of each micro-batch, in the order in which they run.
        source: The function that cut it.
        cap_tokens: Most tokens of a micro-batch; None where there is no cap.
        width_tokens: Columns of the batch; None for jagged rows.
        widths: Columns of each micro-batch, where they differ.
        packed: Whether the model takes the padding out, so that none is computed on.
        fields: Columns that hold something for each token.
        effective: Tokens of each row that the loss counts; None where that isn't known.
        packer: By whose rule it was cut, such as ``"verl 0.9.1"``; "" where there is none.
        arguments: All that the packer was given, by name, so that it can be replayed.
    """
    if not PARTITION.listeners:
        return
    emit(
        PARTITION,
        lengths=lengths,
        partitions=partitions,
        cap_tokens=cap_tokens,
        width_tokens=width_tokens,
        widths=widths,
        packed=packed,
        batch=None,
        fields=list(fields),
        workload=workload_of(lengths),
        effective=effective,
        strict=None,
        source=source,
        packer=packer,
        arguments=dict(arguments or {}),
    )


def tell_micro_batch(
    index: int,
    *,
    lengths: Sequence[int],
    source: str,
    width_tokens: int | None = None,
    cap_tokens: int | None = None,
    fields: Sequence[TokenField] = (),
    count: int | None = None,
    indices: Sequence[int] | None = None,
    effective: Sequence[int] | None = None,
) -> None:
    """A micro-batch begins that nobody has told of as a part of a batch.

    Args:
        index: Its number in the batch, from 0.
        lengths: Tokens of each row, on the CPU.
        source: The function that cut it.
        width_tokens: Columns of the rectangle that is computed on; None where there is none.
        cap_tokens: Most tokens that it may have; None where there is no cap.
        fields: Columns that hold something for each token.
        count: Micro-batches of the batch; None where that isn't known.
        indices: Rows of the batch that it holds; None where that isn't known.
        effective: Tokens of each row that the loss counts; None where that isn't known.
    """
    if not TOLD.listeners:
        return
    emit(
        TOLD,
        micro_batch=index,
        lengths=list(lengths),
        width_tokens=width_tokens,
        cap_tokens=cap_tokens,
        batch=None,
        fields=list(fields),
        count=count,
        indices=None if indices is None else list(indices),
        workload=workload_of(lengths),
        effective=None if effective is None else list(effective),
        source=source,
    )


def tell_cut(
    *, parts: Sequence[Sequence[int]], source: str, packer: str = "", arguments: Mapping[str, Any] | None = None
) -> None:
    """All micro-batches of a batch have been told of by :func:`tell_micro_batch`.

    Args:
        parts: Tokens of each row of each of them, in the order in which they ran.
        source: Who cut it, as it was told of them.
        packer: By whose rule; "" where there is none to name.
        arguments: All that the packer was given, by name, so that it can be replayed.
    """
    if CUT.listeners:
        told = [list(part) for part in parts]
        emit(CUT, parts=told, source=source, packer=packer, arguments=dict(arguments or {}))


def tell_packed(
    *, lengths: Sequence[int], parts_tokens: Sequence[int], source: str, packer: str, arguments: Mapping[str, Any]
) -> None:
    """Rows of a data set have been packed into sequences of a fixed size.

    Args:
        lengths: Tokens of each row, on the CPU.
        parts_tokens: Tokens of each sequence, in the order in which they came out.
        source: The function that packed them.
        packer: By whose rule.
        arguments: All that the packer was given, by name, so that it can be replayed.
    """
    if PACKED_DATA.listeners:
        told: dict[str, Any] = {"lengths": list(lengths), "parts_tokens": list(parts_tokens)}
        emit(PACKED_DATA, **told, source=source, packer=packer, arguments=dict(arguments))


def tell_dealt(
    *,
    lengths: Sequence[int],
    partitions: Sequence[Sequence[int]],
    source: str,
    padded_rows: int = 0,
    packer: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """The rows of a batch have been dealt to the ranks of a group.

    Args:
        lengths: Tokens of each row, on the CPU.
        partitions: Rows of each rank.
        source: The function that dealt them.
        padded_rows: How many of the rows, the last ones, only fill the batch up.
        packer: By whose rule; "" where there is none.
        arguments: All that the packer was given, by name, so that it can be replayed.
    """
    if not DEALT.listeners:
        return
    emit(
        DEALT,
        lengths=list(lengths),
        partitions=[list(part) for part in partitions],
        padded_rows=padded_rows,
        workload=workload_of(lengths),
        source=source,
        packer=packer,
        arguments=dict(arguments or {}),
    )


def tell_added(
    *, cause: str, tokens: int, pad_tokens: int, rows: int, source: str, fields: Sequence[TokenField] = ()
) -> None:
    """Tokens have been added that no rectangle of a micro-batch shows.

    Args:
        cause: Such as ``"sequence_parallel"``, ``"rounding"`` or ``"filler_rows"``.
        tokens: Real ones.
        pad_tokens: Those that were added.
        rows: Of the batch.
        source: The function that added them.
        fields: Columns that hold something for each token; none is one whose bytes aren't known.
    """
    if ADDED.listeners:
        values: dict[str, Any] = {"cause": cause, "tokens": tokens, "pad_tokens": pad_tokens, "rows": rows}
        emit(ADDED, **values, fields=list(fields), source=source)


class Content:
    """What a micro-batch holds, for whoever asks while it is worked on. It keeps nothing alive.

    Args:
        batch: A DataProto, a TensorDict or a dict of tensors; None where nothing is known of it.
        lengths: Tokens of each of its sequences, on the CPU; None where they aren't known.
    """

    __slots__ = ("_columns", "_whole", "lengths")

    def __init__(self, batch: Any, lengths: Sequence[int] | None) -> None:
        self.lengths = lengths
        self._whole: Callable[[], Any] | None = None
        self._columns: dict[Any, Callable[[], Any]] = {}
        if isinstance(batch, dict):  # which can't be referred to weakly, as its tensors can
            self._columns = {key: _weakly(value) for key, value in batch.items()}
        elif batch is not None:
            self._whole = _weakly(batch)

    def batch(self) -> Any:
        """The batch, of a dict as another one; None where it has gone, or nothing was known of it."""
        if self._whole is not None:
            return self._whole()
        found = {key: value for key, one in self._columns.items() if (value := one()) is not None}
        return found or None


def _weakly(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # a list, a number
        return _nothing


def _nothing() -> None:
    return None


class Tally:
    """Calls of one kind, counted. Not for several threads at a time.

    Attributes:
        begin_ns: Of the first call, monotonic; 0 where there was none.
        calls: How many have ended.
        failed: How many of them raised.
        total_ns: The sum of their durations.
        smallest_ns: Duration of the shortest; 0 where there was none.
        largest_ns: Duration of the longest.
        moved_bytes: That they moved, together; None where nobody tells.
        moved_keys: Keys of what they moved, likewise.
    """

    __slots__ = ("begin_ns", "calls", "failed", "largest_ns", "moved_bytes", "moved_keys", "smallest_ns", "total_ns")

    def __init__(self) -> None:
        self.moved_bytes: int | None = None
        self.moved_keys: int | None = None
        self.begin_ns = self.calls = self.failed = self.total_ns = self.smallest_ns = self.largest_ns = 0

    def add(self, begin_ns: int, end_ns: int, *, failed: bool) -> None:
        """A call has ended.

        Args:
            begin_ns: When it began, monotonic.
            end_ns: When it ended.
            failed: Whether it raised.
        """
        took = end_ns - begin_ns
        self.begin_ns = min(self.begin_ns, begin_ns) if self.calls else begin_ns
        self.smallest_ns = min(self.smallest_ns, took) if self.calls else took
        self.largest_ns = max(self.largest_ns, took)
        self.total_ns += took
        self.failed += failed
        self.calls += 1

    def moved(self, *, size_bytes: int, keys: int) -> None:
        """What a call has moved.

        Args:
            size_bytes: Of it.
            keys: How many it has.
        """
        self.moved_bytes = (self.moved_bytes or 0) + size_bytes
        self.moved_keys = (self.moved_keys or 0) + keys


def tell_counted(
    tally: Tally, *, name: str, source: str, step: int | None, phase: str | None = None, role: str | None = None
) -> None:
    """Calls that are counted have ended.

    Args:
        tally: What was counted.
        name: What they are.
        source: The function that measures them.
        step: That they belong to; None where it isn't known.
        phase: Likewise.
        role: Whose calls they are.
    """
    if COUNTED.listeners:
        counts = {one: getattr(tally, one) for one in Tally.__slots__}
        emit(COUNTED, source=source, name=name, step=step, phase=phase, role=role, **counts)


def tell_engine_load(values: Mapping[str, Any]) -> None:
    """An engine of this process has computed for a while.

    Args:
        values: What a row of the table ``engine_load`` holds, with the step, phase and role that it belongs to.
    """
    if ENGINE_LOADED.listeners:
        emit(ENGINE_LOADED, **values)
