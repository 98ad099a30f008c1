"""5: a report says what ended its run, where something did."""

from __future__ import annotations

from pathlib import Path

import pytest

import probe
from probe.runs.reader import Run
from probe.views.report.report import report_html
from tests.views.test_report import Page
from tests.zoo.planting import planted

MARKUP = '</pre></details><img src=x onerror="window.hacked=1"><script>x</script>'


def report(path: Path) -> Page:
    with Run(path) as run:
        return Page(report_html(run))


def test_5_the_report_of_a_run_that_failed_says_what_ended_it(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    page = report(planted(tmp_path_factory, "raises", tmp_path / "run"))
    assert "What ended this run" in page.words
    for part in ("attempt 1 · step 6", "In this order", "Where each process was", "Last rows of rank-00001"):
        assert part in page.words
    assert ("a", {"href": "#post-mortem"}) in page.tags
    assert ("section", {"id": "post-mortem"}) in page.tags


def test_5_an_exception_s_text_is_no_markup_of_the_report(tmp_path: Path) -> None:
    with (
        probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session,
        pytest.raises(ValueError, match="hacked"),
        session.step(1),
        probe.phase(MARKUP),
    ):
        raise ValueError(MARKUP) from KeyError(MARKUP)
    page = report(tmp_path / "run")  # its tags are balanced
    assert "What ended this run" in page.words
    assert "img" not in {tag for tag, _ in page.tags}
    assert "window.hacked=1" in page.words


def test_5_the_report_of_a_run_that_ended_well_has_no_such_section(tmp_path: Path) -> None:
    with (
        probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session,
        session.step(1),
        probe.phase("update"),
    ):
        pass
    page = report(tmp_path / "run")
    assert "What ended this run" not in page.words
    assert ("section", {"id": "post-mortem"}) not in page.tags
