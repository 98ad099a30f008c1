"""The check of ``probe doctor`` that says what is wrong in the training, before anything else."""

from __future__ import annotations

from collections.abc import Iterator

from probe.cli.doctor_checks import Check
from probe.errors import MissingDependencyError, RunError


def finding_checks(place: str) -> Iterator[Check]:
    """Each alarm as an error, the worst first; without one, that there is none.

    Args:
        place: Path or URL of the run. One that can't be read says nothing here: other checks say why.
    """
    from probe.analysis.verdict import findings
    from probe.runs.reader import Run

    try:
        with Run(place) as run:
            found = findings(run)
    except (MissingDependencyError, RunError):
        return
    for one in found.alarms:
        change = f" {one.change.advice}" if one.change is not None else ""
        yield Check("run", f"finding: {one.name}", "error", f"{one.sentence}{change}")
    if not found.alarms:
        worth = len(found.of("tuning"))
        more = f"; {worth} worth a change: `probe findings {place}` says what" if worth else ""
        unjudged = f". {found.unjudged}" if found.unjudged else ""
        yield Check("run", "findings", "ok", f"no alarm{more}{unjudged}")
