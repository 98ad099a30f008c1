"""The samples that a saved copy keeps, as HTML without a script: a table, and strips of the tokens of a few answers."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from probe import text as say
from probe.analysis.found_samples import became_of, name_of
from probe.figures import colours

#: Parts of a strip, at most; each shows the largest difference among its tokens.
PARTS: Final = 160

#: Differences up to this are noise and have no colour; from this one on the colour is full. Nats.
QUIET: Final = 0.1
FULL: Final = 2.0

_LEVELS: Final = 4
_HEAD: Final = ("Answer", "Group", "Reward", "Advantage", "Tokens", "Difference", "What became of it", "By position")
_LESS, _MORE = "#b35806", "#2257c4"


def section(kept: Mapping[str, Any] | None) -> str:
    """What :func:`probe.views.panel.browsing.kept` keeps, to be unfolded; "" where there is nothing."""
    if not kept:
        return ""
    rows, strips = kept["rows"], {tuple(one["answer"]["key"]): one["arrays"] for one in kept["tokens"]}
    lines = [one for one in rows["lines"] if one["kind"] == "answer"]
    head = "".join(f'<th scope="col" style="text-align:start;padding:2px 8px">{one}</th>' for one in _HEAD)
    body = "".join(_row(one, strips.get(tuple(one["key"]))) for one in lines)
    return (
        f'<details class="probe-samples"><summary>Samples: {len(lines)} answers of step {rows["step"]}, the worst first'
        f'</summary><div style="overflow-x:auto"><table style="border-collapse:collapse"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div><p>Difference: log-prob of training minus rollout, nats, the largest of "
        "an answer. In a strip each token is orange where training finds it less likely, blue where more likely. All "
        "answers are in the run; texts aren't kept in this copy.</p></details>"
    )


def _row(line: Mapping[str, Any], arrays: Mapping[str, str] | None) -> str:
    difference = f"{line['nan_count']} NaN" if line["nan_count"] else _number(line["difference_largest"])
    cells = [
        name_of(line),
        line["group"],
        _number(line["reward"]),
        _number(line["advantage_mean"]),
        say.count(line["response_tokens"]),
        difference,
        became_of(line),
    ]
    written = "".join(f'<td style="padding:2px 8px">{_escaped(str(cell))}</td>' for cell in cells)
    return f'<tr>{written}<td style="padding:2px 8px">{_strip(line, arrays)}</td></tr>'


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def _strip(line: Mapping[str, Any], arrays: Mapping[str, str] | None) -> str:
    if arrays is None or not {"log_probs", "rollout_log_probs"} <= arrays.keys():
        return ""
    train, rollout = (_unpacked(arrays[name]) for name in ("log_probs", "rollout_log_probs"))
    parts = [_largest(part) for part in np.array_split(train - rollout, min(PARTS, max(len(train), 1)))]
    paths: dict[tuple[str, int], str] = {}
    for at, value in enumerate(parts):
        look = _look(value)
        paths[look] = paths.get(look, "") + f"M{3 * at} 0h2v14h-2z"
    drawn = "".join(
        f'<path d="{path}" fill="{colour}" fill-opacity="{0.12 + 0.88 * level / _LEVELS:.2f}"/>'
        for (colour, level), path in sorted(paths.items())
    )
    wide = 3 * len(parts)
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} 14" width="{wide}" height="14">{drawn}</svg>'
    )
    data = base64.b64encode(picture.encode()).decode()
    place = "" if line["difference_at"] is None else f", the largest at token {line['difference_at']}"
    alt = f"Difference of {say.count(line['response_tokens'])} tokens by position{place}"
    return f'<img alt="{alt}" src="data:image/svg+xml;base64,{data}">'


def _look(value: float) -> tuple[str, int]:
    """Colour and level of a part: NaN is an alarm, noise has no colour."""
    if math.isnan(value):
        return str(colours.of_theme("alarm")), _LEVELS
    if abs(value) <= QUIET:
        return "#8a919c", 0
    return _LESS if value < 0 else _MORE, min(math.ceil(_LEVELS * abs(value) / FULL), _LEVELS)


def _unpacked(text: str) -> npt.NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text), "<f4")


def _largest(values: npt.NDArray[np.float32]) -> float:
    if np.isnan(values).any():
        return math.nan
    return float(values[np.abs(values).argmax()]) if len(values) else 0.0


def _escaped(value: str) -> str:
    kept = "".join(one if one.isprintable() else " " for one in value)
    return html.escape(kept.encode("utf-8", "replace").decode(), quote=True)
