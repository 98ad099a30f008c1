"""The long tail as a piece of HTML that stands in a notebook's cell and in the report.

Its figure has a lane for each replica, as high as it has requests under way, below the lane of the trainer's phases, on
one clock. The tail is hatched. It brings its own few colours, which show on light and on dark.
"""

from __future__ import annotations

from html import escape
from typing import Final, Protocol

import numpy as np

from probe.analysis.long_tail.rules import Rule
from probe.analysis.long_tail.tail import Phase, Replica, Step
from probe.analysis.long_tail.wording import RULE_COLUMNS, RULE_NOTE, cells, rule_cells
from probe.text import seconds

_HEAD: Final = "margin:0 0 6px;font-size:16px;line-height:1.5;font-weight:600"
_SMALL: Final = "margin:6px 0 0;font-size:12px;opacity:.8"
_LEFT: Final = "padding:3px 12px 3px 0;text-align:left;border-top:1px solid rgba(128,139,153,.3);font-weight:400"
_RIGHT: Final = (
    "padding:3px 0 3px 12px;text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums;"
    "border-top:1px solid rgba(128,139,153,.3)"
)
#: What a table says of a replica, after its name; see :func:`probe.analysis.long_tail.wording.cells`.
COLUMNS: Final = ("Answers", "Median", "90 %", "Longest", "In the tail", "Idle in it")

#: Lanes and rows that are shown, and points of a lane.
_LANES: Final = 16
_POINTS: Final = 240

#: Of the figure, in its own units.
_LEFT_EDGE, _WIDTH, _LANE, _GAP, _PHASES = 130, 870, 26, 5, 22

_BUSY: Final = "#3d78c9"
_PHASE: Final = "rgba(128,139,153,.35)"
_TAIL: Final = "rgba(193,130,11,.22)"


class Shown(Protocol):
    """What is drawn, of an answer that has it."""

    @property
    def sentence(self) -> str:
        """What is to be said first."""

    @property
    def shown(self) -> Step:
        """The step that is drawn."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What other rules would have saved it."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What else has to be known to read the numbers."""


def html_of(found: Shown) -> str:
    """It as one element.

    Args:
        found: What is told.
    """
    step = found.shown
    notes = "".join(f'<p style="{_SMALL}">{escape(one)}</p>' for one in found.notes)
    return (
        '<div class="probe-long-tail" style="max-width:68em;line-height:1.45;text-align:left;font-size:13px">'
        f'<p style="{_HEAD}">{escape(found.sentence)}</p>{_figure(step)}{_table(step)}{notes}'
        f"{_rules(found.rules, step)}</div>"
    )


def lanes(step: Step) -> list[Replica]:
    """The replicas that are drawn: all, or those that work longest.

    Args:
        step: The step.
    """
    if len(step.replicas) <= _LANES:
        return list(step.replicas)
    latest = sorted(step.replicas, key=lambda one: -one.end_ns)[:_LANES]
    return [one for one in step.replicas if one in latest]


def under_way(replica: Replica, first: int, last: int, points: int = _POINTS) -> list[tuple[float, int]]:
    """How many requests of a replica are under way.

    Args:
        replica: It.
        first: Where the time begins, wall-clock nanoseconds.
        last: Where it ends.
        points: That are told, at most.

    Returns:
        Share of the time and the most requests at once from there to the next; the last one has 0.
    """
    begin, end = replica.requests
    if not len(begin):
        inside = 1 if replica.samples else 0
        return [((replica.begin_ns - first) / (last - first), inside), ((replica.end_ns - first) / (last - first), 0)]
    moments = np.concatenate([begin, end])
    changes = np.concatenate([np.ones(len(begin), np.int64), -np.ones(len(end), np.int64)])
    order = np.lexsort((-changes, moments))
    moments, counts = moments[order], np.cumsum(changes[order])
    kept = np.append(moments[1:] != moments[:-1], True)
    moments, counts = moments[kept], counts[kept]
    at = (moments - first) / (last - first)
    if len(at) > points:
        groups = np.array_split(np.arange(len(at)), points)
        at, counts = at[[one[0] for one in groups]], np.array([counts[one].max() for one in groups[:-1]] + [0])
    return list(zip(at.tolist(), counts.tolist(), strict=True))


def _figure(step: Step) -> str:
    drawn = lanes(step)
    if not drawn or step.begin_ns is None or step.end_ns is None:
        return ""
    first, last = extent(step)
    bottom = _PHASES + _GAP + len(drawn) * (_LANE + _GAP)
    most = max([1, *(count for one in drawn for _, count in under_way(one, first, last))])
    parts = [_tail(step, first, last, bottom), _trainer(step.phases, first, last)]
    for at, one in enumerate(drawn):
        parts.append(_lane(one, _PHASES + _GAP + at * (_LANE + _GAP), most, first, last))
    label = (
        f"Step {step.step}: requests under way on {len(drawn)} replicas beside the phases of the trainer. "
        "The table below has the numbers."
    )
    left_out = len(step.replicas) - len(drawn)
    more = f" The {len(drawn)} of {len(step.replicas)} replicas that work longest." if left_out else ""
    begins = "the tail, from the end of 90 % of the answers to the end of the last" if step.tail_ns is not None else ""
    key = f'<span style="background:{_TAIL};padding:0 8px"></span> {begins}.' if begins else ""
    return (
        f'<svg viewBox="0 0 {_LEFT_EDGE + _WIDTH} {bottom + 18}" role="img" aria-label="{escape(label)}" '
        f'style="width:100%;height:auto;font:12px system-ui,sans-serif;fill:currentColor">{"".join(parts)}'
        f"{_axis(first, last, bottom)}</svg>"
        f'<p style="{_SMALL}">Step {step.step}: a lane is a replica, as high as it has answers under way (at most '
        f"{most} at once).{more} {key}</p>"
    )


def extent(step: Step) -> tuple[int, int]:
    """From the first to the last that is drawn, wall-clock nanoseconds: the step, and what of its rollout lies outside.

    Args:
        step: The step.
    """
    begin, end = step.begin_ns or 0, step.end_ns or 1
    if step.step_begin_ns is not None and step.step_ns is not None:
        begin, end = min(begin, step.step_begin_ns), max(end, step.step_begin_ns + step.step_ns)
    return begin, max(end, begin + 1)


def _x(moment: float, first: int, last: int) -> float:
    return _LEFT_EDGE + _WIDTH * (moment - first) / (last - first)


def _tail(step: Step, first: int, last: int, bottom: int) -> str:
    if step.ninth_ns is None or step.end_ns is None:
        return ""
    left, right = _x(step.ninth_ns, first, last), _x(step.end_ns, first, last)
    return f'<rect x="{left:.1f}" y="0" width="{max(right - left, 1):.1f}" height="{bottom}" style="fill:{_TAIL}"/>'


def _trainer(phases: tuple[Phase, ...], first: int, last: int) -> str:
    said = [_name("trainer", 15)]
    for one in sorted(phases, key=lambda one: one.begin_ns - one.end_ns):  # those inside others come last
        left, right = _x(one.begin_ns, first, last), _x(one.end_ns, first, last)
        name = escape(one.name)
        said.append(
            f'<rect x="{left:.1f}" y="2" width="{max(right - left, 0.5):.1f}" height="{_PHASES - 4}" '
            f'style="fill:{_PHASE};stroke:rgba(128,139,153,.8);stroke-width:.6"><title>{name}, '
            f"{seconds((one.end_ns - one.begin_ns) / 1e9)}</title></rect>"
        )
        if right - left > 7 * len(one.name) + 6:
            said.append(f'<text x="{left + 4:.1f}" y="15">{name}</text>')
    return "".join(said)


def _lane(replica: Replica, top: int, most: int, first: int, last: int) -> str:
    points, floor = under_way(replica, first, last), top + _LANE
    path, height = f"M{_LEFT_EDGE + _WIDTH * points[0][0]:.1f},{floor}", 0.0
    for at, count in points:
        path += f"H{_LEFT_EDGE + _WIDTH * at:.1f}"
        height = floor - _LANE * count / most
        path += f"V{height:.1f}"
    path += f"V{floor}Z"
    return (
        f"{_name(replica.name, top + _LANE - 8)}"
        f'<path d="{path}" style="fill:{_BUSY};fill-opacity:.75"><title>{escape(replica.name)}</title></path>'
        f'<line x1="{_LEFT_EDGE}" x2="{_LEFT_EDGE + _WIDTH}" y1="{floor}" y2="{floor}" '
        'style="stroke:rgba(128,139,153,.4)"/>'
    )


def _name(name: str, baseline: int) -> str:
    short = name if len(name) <= 20 else f"{name[:9]}…{name[-10:]}"
    return f'<text x="{_LEFT_EDGE - 8}" y="{baseline}" text-anchor="end">{escape(short)}</text>'


def _axis(first: int, last: int, bottom: int) -> str:
    ends = [(0.0, "start"), (0.5, "middle"), (1.0, "end")]
    return "".join(
        f'<text x="{_LEFT_EDGE + _WIDTH * at:.0f}" y="{bottom + 14}" text-anchor="{anchor}" style="opacity:.8">'
        f"{seconds(at * (last - first) / 1e9)}</text>"
        for at, anchor in ends
    )


def _table(step: Step) -> str:
    drawn = lanes(step)
    if not drawn:
        return ""
    head = "".join(f'<th scope="col" style="{_RIGHT}">{one}</th>' for one in COLUMNS)
    rows = [cells(step, at) for at, one in enumerate(step.replicas) if one in drawn]
    body = "".join(
        f'<tr><th scope="row" style="{_LEFT}">{escape(name)}</th>'
        + "".join(f'<td style="{_RIGHT}">{escape(one)}</td>' for one in numbers)
        + "</tr>"
        for name, *numbers in rows
    )
    return (
        f'<div tabindex="0" role="region" aria-label="Replicas of step {step.step}" style="overflow-x:auto">'
        '<table style="border-collapse:collapse;width:100%;margin-top:8px;font-size:13px"><thead><tr>'
        f'<th scope="col" style="{_LEFT}">Step {step.step}</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _rules(rules: tuple[Rule, ...], step: Step) -> str:
    if not rules:
        return ""
    sides = (_LEFT, _RIGHT, f"{_LEFT};padding-left:24px")
    head = "".join(f'<th scope="col" style="{side}">{one}</th>' for side, one in zip(sides, RULE_COLUMNS, strict=True))
    body = "".join(
        f'<tr><th scope="row" style="{sides[0]}">{escape(what)}</th><td style="{sides[1]}">{escape(saves)}</td>'
        f'<td style="{sides[2]}">{escape(price)}</td></tr>'
        for what, saves, price in (rule_cells(one, step) for one in rules)
    )
    return (
        f'<p style="{_HEAD};margin-top:14px;font-size:14px">Step {step.step}, replayed with other rules</p>'
        f'<div tabindex="0" role="region" aria-label="Step {step.step} with other rules" style="overflow-x:auto">'
        f'<table style="border-collapse:collapse;width:100%;font-size:13px"><thead><tr>{head}</tr></thead>'
        f'<tbody>{body}</tbody></table></div><p style="{_SMALL}">{escape(RULE_NOTE)}</p>'
    )
