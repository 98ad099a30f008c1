"""The page of the metric names, from the ``keys`` that each recorder declares."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pages.comments import comments
from pages.markdown import plain
from probe import dashboards, session
from probe.publishing import across_ranks, system
from probe.recorders import RECORDERS, load

_UNITS: Final = {
    "gib": "GiB (1024³ bytes)",
    "ratio": "quotient",
    "tokens": "tokens",
    "k1": "nats",
    "k3": "nats",
    "ms": "milliseconds",
    "s": "seconds",
    "bytes": "bytes",
    "percentage": "percent",
    "megabytes": "10⁶ bytes",
}

HEAD: Final = """# Metric names

What a session logs once for each step. Names are `probe/<recorder>/…/<quantity>`; the last word is the unit, or `max`
and `mean` where it says how the values of the step were put together. A part in braces stands for one name: `{role}`
and `{phase}` are those of [scopes](../guides/instrument.md), `{cause}` is a
[cause of padding](../design/padding_causes.md).
Keys that say nothing in a step are left out: a run without an accelerator has `peak_rss` and no `peak_reserved`.

Each rank keeps its own as [`scalars`](schema.md#scalars) with `source = 'probe'`; rank 0 sends its own to the
[tracking backends](../backends.md).

This page is made from the recorders' `keys`.
"""

ACROSS_RANKS: Final = """From the rows of all ranks, made by a process beside rank 0 (`publish=` of `probe.start`) and
logged for each step that all ranks have ended. Of those with `smallest`, `mean` and `largest` the ones are logged that
a chart of a dashboard draws.
"""

SYSTEM: Final = """Of the machines, as MLflow spells them, by the same process.
"""


def page() -> str:
    """The text of the page."""
    made = [HEAD]
    shown = _panels()
    for name in RECORDERS:
        kind = load(name)
        if kind.keys:
            made += [
                f"## {name.replace('_', ' ').capitalize()} {{ #{name} }}\n",
                *_words(kind),
                *_table(kind.keys, shown),
            ]
    made += ["## Cost of probe { #cost }\n", plain(_comment(session, "KEYS")) + "\n", *_table(session.KEYS, shown)]
    made += ["## Across ranks { #across_ranks }\n", ACROSS_RANKS, *_table(_across_ranks(), shown)]
    made += ["## The machine { #system }\n", SYSTEM, *_table(system.KEYS, shown)]
    return "\n".join([*made, ""])


def _across_ranks() -> list[str]:
    """What the publisher may log, in order; the three of a margin together."""
    recorded = [key for name in RECORDERS for key in load(name).keys]
    found = across_ranks.keys_of([*recorded, *session.KEYS])
    words = {word: place for place, word in enumerate(dashboards.MARGIN)}
    return sorted(found, key=lambda key: (key.rpartition("_")[0], words.get(key.rpartition("_")[2], 0)))


def _words(kind: type[Any]) -> list[str]:
    doc = plain(" ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split()))
    more = comments(Path(inspect.getfile(kind))).get(f"{kind.__name__}.keys", "")
    return [f"{text}\n" for text in (doc, plain(more)) if text]


def _comment(module: Any, name: str) -> str:
    return comments(Path(str(module.__file__))).get(name, "")


def _table(keys: Sequence[str], shown: dict[str, list[str]]) -> list[str]:
    lines = ["| key | unit | panel |", "|---|---|---|"]
    lines += [f"| `{key}` | {_unit(key)} | {', '.join(shown.get(key, []))} |" for key in keys]
    return [*lines, ""]


def _unit(key: str) -> str:
    words = re.sub(r"_(max|min|mean|smallest|largest)$", "", key.rpartition("/")[2]).split("_")
    return _UNITS.get(words[-1], "count")


def _panels() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for board in dashboards.dashboards():
        for panel in board.panels:
            for key in dict.fromkeys([*panel.keys, *(key for chart in panel.charts for key in chart.keys)]):
                found.setdefault(key, []).append(f"[{panel.title}](../panels/{panel.id}.md)")
    return found
