"""What RUN means, in every command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import fsspec
import pytest

from probe.cli import main
from probe.cli.runs import find_run
from probe.errors import InputError, RunError, RunNotFoundError
from probe.runs import finding
from tests.sample_run import write_run


def begun(place: Path, wall_ns: int) -> Path:
    """A run that began at that time."""
    write_run(place, {})
    info = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({**info, "wall_ns": wall_ns}))
    return place


def test_a_run_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = begun(tmp_path / "runs" / "p" / "e", 1)
    monkeypatch.chdir(tmp_path)
    assert find_run(str(run)) == find_run("runs/p/e") == find_run("runs/p/e/") == str(run)
    assert find_run(f"file://{run}") == str(run)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("above", ["runs/p", "runs", "."])
def test_of_several_runs_the_one_that_began_last_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], above: str
) -> None:
    begun(tmp_path / "runs" / "p" / "a", 5)
    newest = begun(tmp_path / "runs" / "p" / "b", 9)
    begun(tmp_path / "runs" / "p" / "c", 7)
    begun(newest / "parts" / "inner", 99)  # a run has no runs inside
    begun(tmp_path / "runs" / "p" / ".hidden", 99)
    monkeypatch.chdir(tmp_path)
    assert find_run(above) == str(newest)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"probe: {above} holds 3 runs; taking {newest}\n"


def test_a_run_with_a_broken_description_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = begun(tmp_path / "good", 1)
    begun(tmp_path / "bad", 9)
    (tmp_path / "bad" / "run.json").write_text("{")
    assert find_run(str(tmp_path)) == str(good)


def test_a_store_is_searched_like_a_directory(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    try:
        for name, wall_ns in (("a", 3), ("b", 2)):
            files.pipe_file(f"/bucket/project/{name}/run.json", json.dumps({"wall_ns": wall_ns}).encode())
        assert find_run("memory://bucket") == find_run("memory://bucket/project/a/") == "memory:///bucket/project/a"
        with pytest.raises(RunNotFoundError):
            find_run("memory://elsewhere")
    finally:
        files.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ("", InputError, "empty"),
        ("nowhere", RunNotFoundError, "there is nothing at 'nowhere'"),
        ("empty", RunNotFoundError, "there is no run in 'empty'"),
        ("file", RunNotFoundError, "'file' is a file"),
        ("nonsense://bucket/run", InputError, "nonsense"),
    ],
)
def test_what_is_no_run_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, error: type[Exception], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty" / "below").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(error, match=said):
        find_run(given)


def test_too_many_directories_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MOST", 5)
    for number in range(6):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(RunNotFoundError, match="more than 5 directories"):
        find_run(str(tmp_path))


def test_a_store_that_does_not_answer_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = fsspec.filesystem("memory")
    monkeypatch.setattr(type(files), "exists", lambda *_: 1 / 0)
    with pytest.raises(RunError, match="ZeroDivisionError"):
        find_run("memory://bucket")


@pytest.mark.parametrize("name", ["[a]*", "a b", "тест 🚀", "-o", "a\nb", "%7B", "a;b'c\"d", "~"])
def test_hostile_names_are_names(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = begun(tmp_path / name / "run", 1)
    assert find_run(str(run)) == str(run)
    assert find_run(str(tmp_path / name)) == str(run)
    assert main(["sql", "--format", "csv", str(tmp_path / name), "select count(*) as n from memory"]) == 0
    said = capsys.readouterr()
    assert said.out == '"n"\n0\n'


def test_a_name_that_is_no_text_is_shown_as_it_can_be(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    raw = os.fsencode(str(tmp_path)) + b"/\xff"
    try:
        os.mkdir(raw)
    except OSError:
        pytest.skip("this file system takes only text")
    with pytest.raises(RunNotFoundError, match="there is no run in"):
        find_run(os.fsdecode(raw))


@pytest.mark.parametrize("command", ["report", "open", "tail", "compact", "doctor", "sql", "export"])
def test_no_run_is_misuse_in_every_command(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"sql": ["select 1"], "export": ["--format", "csv", "-o", str(tmp_path / "out")]}.get(command, [])
    assert main([command, str(tmp_path / "nowhere"), *more]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"probe {command}: RUN: there is nothing at")
    assert not (tmp_path / "out").exists()
