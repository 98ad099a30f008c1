"""Where a run lives: names, run.json, and who writes it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.errors import InputError, InputTypeError, RunError, RunNotFoundError, SchemaVersionError
from probe.records import SCHEMA_VERSION
from probe.runs.layout import Segment, create_run, part_of, read_info, safe_name, segment_of


def test_create_run_makes_a_directory_and_describes_it(tmp_path):
    directory = create_run("grpo", "first try", root=tmp_path, config={"lr": 1e-6, "seed": None})
    assert directory == tmp_path / "grpo" / "first try"
    info = read_info(directory)
    assert (info.project, info.experiment, info.schema_version) == ("grpo", "first try", SCHEMA_VERSION)
    assert info.config == {"lr": 1e-6, "seed": None}
    assert info.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert info.wall_ns > 0
    assert "T" in info.started_at


def test_opening_an_existing_run_changes_nothing(tmp_path):
    first = create_run("p", "e", root=tmp_path, config=1)
    before = (first / "run.json").read_bytes()
    assert create_run("p", "e", root=tmp_path, config=2) == first
    assert (first / "run.json").read_bytes() == before


def test_many_ranks_at_once_write_one_run_json(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda rank: create_run("p", "e", root=tmp_path, config=rank), range(64)))
    assert set(made) == {tmp_path / "p" / "e"}
    assert read_info(made[0]).config in range(64)
    assert sorted(path.name for path in made[0].iterdir()) == ["parts", "run.json"]


def test_run_dir_and_its_variable_are_used_as_they_are(tmp_path, monkeypatch):
    assert create_run("p", run_dir=tmp_path / "here") == tmp_path / "here"
    monkeypatch.setenv("PROBE_RUN_DIR", str(tmp_path / "there"))
    assert create_run("p") == create_run("p", "e") == tmp_path / "there"
    assert create_run("p", run_dir=tmp_path / "here") == tmp_path / "here"


def test_without_an_experiment_each_run_is_new(tmp_path):
    made = [create_run("p", root=tmp_path) for _ in range(3)]
    assert len(set(made)) == 3
    assert all(path.parent == tmp_path / "p" for path in made)


@pytest.mark.parametrize("name", ["a/../../b", "..", ".", "/etc", "a\\b", "x" * 500, "\0", "-rf", "日本", "con:1"])
def test_a_name_stays_inside_and_is_kept(tmp_path, name):
    root = tmp_path / "runs"
    directory = create_run(name, name, root=root)
    assert directory.resolve().is_relative_to(root.resolve())
    assert len(directory.relative_to(root).parts) == 2
    assert not directory.name.startswith((".", "-"))
    assert read_info(directory).project == name


@settings(deadline=None)
@given(st.text(min_size=1), st.text(min_size=1))
def test_names_that_differ_stay_different(one, other):
    assert (safe_name(one) == safe_name(other)) == (one == other)
    assert "/" not in safe_name(one)


@pytest.mark.parametrize(
    ("name", "error"), [("", InputError), ("  ", InputError), (None, InputTypeError), (3, InputTypeError)]
)
def test_a_bad_project_is_named_and_nothing_is_made(tmp_path, name, error):
    with pytest.raises(error, match="project: got"):
        create_run(name, "e", root=tmp_path)
    assert not list(tmp_path.iterdir())


@dataclasses.dataclass
class _Config:
    lr: float
    path: Path


class _Odd:
    def __repr__(self):
        raise RuntimeError("no repr")


def test_a_config_of_any_shape_is_kept(tmp_path):
    endless: dict = {}
    endless["self"] = endless
    config = {
        "dataclass": _Config(math.nan, Path("/x")),
        "namespace": argparse.Namespace(a=1),
        "big": 2**80,
        "odd": _Odd(),
        "type": int,
        ("a", 1): {3},
        "endless": endless,
        "surrogate": "\ud800",
    }
    kept = read_info(create_run("p", "e", root=tmp_path, config=config)).config
    assert kept["dataclass"] == {"lr": "nan", "path": "/x"}
    assert kept["namespace"] == {"a": 1}
    assert kept["big"] == str(2**80)
    assert "RuntimeError" in kept["odd"]
    assert kept["type"] == "<class 'int'>"
    assert kept["('a', 1)"] == [3]
    assert kept["surrogate"] == "\\ud800"


def test_nothing_there_not_a_run_and_newer_are_three_errors(tmp_path):
    with pytest.raises(RunNotFoundError, match="nothing at"):
        read_info(tmp_path / "missing")
    with pytest.raises(RunError, match=r"isn't a run") as found:
        read_info(tmp_path)
    assert not isinstance(found.value, FileNotFoundError)
    newer = {"schema_version": SCHEMA_VERSION + 1, "project": ["a new shape"]}
    (tmp_path / "run.json").write_text(json.dumps(newer))
    with pytest.raises(SchemaVersionError, match=f"version {SCHEMA_VERSION + 1}.*version {SCHEMA_VERSION}"):
        read_info(tmp_path)
    with pytest.raises(SchemaVersionError):
        create_run("p", run_dir=tmp_path)
    (tmp_path / "run.json").write_text("{}}")
    with pytest.raises(RunError, match=r"run\.json"):
        read_info(tmp_path)


def test_a_root_that_is_a_file_is_a_run_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="can't be made"):
        create_run("p", "e", root=tmp_path / "file")


@given(st.integers(0, 10**7), st.integers(0, 10**5))
def test_file_names_say_rank_and_segment(rank, number):
    segment = Segment.of_rank(rank, number)
    assert segment_of(segment.name) == segment
    assert part_of(segment.part("micro_batches")) == ("micro_batches", segment)
    assert segment_of(segment.name + ".tmp") is None
    assert part_of(segment.part("memory") + ".12-ab.tmp") is None


def test_the_writer_brings_neither_torch_nor_pandas():
    code = (
        "import sys, probe.runs.writer, probe.runs.reader;"
        "print([name for name in ('torch', 'pandas', 'pyarrow', 'duckdb', 'plotly') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
