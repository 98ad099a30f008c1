"""The run in words: where it stands, what was found, and the labels by which it is found again."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from probe.analysis import overview
from probe.analysis.findings import findings
from probe.publishing.across_ranks import world_size
from probe.tracking.media import markdown_cell

if TYPE_CHECKING:
    from probe.runs.reader import Run

_HEADS: Final = {"problem": "Problems", "notice": "Worth a look", "fine": "In order"}
_COUNTED: Final = {"problem": ("problem", "problems"), "notice": ("thing worth a look", "things worth a look")}

_FIGURES: Final = (
    "Every panel is kept as a figure and as a table under its name, `probe/<dashboard>/<panel>`. Where a backend can't "
    "show a plotly figure (TensorBoard has no place for one) its numbers stand in the charts and tables, and the "
    "figure in the run's report."
)


def markdown(run: Run, *, final: bool) -> str:
    """What was found in this run, problems first. It begins with the most important: a backend may fold the rest."""
    rows: list[dict[str, Any]] = findings(run).to_dict("records")
    newest = run.sql("select max(step) as step from scalars where source = 'probe'")["step"][0]
    step = "no step is complete" if str(newest) in ("<NA>", "nan") else f"up to step {int(newest)}"
    parts = [
        f"**{_counts(rows)}** {'The whole run' if final else 'So far'}, {step}; {_ranks(run)}.",
        _found(rows),
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
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603  (git's own path)
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


def _counts(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many of what.

    >>> _counts([{"severity": "problem"}, {"severity": "notice"}, {"severity": "notice"}]), _counts([])
    ('probe found 1 problem, 2 things worth a look.', 'probe found nothing wrong.')
    """
    counts = {kind: sum(row["severity"] == kind for row in rows) for kind in _COUNTED}
    said = ", ".join(f"{count} {_COUNTED[kind][count > 1]}" for kind, count in counts.items() if count)
    return f"probe found {said or 'nothing wrong'}."


def _found(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "Nothing was recorded yet."
    lines: list[str] = []
    for severity, head in _HEADS.items():
        told = [row for row in rows if row["severity"] == severity]
        if told:
            lines += ["", f"### {head}", ""]
            lines += [f"* {row['finding']} → *{row['advice']}*" for row in told]
    return "\n".join(lines[1:])


def _numbers(run: Run) -> str:
    rows: list[dict[str, Any]] = overview.numbers(run).to_dict("records")
    cells = [[row["title"], row["text"], row["note"]] for row in rows]
    lines = ["| | | |", "|---|---|---|", *("| " + " | ".join(map(markdown_cell, row)) + " |" for row in cells)]
    return "\n".join(lines)
