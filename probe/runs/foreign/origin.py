"""Whether a run was made of what others wrote: its configuration says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: What a configuration has of where a run was read from, by whom that was written, and what isn't known of it.
PLACE, WRITER, NOTES = "read_from", "written_by", "notes"

_ALL: Final = frozenset({PLACE, WRITER, NOTES})


def written_by(config: Any) -> str | None:
    """Who wrote what a run was made of, in words; None of a run that probe has recorded.

    Args:
        config: Of the run.

    >>> written_by({"read_from": "/logs/grpo.jsonl", "written_by": "verl's file logger", "notes": []})
    "verl's file logger"
    """
    return str(config[WRITER]) if _is_of_others(config) else None


def read_from(config: Any) -> str | None:
    """The path of what a run was made of; None of a run that probe has recorded.

    Args:
        config: Of the run.
    """
    return str(config[PLACE]) if _is_of_others(config) else None


def _is_of_others(config: Any) -> bool:
    return isinstance(config, Mapping) and config.keys() >= _ALL
