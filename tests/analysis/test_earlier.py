"""Earlier runs are read only where the run itself is: no link leads elsewhere."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.analysis.advice import advise
from probe.analysis.advice.earlier import before
from probe.runs import links
from probe.runs.links import all_within
from probe.views.panel import outlook
from probe.views.panel.looking import Looker
from tests.analysis.test_jointly import begun
from tests.analysis.test_promises import DONE, made


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose advice the one beside it carries out."""
    root = tmp_path_factory.mktemp("earlier") / "runs"
    made(root / "first").close()
    made(root / "now", balanced=True, config=DONE).close()
    for at, name in enumerate(("first", "now"), 1):
        begun(root / name, at)
    return root


def names(root: Path) -> list[str]:
    with probe.open(root / "now") as now:
        return [one.name for one in before(now)]


def test_16_2_a_run_beside_it_is_read_and_one_that_a_link_leads_to_is_not(both: Path, tmp_path: Path) -> None:
    assert names(both) == ["first"]
    root = tmp_path / "runs"
    shutil.copytree(both / "now", root / "now")
    shutil.copytree(both / "first", tmp_path / "elsewhere")
    (root / "first").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert names(root) == []
    (root / "first").unlink()
    shutil.move(tmp_path / "elsewhere", root / "first")
    assert names(root) == ["first"]
    (tmp_path / "way").symlink_to(root, target_is_directory=True)
    assert names(tmp_path / "way") == ["first"]  # on the way to both of them


@pytest.mark.parametrize("which", ["run.json", "rank-*.jsonl"])
def test_16_2_a_run_whose_files_are_elsewhere_is_not_read(both: Path, tmp_path: Path, which: str) -> None:
    root, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    shutil.copytree(both, root)
    shutil.copytree(both / "first", root / "second")
    elsewhere.mkdir()
    moved = next(iter((root / "second").glob(which)))
    shutil.move(moved, elsewhere / moved.name)
    moved.symlink_to(elsewhere / moved.name)
    assert names(root) == ["first"]
    moved.unlink()
    shutil.move(elsewhere / moved.name, moved)
    assert names(root) == ["second", "first"]


def test_16_2_a_link_within_the_directory_leads_nowhere_else_and_too_many_entries_are_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "file").write_text("")
    (tmp_path / "runs" / "a" / "link").symlink_to(tmp_path / "runs" / "file")
    assert all_within(tmp_path / "runs" / "a", [tmp_path / "runs"])
    assert not all_within(tmp_path / "runs" / "a", [tmp_path / "runs" / "a"])
    monkeypatch.setattr(links, "MOST_ENTRIES", 0)
    assert not all_within(tmp_path / "runs" / "a", [tmp_path / "runs"])


@pytest.mark.slow
def test_16_2_without_leave_nothing_beside_the_run_is_read(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    whole = Path.iterdir

    def listed(self: Path) -> Any:
        asked.append(os.fspath(self))
        return whole(self)

    with probe.open(both / "now") as now:
        advice = advise(now)
        monkeypatch.setattr(Path, "iterdir", listed)
        alone, beside = (outlook.told(now, advice, beside=one) for one in (False, True))
    assert alone is not None
    assert beside is not None
    assert asked == [os.fspath(both)]
    assert beside["earlier"]["rows"]
    assert alone["earlier"]["rows"] == []
    told = "–  Earlier runs aren't read: they are outside the directories that are shown."
    assert alone["earlier"]["sentence"] == told
    looker = Looker(str(both / "now"), looks=(), often=(), beside=False)
    assert looker.answer({"attempt": None, "whole": True})["outlook"]["earlier"]["sentence"] == told
