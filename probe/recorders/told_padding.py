"""Padding that others tell of: the codec of each field, sequence parallelism, and code that fills a batch up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from probe.recorders.padding_rows import Field, rows_of_causes, told_fields, without_padding
from probe.records import Incident, Padding, Row

PACKED: Final = "codec.packed"
MATERIALIZED: Final = "codec.materialized"
STRIPPED: Final = "codec.stripped_payload"
SEQUENCE_PARALLEL: Final = "ulysses.padded"
ADDED: Final = "padding.added"


def _packed_rows(batch_id: int, values: dict[str, Any]) -> list[Padding]:
    """A row for each field: jagged ones hold exactly their tokens; a rectangle's tokens aren't known to be any."""
    found = []
    for field in values["fields"]:
        tokens = field.kept_tokens or 0
        row = without_padding(
            tokens, values["rows"], Field(field.name, field.bytes_per_token), {"batch_id": batch_id, "source": PACKED}
        )
        row.decision, row.reason = field.decision, field.reason
        row.stripped_tokens = field.stripped_tokens
        row.stripped_bytes = field.stripped_tokens * field.bytes_per_token
        found.append(row)
    return found


def _materialized_rows(batch_id: int, values: dict[str, Any]) -> list[Padding]:
    """The rows of each field's rectangle, by what made it so wide."""
    found: list[Padding] = []
    for field in values["fields"]:
        imposed = values["width_from"] if field.reason == "fixed_width" else ""
        stamp = {
            "batch_id": batch_id,
            "source": MATERIALIZED,
            "decision": field.decision,
            "reason": "; ".join(filter(None, (field.reason, imposed, _CACHES.get(field.cache, "")))),
        }
        size = Field(field.name, field.bytes_per_token)
        if field.width_tokens:
            found += _rectangle_rows(field, size, stamp)
        else:
            found.append(without_padding(field.valid_tokens, field.rows, size, stamp))
    return found


#: What a reader should know of a jagged tensor that said something wrong of its longest row.
_CACHES: Final = {"missing": "its longest row was not cached", "wrong": "its longest row was cached wrongly"}


def _rectangle_rows(told: Any, field: Field, stamp: dict[str, Any]) -> list[Padding]:
    causes = {
        "longest_row": told.rows * told.longest_tokens - told.valid_tokens,
        "rounding": told.rows * (told.rounded_tokens - told.longest_tokens),
        "fixed_width": told.rows * (told.width_tokens - told.rounded_tokens),
    }
    rectangle = (told.rows, told.valid_tokens, told.width_tokens)
    return rows_of_causes([field], causes, *rectangle, **stamp)


def _sequence_parallel_rows(batch_id: int, values: dict[str, Any]) -> list[Padding]:
    tokens, added = int(values["tokens"]), int(values["pad_tokens"])
    return rows_of_causes(
        [Field(values["field"], int(values["bytes_per_token"]))],
        {"sequence_parallel": added},
        int(values["rows"]),
        tokens,
        (tokens + added) // max(int(values["rows"]), 1),
        batch_id=batch_id,
        source=SEQUENCE_PARALLEL,
        reason=f"sp_size {values['sp_size']}",
        rectangle_tokens=tokens + added,
    )


def _added_rows(batch_id: int, values: dict[str, Any]) -> list[Padding]:
    tokens, added, rows = int(values["tokens"]), int(values["pad_tokens"]), int(values["rows"])
    return rows_of_causes(
        told_fields(values) or (Field("tokens", 0),),
        {str(values["cause"]): added},
        rows,
        tokens,
        (tokens + added) // max(rows, 1),
        batch_id=batch_id,
        source=ADDED,
        reason=values["source"],
        rectangle_tokens=tokens + added,
    )


def _lost_payloads(batch_id: int, values: dict[str, Any]) -> list[Incident]:
    del batch_id  # an incident has none
    if not values["lost"]:
        return []
    what = f"field {values['field']!r}" if values["field"] else "a lone payload"
    message = f"{values['lost']} of {values['rows']} objects of {what} were lost on the wire and read as None"
    return [Incident(kind="wire", where=STRIPPED, message=message, count=values["lost"])]


#: What becomes of each such moment: the rows, from the ``batch_id`` that they get and what was told.
TOLD_ROWS: Final[dict[str, Callable[[int, dict[str, Any]], Iterable[Row]]]] = {
    PACKED: _packed_rows,
    MATERIALIZED: _materialized_rows,
    STRIPPED: _lost_payloads,
    SEQUENCE_PARALLEL: _sequence_parallel_rows,
    ADDED: _added_rows,
}
