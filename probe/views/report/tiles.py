"""The report's tiles: a run in numbers, each with a small line of its course."""

from __future__ import annotations

import numpy as np
import pandas as pd

from probe import text as words
from probe.analysis.verdict import Findings
from probe.figures import thinning
from probe.figures.lines import line
from probe.views.report.escaping import escaped


def unjudged(numbers: pd.DataFrame, found: Findings) -> pd.DataFrame:
    """The tiles, without what is said in praise of memory where an alarm is about it.

    Args:
        numbers: As :func:`probe.analysis.overview.numbers` gives them.
        found: In the run.
    """
    if not any(one.topic == "memory" for one in found.alarms):
        return numbers
    good = (numbers["name"] == "peak_memory") & (numbers["status"] == "good")
    return numbers.assign(about=numbers["about"].mask(good, "There is an alarm about memory."))


def tiles_section(numbers: pd.DataFrame) -> str:
    """The tiles, as :func:`probe.analysis.overview.numbers` gives their numbers."""
    tiles = "".join(
        f'<li><p class="name">{escaped(row["title"])}</p><p class="value">{escaped(row["text"])}</p>'
        f'<p class="note">{escaped(row["note"])}</p>{_spark(row["history"])}'
        f'<p class="about">{escaped(row["about"])}</p></li>'
        for row in words.rows(numbers)
    )
    return f'<section aria-label="The run in numbers"><ul class="tiles">{tiles}</ul></section>'


def _spark(history: list[float], width: float = 120, height: float = 26) -> str:
    """A small line of the values, without axes, infinite ones marked at its edge; empty for fewer than two."""
    values = np.array(history, dtype=float)
    if np.count_nonzero(~np.isnan(values)) < 2:
        return '<div class="spark"></div>'
    kept = thinning.thin(values, 120)
    found = line(kept.tolist(), values[kept].tolist(), (0, len(values) - 1))

    def placed(point: tuple[float, float]) -> str:
        return f"{point[0] * (width - 4) + 2:.1f},{point[1] * (height - 6) + 3:.1f}"

    def dot(name: str, point: tuple[float, float]) -> str:  # a line without length that has round ends
        return f'<polyline class="{name}" points="{placed(point)} {placed(point)}"/>'

    drawn = f'<polyline points="{" ".join(map(placed, found.points))}"/>' if found.points else ""
    drawn += "".join(dot("last", one) for one in found.points[-1:])
    if found.infinite:
        marks = "".join(dot("infinite", one) for one in found.infinite)
        drawn += f"<g><title>{len(found.infinite)} infinite</title>{marks}</g>"
    box = f'viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none"'
    return f'<svg class="spark" {box} aria-hidden="true">{drawn}</svg>'
