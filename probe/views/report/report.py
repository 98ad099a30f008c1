"""report.html: one run as one file that opens anywhere, with no network and no kernel.

Everything is inside: the words and tables as plain HTML, which are readable without a script, and the
figures as plotly JSON beside one packed copy of plotly.js. Text that came from a user is escaped wherever
it goes; the page's own policy forbids every script but its own.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pandas as pd

from probe._io import expanded, write_atomically
from probe.analysis import overview
from probe.analysis.post_mortem import post_mortem
from probe.analysis.verdict import findings
from probe.dashboards import dashboards
from probe.errors import InputError, RunError
from probe.runs.reader import Run
from probe.views.report import samples
from probe.views.report.findings import anchors_of, findings_section
from probe.views.report.header import footer, header, page_title
from probe.views.report.keeping import kept_part
from probe.views.report.page import page, plotly_packed
from probe.views.report.panels import board_section, draw_panel
from probe.views.report.sections import (
    advice_section,
    end_section,
    idle_section,
    long_tail_section,
    mismatch_section,
    numbers_section,
    tokens_section,
)
from probe.views.report.tiles import tiles_section, unjudged


def write_report(run: Run | str | os.PathLike[str], path: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of ``run``.

    Args:
        run: A reader, or the run directory.
        path: The file; None writes ``report.html`` into the run directory.

    Returns:
        The absolute path of the file, which is complete: it is written aside and renamed.

    Raises:
        InputError: No path was given, and the run is at a URL.
        RunError: The file can't be written.
    """
    if not isinstance(run, Run):
        with Run(run) as opened:
            return write_report(opened, path)
    if path is None and "://" in str(run.path):
        raise InputError(f"path: got None for the run at {run.path}, expected a local file to write")
    target = expanded("path", Path(run.path) / "report.html" if path is None else path).absolute()
    try:
        # A lone surrogate, as a broken file name may bring, has no UTF-8.
        write_atomically(target, report_html(run).encode("utf-8", errors="replace"))
    except OSError as error:
        raise RunError(f"path: the report can't be written to {target}: {error}") from error
    return target


def report_html(run: Run) -> str:
    """The report of ``run`` as one HTML document."""
    # Packing plotly.js takes a third of a second and not the interpreter, so it goes on beside all else.
    with ThreadPoolExecutor(1) as beside, run.asked_often():
        beside.submit(plotly_packed)
        return _html(cast("Run", _Once(run)))


def _html(run: Run) -> str:
    drawn = {panel.id: draw_panel(panel, run) for board in dashboards() for panel in board.panels}
    mortem, found, numbers = post_mortem(run), findings(run), kept_part(run, "numbers", lambda: numbers_section(run))
    tokens, mismatched, answers = tokens_section(run), mismatch_section(run), samples.section(run, found)
    tail, both = long_tail_section(run), idle_section(run)
    anchors = anchors_of(found, mismatched, tail, both) | answers.anchors
    main = [
        "<main>",
        findings_section(found, anchors),
        tiles_section(unjudged(overview.numbers(run), found)),
        numbers,
        end_section(mortem),
        kept_part(run, "advice", lambda: advice_section(run)),
        tokens,
        mismatched,
        answers.html,
        tail,
        both,
        *(board_section(board, drawn) for board in dashboards()),
        "</main>",
    ]
    # The header says which files all of it came upon as damaged.
    sections = {
        "post-mortem": ("Its end", mortem.happened),
        "numbers": ("Numbers", bool(numbers)),
        "ledger": ("Tokens taught", bool(tokens)),
        "mismatch": ("Rollout and training", bool(mismatched)),
        "samples": ("Answers", bool(answers.html)),
        "long-tail": ("Long tail", bool(tail)),
        "idle": ("Who waits", bool(both)),
    }
    links = {anchor: title for anchor, (title, there) in sections.items() if there}
    body = "\n".join([header(run, links), *main, footer(run)])
    data = {panel: one.options for panel, one in drawn.items() if one.options}
    return page(page_title(run), body, data)


class _Once:
    """A run that answers each question once: findings, tiles and panels ask much the same."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._answers: dict[tuple[str, int | None], pd.DataFrame] = {}

    def sql(self, query: str, *, keep: bool = True, since: int | None = None) -> pd.DataFrame:
        asked = query, since
        if asked not in self._answers:
            self._answers[asked] = self._run.sql(query, keep=keep, since=since)
        return self._answers[asked].copy()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)
