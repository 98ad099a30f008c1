"""NeMo-RL: its timer's labels are our phases; its codec and its batches tell lengths.

Its workers run in environments of their own, mostly without probe: what is seen is the driver. The timer isn't told
the number of a step, so that rows have none. Events of the data plane and spans stand in
:mod:`probe.adapters.nemo_rl_events`.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any, Final

from probe.adapters.nemo_rl_events import client_made, provider_made, tell_events
from probe.adapters.seams import Call, Seam
from probe.hooks import scope
from probe.moments import TokenField, tell_added, tell_dealt

_TIMER: Final = "nemo_rl.utils.timer"
_CODEC: Final = "nemo_rl.data_plane.codec"
_BATCHES: Final = "nemo_rl.distributed.batched_data_dict"


def _timed(call: Call) -> None:
    """``with timer.time("generation"):`` runs a generator: from its first step on inside a phase of that name."""
    label = str(call.argument("label"))
    inner = getattr(call.result, "gen", None)
    if inner is not None:
        call.result.gen = _in_phase(label, inner)


def _in_phase(label: str, inner: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    with scope("phase", label, phase=label):
        try:
            return (yield from inner)
        finally:
            tell_events()


def _materialized(call: Call) -> None:
    """Rows of unlike length became rectangles: their lengths are on the CPU, in the offsets of the jagged tensors."""
    batch = call.argument("td")
    if call.argument("layout", "padded") != "padded":
        return
    nested = {name: value for name, value in batch.items() if getattr(value, "is_nested", False)}
    offsets = {name: value.offsets() for name, value in nested.items() if value.offsets().device.type == "cpu"}
    by_lengths: dict[tuple[int, ...], list[str]] = {}
    for name, one in offsets.items():
        by_lengths.setdefault(tuple(one.diff().tolist()), []).append(name)
    for lengths, names in by_lengths.items():
        widest = max(names, key=lambda name: int(call.result[name].shape[1]))
        width = int(call.result[widest].shape[1])
        fields = [TokenField(name, _bytes_per_token(nested[name])) for name in names]
        rows, tokens, longest = len(lengths), sum(lengths), max(lengths, default=0)
        tell = partial(tell_added, tokens=tokens, rows=rows, source=f"{_CODEC}.materialize", fields=fields)
        tell(cause="longest_row", pad_tokens=rows * longest - tokens)
        if width > longest:
            tell(cause="fixed_width", pad_tokens=rows * (width - longest))


def _bytes_per_token(tensor: Any) -> int:
    values = tensor._values
    size = int(values.element_size())
    for extent in values.shape[1:]:
        size *= int(extent)
    return size


def _sharded(call: Call) -> None:
    given = call.argument("dynamic_batching_args") or call.argument("sequence_packing_args") or {}
    key = given.get("input_lengths_key", "input_lengths")
    shards = call.result[0] if isinstance(call.result, tuple) else call.result
    told = [shard.get(key) for shard in shards]
    if any(own is None or getattr(getattr(own, "device", None), "type", "cpu") != "cpu" for own in told):
        return
    lengths, partitions = _in_order([[int(one) for one in own] for own in told], _counts(shards))
    packer = "nemo_rl.dynamic_batching" if call.argument("dynamic_batching_args") else ""
    packer = "nemo_rl.sequence_packing" if call.argument("sequence_packing_args") else packer
    arguments = {"shards": call.argument("shards"), "batch_size": call.argument("batch_size")}
    source = f"{_BATCHES}.shard_by_batch_size"
    tell_dealt(lengths=lengths, partitions=partitions, source=source, packer=packer, arguments={**arguments, **given})


def _counts(shards: Any) -> list[list[int]]:
    """Rows of each global batch on each shard, as the plan has them; nothing where there is none."""
    return [[int(one) for one in getattr(shard, "elem_counts_per_gb", None) or ()] for shard in shards]


def _in_order(told: list[list[int]], counts: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """The lengths of all rows, one global batch after the other, and the rows of each shard among them."""
    if any(sum(each) != len(own) for own, each in zip(told, counts, strict=True)):
        counts = [[len(own)] for own in told]
    lengths: list[int] = []
    partitions: list[list[int]] = [[] for _ in told]
    for batch in range(max(map(len, counts), default=0)):
        for own, each, mine in zip(told, counts, partitions, strict=True):
            begin = sum(each[:batch])
            rows = own[begin : begin + each[batch]]
            mine.extend(range(len(lengths), len(lengths) + len(rows)))
            lengths += rows
    return lengths, partitions


SEAMS: Final = (
    Seam(_TIMER, "Timer.time", "phases", _timed),
    Seam(_CODEC, "materialize", "padding after the wire", _materialized),
    Seam("nemo_rl.data_plane.observability", "MetricsDataPlaneClient.__init__", "transfers", client_made),
    Seam(_BATCHES, "BatchedDataDict.shard_by_batch_size", "balance over ranks", _sharded),
    Seam("opentelemetry.sdk.trace", "TracerProvider.__init__", "spans", provider_made, begins=False, always=True),
)
