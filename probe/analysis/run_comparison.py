"""Two runs side by side: their numbers, what makes them differ, their configurations, and what was found in each."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import pandas as pd

from probe.analysis.advice.promises import PROMISES, promises, said
from probe.analysis.difference import Difference, difference
from probe.analysis.difference.markup import markup
from probe.analysis.difference.parts import CAUSES
from probe.analysis.quantities import courses
from probe.analysis.verdict import Finding
from probe.analysis.verdict.finding import KINDS
from probe.analysis.verdict.verdict import LOOKS
from probe.dashboards.courses import over_run
from probe.dashboards.quantities import quantities
from probe.dashboards.spelling import spell
from probe.text import percent, rows

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from probe.runs.reader import Run

METRICS: Final = ("metric", "unit", "a", "b", "change_ratio")
CONFIG: Final = ("key", "a", "b")
FINDINGS: Final = ("about", "kind_a", "kind_b", "finding_a", "finding_b")

#: What a configuration has at a key that only the other one knows.
ABSENT: Final = "(absent)"

_NONE: Final = "Nothing is an alarm, or worth a change, in either."

_NO_PROMISES: Final = "Nothing that was advised for the first run was carried out in the second."

#: Characters of a line of text.
_WIDTH: Final = 100


@dataclass(frozen=True, repr=False)
class RunComparison:
    """What :func:`compare_runs` found. Its ``repr`` and its HTML say it.

    Attributes:
        a: Path or URL of the first run.
        b: Path or URL of the second run.
        metrics: A frame: metric, unit, a, b, and change_ratio (b ÷ a − 1; NaN where a is 0 or either is unknown).
            Quantities of the overview are those of the whole run; a metric that the trainer logged is its last value.
        config: A frame: key (dotted), a, b; only what differs.
        findings: A frame: about (what was looked at), kind_a, kind_b, finding_a, finding_b; what is an alarm or
            worth a change in either run, None where the other has none.
        difference: What makes step time, peak memory and tokens that carried policy gradient differ, cause by cause.
        promises: A frame, see :func:`probe.analysis.advice.promises.promises`: of what the advice for the first run
            promised and the second has carried out, what came.
    """

    a: str
    b: str
    metrics: pd.DataFrame
    config: pd.DataFrame
    findings: pd.DataFrame
    difference: Difference
    promises: pd.DataFrame

    def figure(self, measure: str = "step_time", *, theme: Literal["light", "dark"] = "light") -> go.Figure:
        """The waterfall of a difference.

        Args:
            measure: ``"step_time"``, ``"peak_memory"`` or ``"carried_tokens"``.
            theme: Colours of the figure.

        Raises:
            UnknownNameError: There is no such difference; ``difference.missing`` says why.
        """
        from probe.figures.waterfall import draw  # a view: who only compares never loads it

        return draw(self.difference[measure], CAUSES, theme=theme)

    def __repr__(self) -> str:
        metrics = self._spelled()
        numbers = "Neither run has any." if metrics.empty else metrics.to_string(index=False)
        settings = (
            "Both runs have the same." if self.config.empty else self.config.to_string(index=False, max_colwidth=60)
        )
        found = "\n".join(
            f"{about}\n{pair}" if about else pair
            for about, a, b in self._sides()
            for pair in [f"{_indented('a', a)}\n{_indented('b', b)}"]
        )
        told = [f"a: {self.a}\nb: {self.b}", f"Difference\n{self.difference!r}", f"Metrics\n{numbers}"]
        told.append(f"Configuration\n{settings}")
        if len(self.promises):
            told.append("\n".join(["Promises of advice", *(_filled(one) for one in said(self.promises))]))
        return "\n\n".join([*told, f"Findings\n{found or _NONE}"])

    def _repr_html_(self) -> str:
        head = f"<p>a: <code>{html.escape(self.a)}</code><br>b: <code>{html.escape(self.b)}</code></p>"
        found = pd.DataFrame(self._sides(), columns=["about", "a", "b"])
        parts = (
            ("Promises of advice", pd.DataFrame({"": said(self.promises)}), _NO_PROMISES),
            ("Metrics", self._spelled(), "Neither run has any."),
            ("Configuration", self.config, "Both runs have the same."),
            ("Findings", found, _NONE),
        )
        with pd.option_context("display.max_colwidth", None):
            body = "".join(
                f"<h4>{title}</h4>" + (f"<p>{none}</p>" if frame.empty else frame.to_html(index=False, border=0))
                for title, frame, none in parts
            )
        return f'<div class="probe-comparison">{head}<h4>Difference</h4>{markup(self.difference)}{body}</div>'

    def _sides(self) -> list[tuple[str, str, str]]:
        """Of each finding what was looked at, where that isn't the same as in the one before, and each side's."""
        told = [(str(row["about"]), _side(row, "a"), _side(row, "b")) for row in rows(self.findings)]
        before = ["", *(about for about, _, _ in told)]
        return [("" if about == last else about, a, b) for (about, a, b), last in zip(told, before, strict=False)]

    def _spelled(self) -> pd.DataFrame:
        """The metrics, each with its unit."""
        told = [
            (
                row["metric"],
                *(spell(float(row[side]), row["unit"]) for side in ("a", "b")),
                "" if math.isnan(row["change_ratio"]) else _change(row["change_ratio"]),
            )
            for row in rows(self.metrics)
        ]
        return pd.DataFrame(told, columns=["metric", "a", "b", "change"])


def compare_runs(a: Run, b: Run, *, causes: bool = True) -> RunComparison:
    """What differs between two runs: numbers, configuration, findings.

    Args:
        a: A run, such as the one before a change.
        b: What it is compared with, such as the one after it.
        causes: Whether to ask what makes them differ, and whether advice kept its promise: most of the time it takes.

    Returns:
        Frames and waterfalls, which a notebook shows one below the other.
    """
    settings = _config(a.info.config, b.info.config)
    numbers, found = metrics(a, b), _findings(a, b)
    if not causes:
        return RunComparison(
            a.path, b.path, numbers, settings, found, Difference(()), pd.DataFrame(columns=list(PROMISES))
        )
    with a.asked_often(), b.asked_often():
        made = difference(a, b)
        return RunComparison(a.path, b.path, numbers, settings, found, made, promises(a, b, made))


def metrics(a: Run, b: Run, only: Collection[str] | None = None) -> pd.DataFrame:
    """The numbers of two runs, as :attr:`RunComparison.metrics` has them.

    Args:
        a: A run.
        b: What it is compared with.
        only: Quantities that are asked for; all by default. Metrics that the trainer logged are always there.
    """
    specs = {name: spec for name, spec in quantities().items() if only is None or name in only}
    found = [courses(run, list(specs.values())) for run in (a, b)]
    told: list[tuple[str, str, float, float]] = []
    for at, (name, spec) in enumerate(specs.items()):
        one, other = [over_run(spec, side[at]) if side[at].steps else math.nan for side in found]
        told.append((name, str(spec.get("unit", "number")), one, other))
    logged = [_logged(run) for run in (a, b)]
    for key in sorted(logged[0].keys() | logged[1].keys()):
        told.append((key, "number", logged[0].get(key, math.nan), logged[1].get(key, math.nan)))
    known = [row for row in told if not (math.isnan(row[2]) and math.isnan(row[3]))]
    return pd.DataFrame([(*row, _ratio(row[2], row[3])) for row in known], columns=list(METRICS))


def _logged(run: Run) -> dict[str, float]:
    """The last value of each metric that the trainer logged."""
    frame = run.sql(
        "select key, arg_max(value, step) as value from scalars where source = 'user' and step is not null group by key"
    )
    return {str(row["key"]): float(row["value"]) for row in rows(frame)}


def _ratio(one: float, other: float) -> float:
    return other / one - 1 if one and math.isfinite(one) and math.isfinite(other) else math.nan


def _config(a: Any, b: Any) -> pd.DataFrame:
    left, right = dict(_flat(a)), dict(_flat(b))
    keys = [key for key in dict.fromkeys([*left, *right]) if left.get(key, ABSENT) != right.get(key, ABSENT)]
    told = [(key, left.get(key, ABSENT), right.get(key, ABSENT)) for key in keys]
    return pd.DataFrame(told, columns=list(CONFIG), dtype="object")


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Each value by its dotted key.

    >>> dict(_flat({"actor": {"lr": 1e-6, "betas": [0.9, 0.95]}}))
    {'actor.lr': 1e-06, 'actor.betas': [0.9, 0.95]}
    """
    if isinstance(value, Mapping) and value:
        for name, one in value.items():
            yield from _flat(one, f"{key}.{name}" if key else str(name))
    elif key or value is not None:
        yield key, value


def _findings(a: Run, b: Run) -> pd.DataFrame:
    told = []
    for look in LOOKS:
        one, other = look(a), look(b)
        for at in range(max(len(one), len(other))):
            pair = [side[at] if at < len(side) else None for side in (one, other)]
            if any(found is not None and found.kind != "fine" for found in pair):
                told.append((look.__name__.replace("_", " "), *map(_kind, pair), *map(_text, pair)))
    return pd.DataFrame(told, columns=list(FINDINGS), dtype="object")


def _kind(found: Finding | None) -> str | None:
    return None if found is None else found.kind


def _text(found: Finding | None) -> str | None:
    return None if found is None else found.sentence


def _side(row: Mapping[str, Any], side: str) -> str:
    kind, finding = row[f"kind_{side}"], row[f"finding_{side}"]
    return "nothing" if kind is None else f"{KINDS[kind][1]}: {finding}"


def _filled(text: str) -> str:
    return textwrap.fill(f"  {text}", _WIDTH, subsequent_indent="    ")


def _indented(side: str, text: str) -> str:
    return textwrap.fill(f"  {side}: {text}", _WIDTH, subsequent_indent="     ")


def _change(ratio: float) -> str:
    return f"{'+' if ratio >= 0 else '−'}{percent(abs(ratio))}"
