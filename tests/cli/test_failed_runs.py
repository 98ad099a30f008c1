"""A run that an exception has ended is "failed" wherever it is shown."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from probe.cli import main
from probe.live.feed import Feed
from probe.runs.files import RunFiles
from probe.runs.now import failed, now
from probe.runs.outcome import Outcome

SCRIPT = textwrap.dedent("""
    import os, signal, sys
    import probe
    from probe.testing import FakeDevice  # which needn't import torch
    how = sys.argv[2]
    session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, recorders=["memory"], device=FakeDevice())
    with session.step(1), probe.phase("update"):
        pass
    if how == "exits with":
        with session, session.step(2):
            sys.exit(3)
    try:
        with session.step(2), probe.phase("update"):
            if how == "killed":
                session.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "ctrl-c":
                raise KeyboardInterrupt
            if how == "exits":
                sys.exit(3)
            if how != "well":
                raise ValueError("no")
    except ValueError:
        if how == "raises":
            raise
    if how == "goes on":
        with session.step(3):
            pass
""")


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The run that ended so, in a folder with no other; each is made once."""
    made = {}

    def run(how):
        if how not in made:
            made[how] = str(tmp_path_factory.mktemp("ended") / "a" / "run")
            command = [sys.executable, "-c", SCRIPT, made[how], how]
            subprocess.run(command, capture_output=True, check=False)
        return made[how]

    return run


@pytest.fixture
def probe_says(capsys):
    def told(*arguments):
        main([*arguments])
        return capsys.readouterr().out

    return told


@pytest.mark.slow
def test_5_a_run_that_ended_by_an_exception_is_failed_in_tail_and_list(ended, probe_says):
    run = ended("raises")
    last = probe_says("tail", run).splitlines()[-1]
    assert last.startswith("failed: an exception has ended rank 0")
    assert json.loads(probe_says("tail", run, "--json").splitlines()[-1])["state"] == "failed"
    (listed,) = json.loads(probe_says("list", str(Path(run).parents[1]), "--json"))["runs"]
    assert listed["failed"] == ["rank 0"]
    assert ", failed" in probe_says("list", str(Path(run).parents[1]))


@pytest.mark.parametrize(("how", "fails"), [("well", False), ("raises", True), ("stops", True), ("goes on", False)])
def test_5_what_ends_a_run_is_what_left_the_process_or_its_last_step(ended, how, fails):
    files = RunFiles(ended(how))
    (found,) = now(files)
    assert (found.failed, found.closed) == (fails, not fails)
    assert bool(failed(files)) is fails


def test_5_the_panel_s_feed_says_who(ended):
    feed = Feed(ended("raises"))
    feed.open()
    assert feed.finished()
    assert feed.outcome() == Outcome("failed", ("rank 0",))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "word"),
    [
        ("well", "finished"),
        ("killed", "killed"),
        ("ctrl-c", "interrupted"),
        ("exits", "exited with code 3"),
        ("exits with", "exited with code 3"),
    ],
)
def test_5_tail_list_doctor_and_the_panel_say_how_a_run_ended_in_the_same_words(ended, probe_says, quick, how, word):
    run = ended(how)
    state = json.loads(probe_says("tail", run, "--json").splitlines()[-1])["state"]
    (listed,) = json.loads(probe_says("list", str(Path(run).parents[1]), "--json"))["runs"]
    checks = json.loads(probe_says("doctor", run, "--json"))["checks"]
    (end,) = [one for one in checks if (one["area"], one["name"]) == ("run", "end")]
    feed = Feed(run)
    feed.open()
    assert (state, listed["ended"]) == (word.split()[0], word)
    assert end["message"].startswith(word.split()[0])
    assert word.partition(" ")[2] in end["message"]
    assert feed.outcome().short == word
    if how == "killed":  # the real path, to be pasted
        assert f"probe.open({run!r}).post_mortem()" in end["message"]
