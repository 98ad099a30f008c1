"""Rows of batches: how they were cut into micro-batches, and what their padding costs."""

from __future__ import annotations

from typing import Final

from msgspec import field

from probe.records.row import Row


class MicroBatch(Row, kw_only=True, tag="micro_batches"):
    """One micro-batch of one batch on one rank; ``micro_batch`` of the stamp is its index."""

    batch_id: int  #: unique in the process: rows of one call share it
    micro_batches: int | None  #: how many the batch was cut into; None where the code that cut it didn't tell
    sequences: int
    lengths: list[int]  #: tokens of each of its sequences
    indices: list[int] = field(default_factory=list)  #: rows of the batch that it holds
    tokens: int  #: sum of lengths
    width_tokens: int | None = (
        None  #: padded width of what is computed on; None for jagged input, and where the model packs
    )
    cap_tokens: int | None = None
    utilisation_ratio: float | None = None  #: tokens / cap
    over_cap: bool = False
    workload: float | None = None  #: attention-aware cost in arbitrary units
    effective_tokens: int | None = None  #: that the loss counts; None where the code that cut it didn't tell
    source: str = ""  #: the hook point that formed it


class Partition(Row, kw_only=True, tag="partitions"):
    """One cut of a batch into micro-batches, one dealing of its rows to ranks, or one packing of rows of the data set
    into sequences: by whose rule, and what it was given.

    With the lengths of the rows that is enough to cut the batch again. Those of micro-batches stand in the rows of
    ``micro_batches`` with the same ``batch_id``, by index.
    """

    batch_id: int  #: unique in the process, that of the micro-batches
    level: str  #: "micro_batches", "ranks" or "data_set"
    parts: int  #: how many
    sequences: int
    padded_rows: int = 0  #: of the sequences, the last ones, which only fill the batch up
    packer: str = ""  #: by whose rule, such as "probe" or "verl 0.9.1"; "" where there is none to name
    arguments: str = "{}"  #: all that the packer was given, as JSON by name
    lengths: list[int] = field(default_factory=list)  #: tokens of each sequence; not of micro-batches
    assignment: list[int] = field(default_factory=list)  #: the part that each sequence went to; of ranks only
    parts_tokens: list[int] = field(default_factory=list)  #: of each part
    source: str = ""  #: the function that cut it


#: Sources of padding rows that tell of micro-batches: where a process has such rows in a step, they make up its padding
#: tax, since the batches that they were cut from hold the same tokens.
PLANNED_SOURCES: Final = (
    "seqlen_balancing.partition",
    "packing.packed",
    "batched_data_dict.partition",
    "micro_batch.told",
)

#: Sources of padding rows that tell of no rectangle of the trainer's: they never count for the padding tax.
APART_SOURCES: Final = ("codec.packed", "padding.added", "ulysses.padded")


def counts_for_tax(source: str, cut: bool) -> bool:
    """Whether padding rows of a source make up a step's padding tax.

    Args:
        source: Of the rows.
        cut: Whether their process has told of micro-batches in their step.

    Returns:
        True where they count; SQL says the same in the views of ``probe/runs/views.sql``.

    >>> counts_for_tax("data_proto.from_dict", False), counts_for_tax("data_proto.from_dict", True)
    (True, False)
    """
    return source in PLANNED_SOURCES or (not cut and source not in APART_SOURCES)


class Padding(Row, kw_only=True, tag="padding"):
    """One cause of padding in one field of one batch. The causes of a (batch_id, field) sum exactly to
    ``rectangle_tokens − valid_tokens``; a batch without padding has one row with cause "none" and 0 tokens.
    """

    batch_id: int
    source: str  #: the hook point that formed the batch
    field: str
    cause: str  #: "longest_row", "fixed_width", "rounding", "filler_rows", "sequence_parallel", "none" …
    tokens: int
    bytes: int
    rectangle_tokens: int
    valid_tokens: int
    rows: int = 0
    width_tokens: int = 0
    decision: str = ""  #: what a codec did with the field: "jagged", "padded", "rectangular", "fallback", "object" …
    reason: str = ""  #: why it decided so, or who imposed the width
    stripped_tokens: int = 0  #: padding that was there before and was taken off
    stripped_bytes: int = 0
