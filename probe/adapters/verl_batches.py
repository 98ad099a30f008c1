"""How verl's engines cut a batch into micro-batches, and which of them runs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final

from probe.adapters.seams import Call
from probe.adapters.verl_settings import packer, setting
from probe.adapters.verl_workers import COUNTS
from probe.guard import on_error
from probe.hooks import scope
from probe.moments import Content, TokenField, tell_added, tell_partition

_MASK_BYTES: Final = 4  #: of an entry of the mask that verl makes for a rectangle, an int32


class Batch:
    """A batch that an engine works on, micro-batch by micro-batch.

    Attributes:
        parts: Lengths of the rows of each micro-batch; empty where they aren't known.
        later: What is to be told at its end, when lengths have come from the device.
    """

    def __init__(self) -> None:
        self.parts: list[list[int]] = []
        self.later: Callable[[], None] | None = None
        self._begun = 0
        self._open: scope | None = None

    def begin(self, data: Any = None) -> None:
        """The next micro-batch begins: the one before it has ended, with its backward pass.

        Args:
            data: The micro-batch; None where it isn't known. Nothing here keeps it alive.
        """
        self.end()
        index, self._begun = self._begun, self._begun + 1
        lengths = self.parts[index] if index < len(self.parts) else None
        opened = scope("micro_batch", str(index), micro_batch=index)
        if lengths is not None:
            opened.values.update(tokens=sum(lengths), sequences=len(lengths))
        opened.values["content"] = Content(data, lengths)
        opened.__enter__()
        self._open = opened

    def end(self, error: BaseException | None = None) -> None:
        """The micro-batch that is open, if any, has ended.

        Args:
            error: What has ended it, where that is no order of the engine's.
        """
        opened, self._open = self._open, None
        if opened is not None:
            opened.__exit__(None if error is None else type(error), error, None)

    def restart(self, parts: list[list[int]]) -> None:
        """Another mini-batch has been cut: its micro-batches are counted from 0.

        Args:
            parts: Lengths of the rows of each micro-batch; none where they aren't known.
        """
        self.end()
        self._begun, self.parts = 0, parts


class Engines:
    """What the engines of this process do.

    Attributes:
        batch: That is worked on; None where none is.
        preparing: Whether a batch is being cut by :func:`prepared`, so that what that calls needn't tell of it.
    """

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.preparing = False


#: Of this process: an engine works on one batch at a time.
ENGINES: Final = Engines()


def batch(call: Call) -> Generator[None, None, None]:
    """An engine works on a batch; at its end, also where it raises, the last micro-batch has ended."""
    del call
    around = ENGINES.batch
    made = ENGINES.batch = Batch()
    try:
        with on_error(made.end):
            yield
    finally:
        ENGINES.batch = around
        made.end()
        if made.later is not None:
            made.later()


def micro_batch(call: Call) -> Generator[None, None, None]:
    """Forward of a micro-batch begins; backward comes after the call, so that its end is told by what comes next."""
    if ENGINES.batch is not None:
        ENGINES.batch.begin(call.argument("micro_batch"))
    yield


def all_done(call: Call) -> Generator[None, None, None]:
    """The results of all micro-batches are put together: the last one has ended."""
    del call
    if ENGINES.batch is not None:
        ENGINES.batch.end()
    yield


def optimizer_step(call: Call) -> Generator[None, None, None]:
    """An actor that runs several mini-batches in one call has accumulated the gradients of one."""
    del call
    if ENGINES.batch is not None:
        ENGINES.batch.restart([])
    with scope("watch", "optimizer_step"):
        yield


# ---------------------------------------------------------------------------------------------------------- cutting


def prepared(call: Call) -> Generator[None, None, None]:
    """A batch is cut, by tokens or by rows."""
    ENGINES.preparing = True
    try:
        yield
    finally:
        ENGINES.preparing = False
    if call.error is None:
        _tell_prepared(call)


def rearranged(call: Call) -> None:
    """verl's dynamic batching, where other code than the engines asks for it: its workers before 0.6, and users."""
    if ENGINES.preparing:
        return
    data = call.argument("batch")
    lengths = row_lengths(_column(data, "input_ids")) or _mask_lengths(data)
    names = ("num_batches_divided_by", "min_num_micro_batch", "use_dynamic_bsz_balance", "force_group_size")
    arguments = {name: call.argument(name) for name in names} | _agreed(call)
    cap = int(call.argument("max_token_len"))
    if lengths:
        if ENGINES.batch is not None:
            ENGINES.batch.restart([[lengths[row] for row in part] for part in call.result[1]])
        jagged = row_lengths(_column(data, "input_ids")) is not None
        tell_partition(
            lengths=lengths,
            partitions=call.result[1],
            source="verl.rearrange_micro_batches",
            cap_tokens=cap,
            width_tokens=None if jagged else int(_column(data, "attention_mask").shape[-1]),
            packer=packer(),
            arguments={"max_token_len": cap, **arguments},
        )


def _tell_prepared(call: Call) -> None:
    data = call.argument("data")
    micro_batches, indices = call.result
    number, COUNTS.call = COUNTS.call, COUNTS.call + 1
    arguments = _arguments(call, data) | {"mini_batch": COUNTS.mini_batch, "call": number}
    partitions = indices if indices is not None else _consecutive(micro_batches)
    made: dict[str, Any] = {
        "partitions": [[int(row) for row in part] for part in partitions],
        "cap_tokens": arguments.get("max_token_len"),
        "source": "verl.prepare_micro_batches",
        "packer": packer(),
        "arguments": arguments,
        "effective": _row_sums(_column(data, "loss_mask")),
    }
    ids = _column(data, "input_ids")
    lengths = row_lengths(ids) or _mask_lengths(data)
    if lengths:
        _tell(ENGINES.batch, data, lengths, made)
    elif ENGINES.batch is not None and getattr(ids, "is_nested", False):
        ENGINES.batch.later = _when_copied(ids.offsets(), lambda found: _tell(None, data, found, made))


def _tell(at: Batch | None, data: Any, lengths: list[int], made: dict[str, Any]) -> None:
    """Tell of a batch that was cut; padded micro-batches are as wide as the longest row of each."""
    parts = [[lengths[row] for row in part] for part in made["partitions"]]
    if at is not None:
        at.parts = parts
    packed = bool(setting(data, "use_remove_padding", True))
    widths = None if packed else [max(part, default=0) for part in parts]
    tell_partition(
        lengths=lengths,
        widths=widths,
        width_tokens=None if widths is None else max(widths, default=0),
        packed=packed,
        fields=token_fields(data) if packed else _padded_fields(data),
        **made,
    )


def _arguments(call: Call, data: Any) -> dict[str, Any]:
    """All that verl's packer was given, by verl's own names."""
    dynamic = bool(setting(data, "use_dynamic_bsz", True))
    group, parallel = int(setting(data, "force_group_size", 1)), int(setting(data, "sp_size", 1))
    given: dict[str, Any] = {"use_dynamic_bsz": dynamic, "force_group_size": group, "sp_size": parallel}
    if not dynamic:
        return given | {"micro_batch_size_per_gpu": int(setting(data, "micro_batch_size_per_gpu", 0))}
    cap = int(setting(data, "max_token_len_per_gpu", 0))
    names = ("num_batches_divided_by", "min_num_micro_batch", "use_dynamic_bsz_balance")
    return (
        given
        | {"max_token_len": cap * parallel, "max_token_len_per_gpu": cap}
        | {name: call.argument(name) for name in names}
        | _agreed(call)
    )


def _agreed(call: Call) -> dict[str, Any]:
    """Whether the number of micro-batches is agreed over ranks, and over how many."""
    group = call.argument("dp_group")
    same = bool(call.argument("same_micro_num_in_dp")) and group is not None
    size = getattr(group, "size", None)
    return {"same_micro_num_in_dp": same, "dp_size": int(size()) if same and callable(size) else 1}


def _consecutive(micro_batches: Sequence[Any]) -> list[range]:
    """Rows of micro-batches that are stretches of the batch."""
    parts, begin = [], 0
    for one in micro_batches:
        end = begin + int(one.batch_size[0])
        parts.append(range(begin, end))
        begin = end
    return parts


def model_inputs(call: Call) -> None:
    """What the model is given: an engine may have made a packed micro-batch longer, to a bucket or for the ranks."""
    given = call.result[1] if isinstance(call.result, tuple) else None
    pad = int(given.get("pad_size") or 0) if isinstance(given, Mapping) else 0
    if not pad:
        return
    engine, data = call.args[0], call.argument("micro_batch")
    ids = _column(data, "input_ids")
    tokens, rows = int(ids.values().shape[0]), int(data.batch_size[0])
    size = getattr(engine, "_get_packed_pad_size", None)
    rounded = int(size(tokens)) if callable(size) else 0
    fields = token_fields(data, ["input_ids", "position_ids"])
    for cause, added in (("rounding", rounded), ("sequence_parallel", pad - rounded)):
        if added:
            tell_added(
                cause=cause,
                tokens=tokens,
                pad_tokens=added,
                rows=rows,
                source="verl.prepare_model_inputs",
                fields=fields,
            )


# ---------------------------------------------------------------------------------- what a batch says of itself


def row_lengths(column: Any) -> list[int] | None:
    """Entries of each row of a jagged column whose offsets are on the CPU, else None."""
    if not getattr(column, "is_nested", False) or column.ndim < 2:
        return None
    offsets = _cpu_offsets(column)
    return None if offsets is None else _differences(offsets.tolist())


def token_fields(data: Any, names: Iterable[str] | None = None) -> list[TokenField]:
    """The jagged columns, those of ``names`` where they are given, with the bytes that a token of each takes."""
    wanted = None if names is None else set(names)
    found = []
    for name, column in data.items():
        if (wanted is None or name in wanted) and getattr(column, "is_nested", False) and hasattr(column, "values"):
            found.append(TokenField(name, _bytes_per_token(_values(column))))
    return sorted(found)


def _padded_fields(data: Any) -> list[TokenField]:
    """What becomes a rectangle where the model doesn't take the padding out."""
    return [*token_fields(data, ["input_ids", "position_ids"]), TokenField("attention_mask", _MASK_BYTES)]


def _values(column: Any) -> Any:
    """The entries of a jagged column, row after row.

    torch takes 0.1 ms and more to dispatch the call of the method, which answers this very tensor.
    """
    found = getattr(column, "_values", None)
    return column.values() if found is None else found


def _bytes_per_token(values: Any) -> int:
    trailing = 1
    for size in values.shape[1:]:
        trailing *= int(size)
    return int(values.element_size()) * trailing


def _column(data: Any, key: str) -> Any:
    keys = data.keys()  # a TensorDict is no mapping: `in` asks its keys
    return data[key] if key in keys else None


def _cpu_offsets(column: Any) -> Any:
    """The offsets of a jagged column without holes, where they are on the CPU."""
    ask, holes = getattr(column, "offsets", None), getattr(column, "lengths", None)
    if ask is None or (callable(holes) and holes() is not None):
        return None
    offsets = ask()
    return offsets if offsets.device.type == "cpu" else None


def _differences(offsets: Sequence[int]) -> list[int]:
    return [end - begin for begin, end in itertools.pairwise(offsets)]


def _mask_lengths(data: Any) -> list[int] | None:
    mask = _column(data, "attention_mask")
    if mask is None or getattr(mask, "is_nested", False) or mask.device.type != "cpu":
        return None
    return [int(length) for length in mask.sum(-1).tolist()]


def _row_sums(mask: Any) -> list[int] | None:
    """How many entries of each row of a mask aren't 0, where it is on the CPU; None elsewhere."""
    if mask is None or mask.device.type != "cpu" or not hasattr(mask, "is_nested"):
        return None
    if not mask.is_nested:
        return [int(one) for one in (mask != 0).sum(-1).tolist()] if mask.ndim == 2 else None
    offsets = _cpu_offsets(mask)
    values = _values(mask)
    if offsets is None or values.ndim != 1:
        return None
    # In numpy, in this one thread: torch would wake all of its threads for less than a millisecond of work.
    flags = values != 0 if str(values.dtype) == "torch.bfloat16" else values.detach()  # which numpy doesn't know
    sums = (flags.numpy() != 0).cumsum()
    return _differences([int(sums[end - 1]) if end else 0 for end in offsets.tolist()])


def _when_copied(offsets: Any, tell: Callable[[list[int]], None]) -> Callable[[], None] | None:
    """Tell of lengths that are on a device when they have come from there; nobody waits for them.

    verl reads its losses from the device before a batch ends, so that the copy is done by then.
    """
    torch: Any = sys.modules["torch"]
    if offsets.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return None
    landing = torch.empty(offsets.shape, dtype=offsets.dtype, pin_memory=True)
    landing.copy_(offsets.detach(), non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(offsets.device))

    def later() -> None:
        if done.query():
            tell(_differences(landing.tolist()))

    return later
