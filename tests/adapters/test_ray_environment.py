"""What a driver adds to the ``runtime_env`` of its job where its cluster was there before, without Ray itself."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from probe.adapters.ray_environment import for_workers, is_asked, joins, with_ours
from probe.adapters.startup import __path__ as startup
from tests.adapters.start_file import python

(START,) = startup
DRIVER = {"PROBE_RUN_DIR": "/shared/run", "PROBE_ATTEMPT": "2", "PYTHONPATH": f"{START}{os.pathsep}/theirs"}


@pytest.mark.parametrize(
    ("address", "environ", "found", "there"),
    [
        (None, {}, None, False),
        (None, {}, "10.0.0.1:6379", True),
        ("local", {}, "10.0.0.1:6379", False),
        ("local", {"RAY_ADDRESS": "10.0.0.1:6379"}, None, False),
        ("auto", {}, None, True),
        ("10.0.0.1:6379", {}, None, True),
        ("ray://10.0.0.1:10001", {}, None, True),
        (None, {"RAY_ADDRESS": "10.0.0.1:6379"}, None, True),
        ("auto", {"RAY_ADDRESS": "local"}, None, False),
    ],
)
def test_4_a_cluster_that_was_there_before_is_told_from_one_that_begins(address, environ, found, there):
    assert joins(address, environ, found) is there


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({}, True),
        ({"PROBE_RUNTIME_ENV": "off"}, False),
        ({"PROBE_RUNTIME_ENV": "on"}, True),
        ({"PROBE_RUN_DIR": ""}, False),
    ],
)
def test_4_it_is_off_where_the_user_says_so(more, asked):
    assert is_asked({**DRIVER, **more}) is asked


def test_4_it_is_off_where_probe_is(monkeypatch):
    monkeypatch.setenv("PROBE", "off")
    assert is_asked(DRIVER) is False


def test_4_what_the_program_asks_for_stays_as_it_is():
    theirs = {"pip": ["x"], "env_vars": {"PROBE_ATTEMPT": "7", "MINE": "1", "PYTHONPATH": "/own"}}
    kept = json.dumps(theirs)
    made = with_ours(theirs, DRIVER)
    assert json.dumps(theirs) == kept
    assert made == {
        "pip": ["x"],
        "env_vars": {
            "MINE": "1",
            "PROBE_ATTEMPT": "7",
            "PROBE_RUN_DIR": "/shared/run",
            "PYTHONPATH": os.pathsep.join([START, "/own"]),
        },
    }
    assert with_ours(made, DRIVER) == made


def test_4_without_a_runtime_env_of_its_own_workers_keep_the_path_that_they_have():
    made = with_ours(None, DRIVER)
    assert made["env_vars"]["PYTHONPATH"] == os.pathsep.join([START, "${PYTHONPATH}"])
    without = with_ours(None, {**DRIVER, "PYTHONPATH": "/theirs"})  # a driver that verl's plugin observes
    assert without == {"env_vars": {"PROBE_RUN_DIR": "/shared/run", "PROBE_ATTEMPT": "2"}}


def test_4_a_run_directory_is_the_same_from_wherever_a_worker_starts():
    assert with_ours(None, {"PROBE_RUN_DIR": "runs/a"})["env_vars"]["PROBE_RUN_DIR"] == str(Path("runs/a").absolute())


def test_4_what_a_submitted_job_was_given_is_not_named_again_which_ray_refuses():
    given = json.dumps({"runtime_env": {"env_vars": {"PROBE_RUN_DIR": "/a", "PYTHONPATH": "/b"}}})
    made = with_ours({"pip": []}, {**DRIVER, "RAY_JOB_CONFIG_JSON_ENV_VAR": given})
    assert made == {"pip": [], "env_vars": {"PROBE_ATTEMPT": "2"}}
    assert with_ours(None, {**DRIVER, "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}) == with_ours(None, DRIVER)


@pytest.mark.skipif(sys.platform == "win32", reason="paths of POSIX")
@pytest.mark.parametrize("behind", ["", f"{os.pathsep}/nowhere"])
def test_4_where_workers_have_no_path_the_working_directory_does_not_come_onto_it(tmp_path, behind):
    code = "import os, sys; print([os.environ['PYTHONPATH'], os.getcwd() in sys.path, 'sitecustomize' in sys.modules])"
    script = tmp_path / "scripts" / "code.py"
    script.parent.mkdir()
    script.write_text(code)
    env = {**os.environ, "PYTHONPATH": START + (behind or os.pathsep)}
    done = python(str(script), env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert eval(done.stdout) == [START + behind, False, True]


# ------------------------------------------------------------------------- by Ray's own variable, without `probe run`


def hook() -> None:
    """What a worker would call."""


def test_12_workers_get_a_hook_unless_the_job_has_one():
    name = "worker_process_setup_hook"
    assert for_workers(None, DRIVER, hook)[name] is hook
    theirs = {"pip": ["x"], "env_vars": {"MINE": "1"}}
    made = for_workers(theirs, DRIVER, hook)
    assert made == {**with_ours(theirs, DRIVER), name: hook}
    assert name not in theirs
    assert for_workers({name: "their.hook"}, DRIVER, hook)[name] == "their.hook"
    reserved = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
    assert name not in for_workers({"env_vars": {reserved: "their.hook"}}, DRIVER, hook)


@pytest.mark.parametrize(
    "submitted",
    [{"worker_process_setup_hook": "x"}, {"env_vars": {"__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR": "x"}}],
)
def test_12_a_submitted_job_keeps_the_hook_that_it_was_given(submitted):
    """Ray refuses a driver that names again what the submission named."""
    environ = {**DRIVER, "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": submitted})}
    assert "worker_process_setup_hook" not in for_workers(None, environ, hook)


def test_12_what_the_user_wants_left_alone_is_left_alone():
    theirs = {"pip": ["x"]}
    assert for_workers(theirs, {**DRIVER, "PROBE_RUNTIME_ENV": "off"}, hook) is theirs
