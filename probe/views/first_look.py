"""What views ask of a run when they are opened, asked before anybody waits for it."""

from __future__ import annotations

import os

from probe.analysis import overview
from probe.analysis.verdict import findings
from probe.live.feed import Feed
from probe.runs.reader import Run
from probe.views.report.report import report_html


def work_out(path: str | os.PathLike[str]) -> None:
    """Have the answers of the panel's opening, of ``probe tail``'s picture, of the overview and of the report, and what
    is found in the run, kept beside the rows of a large run: see :mod:`probe.runs.answers`.

    Args:
        path: The run directory.

    Raises:
        RunError: It can't be read.
        SchemaVersionError: A newer probe wrote it.
    """
    Feed(path, sketched=False).open()
    with Run(path) as run:
        overview.numbers(run)
        with run.asked_often():  # in little memory: all of it asks for the same views
            findings(run)
        report_html(run)  # asks all that a report asks; drawing it takes less than the answers do
