"""The page of the findings: what is looked for, and from which number on it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pages.comments import comments
from pages.markdown import plain
from probe.analysis import findings

HEAD: Final = """# Findings

`probe.findings(run)` says in words what stands out, problems first; the report begins with them, and `probe demo` ends
with them. A finding has a severity (`problem`, `notice` or `fine`), a topic (the dashboard that shows more), a sentence
with its numbers, and what to do.

This page is made from `probe/analysis/findings.py`.

## What is looked for

"""


def page() -> str:
    """The text of the page."""
    made = [HEAD]
    for look in findings.LOOKS:
        made.append(f"* **{look.__name__.replace('_', ' ')}**: {plain(' '.join((look.__doc__ or '').split()))}\n")
    made += ["\n## From which number on\n\n| limit | value | |\n|---|---|---|\n"]
    for name, said in comments(Path(str(findings.__file__))).items():
        value = getattr(findings, name, None)
        if name.isupper() and isinstance(value, float | tuple) and not callable(_first(value)):
            made.append(f"| `{name}` | `{value!r}` | {plain(said)} |\n")
    return "".join(made)


def _first(value: object) -> object:
    return value[0] if isinstance(value, tuple) and value else value
