"""What a user wrote, as it may stand in the report's HTML."""

from __future__ import annotations

import html
from typing import Any


def escaped(value: Any) -> str:
    """A value as text in which nothing is markup."""
    return html.escape(str(value), quote=True)
