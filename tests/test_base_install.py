"""The base installation records, in an environment without pandas, plotly, duckdb and pyarrow; the views read it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pandas as pd
import pytest
from packaging.requirements import Requirement

import probe
from probe._check import VIEWS
from probe.runs.compaction import compact
from probe.runs.reader import NAMES, Run
from tests import lean_environment
from tests.once import once

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="session")
def lean(tmp_path_factory):
    return once(tmp_path_factory, "lean", lean_environment.make)


def run_there(lean, *command, cwd):
    told = {"capture_output": True, "text": True, "env": lean_environment.environment(), "cwd": cwd, "check": False}
    return subprocess.run([str(lean / "env" / "bin" / command[0]), *map(str, command[1:])], **told)


@pytest.fixture(scope="session")
def trained(lean, tmp_path_factory):
    """A folder in which a training was recorded there, in ``run``, with what the process said."""

    def train(folder):
        done = run_there(lean, "python", "-c", TRAIN, cwd=folder)
        (folder / "said.json").write_text(json.dumps([done.returncode, done.stderr]))

    return once(tmp_path_factory, "trained", train)


def test_8_what_only_views_need_is_an_extra_of_its_own():
    def named(requirements):
        return {re.split(r"[<>=\[ ]", one)[0] for one in requirements}

    assert named(PROJECT["optional-dependencies"]["views"]) == set(VIEWS.values())
    assert named(PROJECT["dependencies"]).isdisjoint(VIEWS.values())
    assert all("<" not in one and "==" not in one and "~" not in one for one in PROJECT["dependencies"])
    for extra in ("notebook", "demo", "dev", "all"):  # where people look
        assert any("views" in one for one in PROJECT["optional-dependencies"][extra]), extra


def brought(requirements):
    """Names of all that pip installs for ``requirements``, by what is installed here."""
    found, left = set(), [Requirement(one) for one in requirements]
    while left:
        one = left.pop()
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        if name in found or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        left += [Requirement(inner) for inner in metadata.requires(one.name) or []]
    return found


def test_8_the_base_installation_brings_four_packages_beside_torch_and_tensordict():
    base = brought(PROJECT["dependencies"])
    assert base - brought(["torch"]) - brought(["tensordict"]) <= {"msgspec", "packaging", "psutil", "safetensors"}
    views = brought([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["views"]])
    assert len(views - base) >= 8  # what a training environment is spared


@pytest.mark.slow
def test_8_the_base_installation_is_whole_without_the_views(lean):
    python = lean_environment.python_of(lean)
    assert "No broken requirements found" in lean_environment.pip(sys.executable, "--python", str(python), "check")
    names = sorted([*VIEWS, "ipywidgets", "anywidget", "IPython"])
    code = f"import importlib.util as u; print([one for one in {names} if u.find_spec(one) is not None])"
    done = run_there(lean, "python", "-c", code, cwd=lean)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


TRAIN = """
import sys
import torch
import probe

model = torch.nn.Embedding(100, 1)

@probe.watch(role="actor")
def update_actor(batch):
    for mb in probe.micro_batches(batch, max_token_len=256):
        (model(mb["input_ids"])[..., 0] * mb["attention_mask"]).sum().backward()

with probe.start("lean", run_dir="run", rank=0, world_size=1, track="console,file") as session:
    for step in range(3):
        with session.step(step):
            mask = (torch.arange(64) < torch.randint(1, 65, (16, 1))).long()
            update_actor({"input_ids": mask * 7, "attention_mask": mask})
        session.log({"loss": 1 / (step + 1)}, step)
"""

MANY = """
import os, platform, time
from probe.hooks import current_scope
from probe.records import Process, Scalar
from probe.runs.layout import create_run
from probe.runs.writer import RunWriter

now = time.monotonic_ns()
row = Process(time_ns=now, wall_ns=time.time_ns(), pid=os.getpid(), world_size=1, host=platform.node())
writer = RunWriter(create_run("lean", run_dir="many"), rank=0, process=row, roll_over_bytes=20_000, interval_s=0.001)
for number in range(2_000):
    writer.add_rows(Scalar(key="number", value=float(number), step=number), current_scope(), time.monotonic_ns())
    if number % 100 == 0:
        assert writer.flush()
        time.sleep(0.01)
writer.close()
"""


@pytest.mark.slow
def test_8_a_training_without_the_views_is_recorded_and_they_read_it(trained, tmp_path):
    said = json.loads((trained / "said.json").read_text())
    assert said == [0, f"probe: file: {trained}/run/metrics.jsonl\n"]
    assert list((trained / "run").glob("parts/*")) == []
    shutil.copytree(trained / "run", tmp_path / "run")  # looking at a run may leave answers there
    with Run(tmp_path / "run") as run:
        assert run.incidents.empty
        assert run.bad_lines == 0
        found = run.sql("select count(distinct step) as steps, sum(tokens) as tokens from micro_batches")
        assert found["steps"][0] == 3
        valid = run.sql("select sum(valid_tokens) as n from (select distinct batch_id, valid_tokens from padding)")
        assert found["tokens"][0] == valid["n"][0] > 0
        loss = run.scalars.query("key == 'loss'")
        assert loss["value"].tolist() == [1.0, 0.5, 1 / 3]


@pytest.mark.slow
def test_8_files_end_and_lines_stay_lines_where_parquet_can_t_be_written(lean, tmp_path):
    done = run_there(lean, "python", "-c", MANY, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    place = tmp_path / "many"
    assert len(list(place.glob("rank-00000*.jsonl"))) > 3
    assert list(place.glob("parts/*")) == []
    with Run(place) as run:
        before = {name: run.table(name) for name in NAMES}
        assert run.incidents.empty
        assert before["scalars"]["value"].tolist() == list(range(2_000))
    assert compact(place).rows > 2_000  # where pyarrow is, all of it becomes Parquet
    assert list(place.glob("*.jsonl")) == []
    with Run(place) as run:
        for name in NAMES:
            pd.testing.assert_frame_equal(run.table(name), before[name])


LOOKS = """
import probe
session = probe.start("lean", run_dir="session", rank=0, track="file")
for look in (lambda: probe.open("run"), lambda: probe.Run("run"), lambda: session.run, session.panel,
             lambda: probe.findings(None), lambda: probe.write_report):
    try:
        look()
    except probe.errors.MissingDependencyError as error:
        print(error)
session.close()
try:
    probe.start("lean", run_dir="other", track="file", publish=True)
except probe.errors.MissingDependencyError as error:
    print(error)
"""

COMMANDS = """
import contextlib, io, json, sys
from probe.cli import main
told = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(command)
    told.append([code, said.getvalue()])
print(json.dumps(told))
"""


@pytest.mark.slow
def test_8_what_only_the_views_can_do_says_what_to_install(lean, trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run")
    cure = "install it with: pip install 'probe-rl[views]'"
    done = run_there(lean, "python", "-c", f"import probe.errors{LOOKS}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 7
    assert all(line.endswith(cure) for line in lines), lines
    assert not (tmp_path / "other").exists()
    commands = ("tail", "findings", "report", "export", "compact", "open", "sql")
    asked = {"export": ["--format", "csv", "-o", "there"], "sql": ["select 1"]}
    told = json.loads(run_there(lean, "python", "-c", COMMANDS, json.dumps(
        [*([one, "run", *asked.get(one, [])] for one in commands), ["demo"]]), cwd=tmp_path).stdout)  # fmt: skip
    *others, (_, demo) = told
    for command, (code, said) in zip(commands, others, strict=True):
        assert code == 1, command
        assert said.startswith(f"probe {command}: "), said
        assert said.endswith(f"{cure}\n"), said
    assert demo.endswith("install it with: pip install 'probe-rl[demo]'\n"), demo
    done = run_there(lean, "probe", "tail", "run", cwd=tmp_path)  # as a person calls it
    assert (done.returncode, done.stderr) == tuple(others[0])


@pytest.mark.slow
def test_8_doctor_looks_at_an_installation_that_only_records(lean, trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run")
    done = run_there(lean, "probe", "doctor", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a session of one step was read back: 3 calls" in done.stdout
    assert "not installed: " in done.stdout
    assert "warning run, opens: reading a run needs the package" in done.stdout
    assert "no errors, 1 warning" in done.stdout


def test_8_without_the_views_numbers_go_to_a_backend_and_figures_don_t(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("probe.session.outlets.missing_view", lambda: "pandas")
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1, track="tensorboard") as session:
        assert session.publisher is None
        session.log({"loss": 1.0}, 0)
    assert (
        "figures aren't published: pandas isn't installed; install it with: pip install 'probe-rl[views]'"
        in caplog.text
    )
    assert list((tmp_path / "run" / "tensorboard").rglob("events*"))
