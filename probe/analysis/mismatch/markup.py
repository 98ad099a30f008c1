"""The mismatch as a piece of HTML that stands in a notebook's cell and in the report.

Its figure has a line for an answer and a cell for a token: orange is less likely in training than in the rollout, blue
more likely, and noise has no colour. It brings its own few colours, which show on light and on dark.
"""

from __future__ import annotations

from html import escape
from typing import Final, Protocol

import numpy as np

from probe.analysis.mismatch.excluded import Considered, cause_lines
from probe.analysis.mismatch.judgement import Judgement
from probe.analysis.mismatch.lines import VIEWS, Line, WorstToken, short
from probe.analysis.mismatch.measures import Measures
from probe.analysis.mismatch.tokens import NOT_KNOWN, Tokens
from probe.analysis.withheld import Withheld
from probe.text import UNKNOWN, count, percent

_LESS, _MORE = "208,112,20", "58,116,220"
_UNCOUNTED: Final = "repeating-linear-gradient(45deg,rgba(128,139,153,.55) 0 1px,transparent 1px 4px)"
_NOISE: Final = "rgba(128,139,153,.14)"

#: Differences below the first have no colour, those from the second on the fullest.
_FROM, _TO = 0.1, 2.0
#: Answers and tokens that are drawn.
_ANSWERS, _TOKENS = 12, 96

_HEAD: Final = "margin:0 0 6px;font-size:16px;line-height:1.5;font-weight:600"
_NOTE: Final = "margin:0 0 8px;opacity:.85"
_SMALL: Final = "margin:6px 0 0;font-size:12px;opacity:.8"
_LEFT: Final = "padding:3px 12px 3px 0;text-align:left;border-top:1px solid rgba(128,139,153,.3);font-weight:400"
_RIGHT: Final = (
    "padding:3px 0 3px 12px;text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums;"
    "border-top:1px solid rgba(128,139,153,.3)"
)
_HEADER: Final = _RIGHT.replace("nowrap", "normal")
_COLUMNS: Final = (
    "Tokens",
    "k1",
    "k2",
    "k3",
    "Effective sample",
    "Ratio < 0.5",
    "Ratio > 2",
    "Largest log ratio",
    "Confident disagreement",
)


class Shown(Protocol):
    """What is drawn, of an answer that has it."""

    tokens: Tokens
    judgement: Judgement
    measures: Measures
    withheld: tuple[Withheld, ...]

    @property
    def sentence(self) -> str:
        """What is the case."""

    @property
    def confidence(self) -> str:
        """How sure it is, in a sentence."""

    @property
    def split_sentence(self) -> str:
        """What stale weights add, in a sentence."""

    @property
    def causes(self) -> list[Considered]:
        """All causes that were looked for."""

    def lines(self, what: str) -> list[Line]:
        """The lines of a view."""

    def worst(self, many: int) -> list[WorstToken]:
        """The tokens about which rollout and training disagree most."""


def html_of(found: Shown) -> str:
    """It as one element.

    Args:
        found: What is told.
    """
    judged, said = found.judgement, []
    if judged.cause != "unknown":
        said.append(f'<p style="{_HEAD}">{escape(found.sentence)}</p>')
        notes = (judged.why, found.confidence, found.split_sentence)
        said += [f'<p style="{_NOTE}">{escape(one)}</p>' for one in notes if one]
        said.append(_causes(found))
    said += [one.to_html() for one in found.withheld]
    shown = [_figure(found), _tables(found)] if len(found.tokens.answers) else []
    body = "".join([*said, *shown])
    return (
        '<div class="probe-mismatch" style="max-width:68em;line-height:1.45;text-align:left;font-size:13px">'
        f"{body}</div>"
    )


def _causes(found: Shown) -> str:
    head = "".join(f'<th scope="col" style="{_LEFT}">{one}</th>' for one in ("Cause", "What was seen", "Is it?"))
    body = "".join(
        f'<tr><th scope="row" style="{_LEFT}">{escape(one.name)}</th><td style="{_LEFT}">{escape(one.seen)}</td>'
        f'<td style="{_LEFT}">{escape(one.word)}</td></tr>'
        for one in cause_lines(found.causes, found.judgement.explained)
    )
    return (
        "<details><summary style='cursor:pointer;margin:8px 0'>Causes that were looked for</summary>"
        '<div tabindex="0" role="region" aria-label="Causes that were looked for" style="overflow-x:auto">'
        '<table style="border-collapse:collapse;width:100%;font-size:13px">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def shown(found: Shown) -> list[int]:
    """Which answers are drawn: those that are concerned, the most different first, and some of the others.

    Args:
        found: What is told.

    Returns:
        Their places among the answers, at most twelve.
    """
    tokens = found.tokens
    size = np.bincount(
        tokens.row[tokens.compared],
        np.minimum(np.abs(tokens.log_ratio[tokens.compared]), _TO),
        minlength=len(tokens.answers),
    ) / np.maximum(np.bincount(tokens.row[tokens.compared], minlength=len(tokens.answers)), 1)
    order = np.argsort(-size, kind="stable").tolist()
    concerned = set(found.judgement.affected)
    ours, others = [one for one in order if one in concerned], [one for one in order if one not in concerned]
    kept = ours[: max(_ANSWERS - min(len(others), _ANSWERS // 3), 0)]
    middle = others[len(others) // 2 :] + others[: len(others) // 2]
    return kept + middle[: _ANSWERS - len(kept)]


def _figure(found: Shown) -> str:
    rows = shown(found)
    if not rows:
        return ""
    tokens, concerned = found.tokens, set(found.judgement.affected)
    width = min(int(tokens.lengths[rows].max()), _TOKENS)
    lines = "".join(_answer(tokens, one, width, concerned=one in concerned) for one in rows)
    many = len(tokens.answers)
    keys = (
        f'<span style="background:rgba({_LESS},.9);padding:0 6px"></span> less likely in training · '
        f'<span style="background:rgba({_MORE},.9);padding:0 6px"></span> more likely · '
        f'<span style="background:{_NOISE};padding:0 6px"></span> within {_FROM:g} · '
        f'<span style="background:{_UNCOUNTED};padding:0 6px"></span> not in the loss'
    )
    return (
        f'<div role="img" aria-label="Tokens of {len(rows)} answers, coloured by how much more likely training finds '
        f'them than the rollout. The tables below have the numbers." style="margin:4px 0">{lines}</div>'
        f'<p style="{_SMALL}">A line is an answer, a cell a token; {len(rows)} of {count(many)} answers, those that '
        f"are concerned first (●). {keys}.</p>"
    )


def _answer(tokens: Tokens, row: int, width: int, *, concerned: bool) -> str:
    begin = int(tokens.begins[row])
    inside = slice(begin, begin + min(int(tokens.lengths[row]), width))
    log_ratio, compared = tokens.log_ratio[inside].tolist(), tokens.compared[inside].tolist()
    share = 100 / width
    cells = "".join(
        f'<i style="display:inline-block;width:{share:.3f}%;height:12px;background:{_colour(one, counted)};'
        'box-shadow:inset -1px 0 rgba(128,139,153,.25)"></i>'
        for one, counted in zip(log_ratio, compared, strict=True)
    )
    mark = "● " if concerned else ""
    return (
        '<div style="display:flex;align-items:center;gap:8px;margin:1px 0">'
        f'<span style="flex:0 0 17em;font-size:11px;white-space:nowrap;overflow:hidden;text-align:right">'
        f"{mark}{escape(_name(tokens, row))}</span>"
        f'<span style="flex:1;font-size:0;white-space:nowrap">{cells}</span></div>'
    )


def _name(tokens: Tokens, row: int) -> str:
    told = []
    for name, said in (("step", "step"), ("rank", "rank"), ("weight_version", "version")):
        value = int(tokens.known(name)[row])
        if value != NOT_KNOWN:
            told.append(f"{said} {value}")
    return " · ".join(told)


def _colour(log_ratio: float, counted: bool) -> str:
    if not counted:
        return _UNCOUNTED
    if abs(log_ratio) < _FROM:
        return _NOISE
    strength = 0.25 + 0.75 * min((abs(log_ratio) - _FROM) / (_TO - _FROM), 1.0)
    return f"rgba({_LESS if log_ratio < 0 else _MORE},{strength:.2f})"


def _tables(found: Shown) -> str:
    parts = [_table("All", [Line("All tokens", found.measures)])]
    for what, title in VIEWS.items():
        lines = found.lines(what)
        if len(lines) > 1:
            parts.append(_table(title, lines[-16:]))
    quantiles = found.measures.ratio_quantiles or {}
    told = ", ".join(f"{100 * at:g} %: {short(value)}" for at, value in quantiles.items())
    note = f'<p style="{_SMALL}">Quantiles of the importance ratio, training ÷ rollout: {told}.</p>' if told else ""
    open_ = "".join(parts[1:])
    more = (
        "<details><summary style='cursor:pointer;margin:8px 0'>By turn, position, version, lag, length, rank and step, "
        f"and the worst tokens</summary>{open_}{_worst(found)}</details>"
    )
    return f"{parts[0]}{note}{more}"


def _table(title: str, lines: list[Line]) -> str:
    head = "".join(f'<th scope="col" style="{_HEADER}">{escape(one)}</th>' for one in _COLUMNS)
    body = "".join(
        f'<tr><th scope="row" style="{_LEFT}">{escape(one.label)}</th>'
        f"{''.join(map(_cell, _numbers(one.measures)))}</tr>"
        for one in lines
    )
    return (
        f'<div tabindex="0" role="region" aria-label="Mismatch: {escape(title)}" style="overflow-x:auto">'
        '<table style="border-collapse:collapse;width:100%;margin-top:8px;font-size:13px"><thead><tr>'
        f'<th scope="col" style="{_LEFT}">{escape(title)}</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _numbers(told: Measures) -> list[str]:
    return [
        count(told.tokens),
        short(told.k1),
        short(told.k2),
        short(told.k3),
        percent(told.effective_ratio),
        percent(told.below_ratio),
        percent(told.above_ratio),
        short(told.difference_largest),
        count(told.confident_tokens),
    ]


def _worst(found: Shown) -> str:
    heads = ("Step", "Rank", "Answer", "Token", "Turn", "Versions behind", "Rollout", "Training", "Log ratio", "Mark")
    head = "".join(f'<th scope="col" style="{_HEADER}">{one}</th>' for one in heads)
    body = "".join(f"<tr>{''.join(map(_cell, _of_token(one)))}</tr>" for one in found.worst(10))
    return (
        '<div tabindex="0" role="region" aria-label="The worst tokens" style="overflow-x:auto">'
        '<table style="border-collapse:collapse;margin-top:8px;font-size:13px">'
        '<caption style="text-align:left">The worst tokens</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _of_token(token: WorstToken) -> list[str]:
    places = [token.step, token.rank, token.row, token.position, token.turn, token.lag]
    numbers = [token.rollout_log_prob, token.log_prob, token.log_ratio]
    mark = "confident disagreement" if token.confident else ""
    return [UNKNOWN if one is None else str(one) for one in places] + [short(one) for one in numbers] + [mark]


def _cell(text: str) -> str:
    return f'<td style="{_RIGHT}">{escape(text)}</td>'
