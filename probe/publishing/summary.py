"""The run in words: where it stands, what was found, and the labels by which it is found again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from probe.analysis import overview
from probe.analysis.verdict import Finding, Findings, findings
from probe.analysis.verdict.finding import NOTHING
from probe.publishing.across_ranks import world_size
from probe.text import visible
from probe.tracking.media import markdown_cell

if TYPE_CHECKING:
    from probe.runs.reader import Run

_HEADS: Final = {"alarm": "Alarms", "tuning": "Worth a change", "fine": "In order", "withheld": "Not judged"}
_COUNTED: Final = {"alarm": ("alarm", "alarms"), "tuning": ("thing worth a change", "things worth a change")}

_FIGURES: Final = (
    "Every panel is kept as a figure and as a table under its name, `probe/<dashboard>/<panel>`. Where a backend can't "
    "show a plotly figure (TensorBoard has no place for one) its numbers stand in the charts and tables, and the "
    "figure in the run's report."
)


#: Labels of the verdict.
VERDICT_TAGS: Final = ("probe.verdict", "probe.finding", "probe.sentence")
#: What they say where nothing is wrong.
ALL_IS_WELL: Final = "Nothing is wrong and nothing is worth a change."


def verdict_tags(found: Findings) -> dict[str, str]:
    """Labels by which runs are told apart that need somebody: what kind the worst finding is, its name and its
    sentence. They are always the same three, so that none of an earlier time stays.

    >>> verdict_tags(Findings([Finding("alarm", "hang", "Rank 0 waits for rank 1.")]))["probe.verdict"]
    'alarm'
    >>> verdict_tags(Findings([Finding("fine", "peak", "The largest peak was 9.2 GiB.")]))["probe.finding"]
    'none'
    """
    worst = next(iter(found.of("alarm", "tuning")), None)
    if worst is None:
        told = ("fine", "none", ALL_IS_WELL) if found else ("unknown", "none", NOTHING)
    else:
        told = (worst.kind, worst.name, visible(worst.sentence, lines=False))
    return dict(zip(VERDICT_TAGS, told, strict=True))


def markdown(run: Run, *, final: bool, found: Findings | None = None) -> str:
    """What was found in this run, alarms first. It begins with the most important: a backend may fold the rest.

    Args:
        run: The run to read.
        final: Whether it is over.
        found: What was found; None looks for it.
    """
    found = findings(run) if found is None else found
    newest = run.sql("select max(step) as step from scalars where source = 'probe'")["step"][0]
    step = "no step is complete" if str(newest) in ("<NA>", "nan") else f"up to step {int(newest)}"
    stands = f"{'The whole run' if final else 'So far'}, {step}; {_ranks(run)}."
    parts = [
        " ".join(one for one in (f"**{_counts(found)}**", found.unjudged, stands) if one),
        _found(found),
        "### In numbers",
        _numbers(run),
        _FIGURES,
    ]
    return "\n\n".join(parts) + "\n"


def tags(run: Run, folder: Path | None = None) -> dict[str, str]:
    """Labels of the run; what isn't known has none.

    Args:
        run: The run to read.
        folder: Where the training was started, whose git commit is told.
    """
    devices = sorted({str(name) for name in run.processes["device_name"] if name})
    hosts = sorted({str(name) for name in run.processes["host"] if name})
    known = {
        "project": run.info.project,
        "experiment": run.info.experiment or Path(run.path).name,
        "world_size": str(world_size(run)),
        "device": ", ".join(devices),
        "host": ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else ""),
        "run_directory": str(run.path),
        "git_commit": "" if folder is None else commit(folder),
        **{f"{package}_version": version for package, version in run.info.versions.items() if package != "schema"},
    }
    return {name: value for name, value in known.items() if value}


def commit(folder: Path) -> str:
    """The git commit that is checked out in ``folder``; empty where there is none, or no git."""
    git = shutil.which("git")
    if git is None:
        return ""
    command = [git, "-C", str(folder), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def _ranks(run: Run) -> str:
    expected, missing = world_size(run), run.missing_ranks
    if not missing:
        return run.written_by
    said = f"{expected} rank{'s' if expected != 1 else ''}"
    named = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
    return f"{said}, of which nothing came from {named}"


def _counts(found: Findings) -> str:
    """How many of what.

    >>> _counts(Findings([Finding("alarm", "a", "…"), Finding("tuning", "b", "…"), Finding("tuning", "c", "…")]))
    'probe found 1 alarm, 2 things worth a change.'
    >>> _counts(Findings())
    'probe found nothing wrong.'
    """
    counts = {kind: sum(one.kind == kind for one in found) for kind in _COUNTED}
    said = ", ".join(f"{count} {_COUNTED[kind][count > 1]}" for kind, count in counts.items() if count)
    return f"probe found {said or 'nothing wrong'}."


def _found(found: Findings) -> str:
    if not found.everything:
        return "Nothing was recorded yet."
    lines: list[str] = []
    for kind, head in _HEADS.items():
        told = [one for one in found.everything if one.kind == kind]
        if told:
            lines += ["", f"### {head}", "", *map(_line, told)]
    return "\n".join(lines[1:])


def _line(one: Finding) -> str:
    said = " ".join(part for part in (one.sentence, one.reasons) if part)
    if one.change is None:
        return f"* {said}"
    code = f" `{one.change.line}`" if one.change.line else ""
    return f"* {said} → *{one.change.advice}*{code}"


def _numbers(run: Run) -> str:
    rows: list[dict[str, Any]] = overview.numbers(run).to_dict("records")
    cells = [[row["title"], row["text"], row["note"]] for row in rows]
    lines = ["| | | |", "|---|---|---|", *("| " + " | ".join(map(markdown_cell, row)) + " |" for row in cells)]
    return "\n".join(lines)
