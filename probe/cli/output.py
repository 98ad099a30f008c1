"""What commands print: for people, and with ``--json`` for programs. Errors and remarks go to standard error."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from typing import Any

from probe.text import visible


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of words")


def print_json(value: Any) -> None:
    """Print ``value`` as JSON; see :func:`plain`."""
    print(json.dumps(plain(value), allow_nan=False))


def plain(value: Any) -> Any:  # noqa: PLR0911  (one line for each kind of value)
    """``value`` as JSON can hold it. A missing value is null; NaN and the infinities are the texts that the run's own
    files have for them, so that nothing is taken for missing that was a number.

    >>> plain({"a": float("nan"), "b": [None, -math.inf, 0.5]})
    {'a': 'NaN', 'b': [None, '-Infinity', 0.5]}
    """
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "item"):  # numpy's scalars
        return plain(value.item())
    return str(value)


def remark(command: str, text: str) -> None:
    """Say something beside the result."""
    print(f"probe {command}: {visible(text)}", file=sys.stderr)
