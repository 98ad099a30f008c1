"""The report's findings as a table, each with a link to what shows more of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from probe.analysis.verdict import Finding, Findings
from probe.analysis.verdict.finding import KINDS
from probe.views.report.escaping import escaped

_TONES: Final = {"alarm": "problem", "tuning": "notice", "fine": "fine", "withheld": "withheld"}


def anchors_of(found: Findings, mismatched: str, tail: str, both: str) -> dict[int, str]:
    """Where findings lead that have a section of their own, by their place.

    Args:
        found: In the run.
        mismatched: The section of rollout and training; "" where there is none.
        tail: That of the long tail, likewise.
        both: That of both sides' idle time, likewise.
    """
    sections: dict[str, tuple[str, ...]] = {"mismatch": ("mismatch", "agreement")} if mismatched else {}
    sections |= {"long-tail": ("long_tail", "rollout_ends")} if tail else {}
    sections |= {"idle": ("idle_trainer", "idle_rollout", "sides_keep_up")} if both else {}
    return {at: section for section, names in sections.items() for at, one in enumerate(found) if one.name in names}


def findings_section(found: Findings, anchors: Mapping[int, str]) -> str:
    """All findings, worst first.

    Args:
        found: In the run.
        anchors: Where findings lead that have a section of their own, by their place.
    """
    if not found.everything:
        rows = '<p class="missing">Nothing was recorded yet, so nothing was found.</p>'
    else:
        cells = "".join(_finding(one, anchors.get(at, one.topic)) for at, one in enumerate(found.everything))
        rows = (
            '<table class="findings"><thead><tr><th scope="col">How bad</th>'
            '<th scope="col">What was found</th><th scope="col">What to do</th></tr></thead>'
            f"<tbody>{cells}</tbody></table>"
        )
    return f'<section id="findings"><h2>What probe found</h2>{rows}</section>'


def _finding(one: Finding, anchor: str) -> str:
    sign, label, _ = KINDS[one.kind]
    said = "".join(
        f"<p>{escaped(part)}</p>" for part in (one.reasons, *(after.sentence for after in one.folded)) if part
    )
    advice = one.change.advice if one.change is not None else "" if one.kind == "withheld" else "See the figures."
    link = f'<a href="#{escaped(anchor)}">{escaped(advice)}</a>' if one.kind != "withheld" else escaped(advice)
    code = f"<p><code>{escaped(one.change.line)}</code></p>" if one.change is not None and one.change.line else ""
    return (
        f'<tr class="{_TONES[one.kind]}"><th scope="row"><span aria-hidden="true">{sign}</span> {label}</th>'
        f"<td>{escaped(one.sentence)}{said}</td><td>{link}{code}</td></tr>"
    )
