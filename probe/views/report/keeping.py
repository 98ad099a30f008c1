"""Parts of the report of a large run, kept as text, so that they aren't worked out again."""

from __future__ import annotations

from collections.abc import Callable

from probe.analysis.kept_text import text_of
from probe.dashboards import digest
from probe.runs.reader import Run


def kept_part(run: Run, what: str, make: Callable[[], str]) -> str:
    """A text of the report: of a large run as it was kept, since it takes seconds to work out.

    Args:
        run: The run.
        what: Which text.
        make: Works it out.
    """
    parts = ("analysis", "core/balancing", "dashboards", "figures", "runs", "text.py", "views/report")
    return text_of(run, f"the report's {what} as defined by {digest()}", make, *parts)
