"""Where things are: a local path is itself, whatever is in it, and nobody needs a home directory."""

from __future__ import annotations

import pwd
from pathlib import Path

import fsspec
import pandas as pd
import pytest

import probe
from probe.core.dataset.config import DatasetConfig
from probe.core.rl_dataset import RLHFDataset
from probe.errors import InputError
from probe.runs.place import system_of
from probe.runs.reader import Run
from probe.session import current_session, start
from probe.views.report.report import write_report
from tests.core.dataset.chat_tokenizer import chat_tokenizer

PATHS = ["job::2", "file::job", "::job", "s3::job", "a::b/job", "zip::job::3"]


def record(place: Path, step: int) -> None:
    with start("p", run_dir=place, recorders=["memory"]) as session, session.step(step):
        pass


def steps(run: Run) -> set[int]:
    return set(run.memory["step"].dropna())


@pytest.mark.parametrize("name", PATHS)
def test_f17_a_local_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    record(Path("job"), 1)  # which a chain would have opened
    with start("p", run_dir=name, recorders=["memory"]) as session, session.step(2):
        pass
    assert Path(name, "run.json").is_file()
    for given in (name, Path(name), str(Path(name).absolute())):
        with probe.open(given) as run:
            assert steps(run) == {2}


def test_f17_a_root_s_name_is_a_path_s_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with start("p", "e", root="runs::2", recorders=["memory"]) as session, session.step(3):
        pass
    with probe.open("runs::2/p/e") as run:
        assert steps(run) == {3}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # simplecache leaves its files open
def test_f17_a_chain_of_urls_stays_one(tmp_path: Path) -> None:
    record(tmp_path / "run", 4)
    system, root = system_of(f"simplecache::file://{tmp_path / 'run'}")
    assert type(system) is fsspec.get_filesystem_class("simplecache")
    assert root == str(tmp_path / "run")
    with Run(f"simplecache::file://{tmp_path / 'run'}") as run:
        assert steps(run) == {4}


# -------------------------------------------------------------------------------------------------------- without home


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a user id that nobody knows."""

    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)


@pytest.mark.usefixtures("homeless")
def test_f19_a_path_in_a_home_that_isn_t_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    here = tmp_path / "run"
    for argument, begin in (
        ("root", lambda: start("p", "e", root="~/runs")),
        ("run_dir", lambda: start("p", "e", run_dir="~/run")),
        ("upload", lambda: start("p", "e", run_dir=here, upload="~/copy")),
    ):
        with pytest.raises(InputError, match=rf"{argument}: got '~/.*no home directory.*HOME"):
            begin()
        assert current_session() is None
    record(tmp_path / "run", 1)
    with Run(tmp_path / "run") as run, pytest.raises(InputError, match=r"path: got '~/report\.html'"):
        write_report(run, "~/report.html")


@pytest.mark.usefixtures("homeless")
def test_f19_a_dataset_does_without(tmp_path: Path) -> None:
    pd.DataFrame({"prompt": [[{"role": "user", "content": "two plus two"}]]}).to_parquet(tmp_path / "rows.parquet")

    rows = RLHFDataset(str(tmp_path / "rows.parquet"), chat_tokenizer(), {"filter_overlong_prompts": False})
    assert len(rows) == 1
    assert rows[0]["input_ids"].numel() > 0
    assert "~" not in DatasetConfig.from_config({}).cache_dir
    with pytest.raises(InputError, match=r"cache_dir: got '~/mine'"):
        DatasetConfig.from_config({"cache_dir": "~/mine"})
