"""What commands print: for people, and with ``--json`` for programs. Errors and remarks go to standard error."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from probe.text import plain, visible


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of words")


def print_json(value: Any) -> None:
    """Print ``value`` as JSON; see :func:`probe.text.plain`."""
    print(json.dumps(plain(value), allow_nan=False))


def remark(command: str, text: str) -> None:
    """Say something beside the result."""
    print(f"probe {command}: {visible(text)}", file=sys.stderr)
