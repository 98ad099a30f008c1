"""What is left unsent is sent without going on with the run: to whom, with which exit code, and to nobody else."""

from __future__ import annotations

import pytest

from probe.tracking.backends.base import Backend
from probe.tracking.journal import Journal, unsent
from probe.tracking.recovery import recover
from probe.tracking.reports import Reports
from probe.tracking.state import State

#: What backends were asked to do: (which, what, with what).
asked: list[tuple[str, str, object]] = []


class WithStatus(Backend):
    """A backend whose runs have a status."""

    def __init__(self, setup):
        self.setup = setup
        self._ask("open", setup.project)

    def _ask(self, what, content):
        asked.append((type(self).__name__, what, content))

    def log(self, values, step):
        self._ask("log", step)

    def describe(self, markdown):
        self._ask("describe", markdown)

    def close(self, exit_code):
        self._ask("close", exit_code)


class Plain(WithStatus):
    """One whose runs have none."""

    status = False


WITH_STATUS, PLAIN = (f"{__name__}:{kind.__name__}" for kind in (WithStatus, Plain))


@pytest.fixture(autouse=True)
def nothing_asked_yet():
    asked.clear()


def left_behind(place, *, steps=0, sent=None, said=None, **ended):
    """What a process leaves in its run's directory: ``steps`` calls, of which the backends in ``sent`` have so many."""
    names = [WITH_STATUS, PLAIN]
    State(place, "run").write({"project": "p", "experiment": "e", "backends": names, "exit_code": None, **ended})
    journal = Journal(place, names, set(names), Reports(None), 100)
    for step in range(steps):
        journal.append(step, 1, None, {"x": 1.0}, {})
    for name in names:
        journal.note(name, (sent or {}).get(name, steps))
    journal.close()
    if said is not None:
        State(place, "notes").write({"describe": said})
    return place


def test_a_killed_run_gets_its_status_from_those_that_have_one(tmp_path):
    left_behind(tmp_path, steps=3)
    assert recover(tmp_path) == {}
    assert asked == [("WithStatus", "open", "p"), ("WithStatus", "close", 1)]


def test_once_it_has_its_status_nobody_is_asked_again(tmp_path):
    left_behind(tmp_path, steps=3)
    recover(tmp_path)
    asked.clear()
    assert recover(tmp_path) == {}
    assert asked == []


@pytest.mark.parametrize("exit_code", [0, 3])
def test_a_run_that_ended_while_a_backend_was_away_keeps_its_exit_code(exit_code, tmp_path):
    left_behind(tmp_path, exit_code=exit_code, complete=[PLAIN])
    assert recover(tmp_path) == {}
    assert asked[-1] == ("WithStatus", "close", exit_code)


def test_a_backend_that_was_closed_in_order_and_has_everything_is_left_alone(tmp_path):
    left_behind(tmp_path, steps=2, exit_code=0, complete=[WITH_STATUS, PLAIN])
    before = State(tmp_path, "run").read()
    assert recover(tmp_path) == {}
    assert asked == []
    assert State(tmp_path, "run").read() == before


@pytest.mark.parametrize("name", [WITH_STATUS, PLAIN])
def test_the_calls_that_a_backend_lacks_are_sent_to_it_alone(name, tmp_path):
    left_behind(tmp_path, steps=3, sent={name: 1}, exit_code=0, complete=[WITH_STATUS, PLAIN])
    assert unsent(tmp_path) == {name: 2}
    assert recover(tmp_path) == {}
    assert [(what, content) for _, what, content in asked] == [("open", "p"), ("log", 1), ("log", 2), ("close", 0)]
    assert {kind for kind, _, _ in asked} == {name.rpartition(":")[2]}


def test_what_was_said_of_the_run_is_said_to_those_that_never_heard_it(tmp_path):
    left_behind(tmp_path, said="words", exit_code=0, complete=[WITH_STATUS, PLAIN])
    recover(tmp_path)
    assert [one for one in asked if one[1] == "describe"] == [
        ("WithStatus", "describe", "words"),
        ("Plain", "describe", "words"),
    ]
    asked.clear()
    recover(tmp_path)
    assert asked == []


def test_a_run_whose_process_is_still_there_is_left_alone(tmp_path):
    left_behind(tmp_path, steps=3, sent={PLAIN: 1})
    journal = Journal(tmp_path, [PLAIN], {PLAIN}, Reports(None), 100)
    assert recover(tmp_path) == {PLAIN: 2}
    journal.close()
    assert asked == []


def test_a_directory_of_which_nothing_is_known_is_left_alone(tmp_path):
    left_behind(tmp_path, steps=3, sent={PLAIN: 1})
    (tmp_path / "tracking" / "run.json").unlink()
    assert recover(tmp_path) == {PLAIN: 2}
    assert recover(tmp_path / "nowhere") == {}
    assert asked == []
