"""The base class of backends, and a user's own class that doesn't derive from it."""

from __future__ import annotations

import inspect
import time

import pytest

from probe.errors import BackendError
from probe.tracking.backends import BACKENDS, backend_class, load_backend, open_backend
from probe.tracking.backends.base import (
    NOTES,
    Backend,
    Setup,
    UnreachableError,
    Values,
    adapted,
    adapted_class,
    own_object,
    wall_ns_of,
)
from probe.tracking.late import Late
from probe.tracking.media import KINDS, Text
from probe.tracking.notes import Notes


class Least(Backend):
    """What a backend must have, and nothing else."""

    def __init__(self, setup=None):
        self.calls = []

    def log(self, values, step):
        self.calls.append((step, dict(values)))

    def close(self, exit_code):
        self.calls.append(exit_code)


class Own:
    """A user's own class."""

    shows = frozenset({"text"})
    directories = True

    def __init__(self, setup=None):
        self.calls = []
        self.location = "first"

    @classmethod
    def reach(cls, directory):
        return "reachable", f"nobody at {directory}"

    @staticmethod
    def clean(name):
        return name.upper()

    def log(self, values, step):
        self.calls.append((step, dict(values)))

    def tag(self, tags):
        self.calls.append(tags)

    def close(self, exit_code):
        self.calls.append(exit_code)


def test_what_a_backend_does_not_override_does_nothing_and_is_not_asked_for():
    one = Least()
    one.params({"lr": 1})
    one.describe("words")
    one.tag({})
    one.layout({})
    one.flush()
    one.show("a", Text("words"), 1, 2)
    assert one.calls == []
    assert one.missing({"x": 1.0}, 3) == {"x": 1.0}
    one.log_many([({"x": 1.0}, 1), ({"x": 2.0}, 2)])
    assert one.calls == [(1, {"x": 1.0}), (2, {"x": 2.0})]
    assert not any(one.takes(method) for method in (*NOTES, "flush", "show", "log_many", "missing"))
    assert (one.reach(None), one.clean("a/b"), one.location, one.run_id) == (("", ""), "a/b", "", "")
    assert [name for kind in NOTES for name in Notes(None, {"one": one}).takers(kind)] == []


def test_every_built_in_backend_derives_from_it():
    assert all(issubclass(load_backend(name), Backend) for name in BACKENDS)
    assert all(backend_class(name) is load_backend(name) for name in BACKENDS)


def test_every_member_says_what_it_is_for():
    members = {name: getattr(Backend, name) for name in vars(Backend) if not name.startswith("_")}
    attributes = {name for name, one in members.items() if not callable(one)}
    described = inspect.getdoc(Backend).partition("Attributes:")[2]
    assert {name for name in attributes if f"    {name}: " not in described} == set()
    assert {name for name in set(members) - attributes if not inspect.getdoc(members[name])} == set()


def test_a_class_without_its_two_methods_is_no_backend():
    class Mute(Backend):
        def __init__(self, setup): ...

    with pytest.raises(TypeError, match="abstract"):
        Mute(None)
    with pytest.raises(BackendError, match="log and close"):
        adapted(object(), "mute")
    with pytest.raises(BackendError, match="log and close"):
        open_backend("builtins:repr", Setup("p", "e", None, print))


def test_a_users_own_object_is_asked_for_what_it_has_and_for_nothing_else():
    own = Own()
    one = adapted(own)
    assert adapted(one) is one
    assert own_object(one) is own
    assert (own_object(least := Least()), adapted(least)) == (least, least)
    one.log({"x": 1.0}, 1)
    one.log_many([({"x": 2.0}, 2)])
    one.tag({"a": "b"})
    one.describe("nobody hears this")
    one.flush()
    one.close(3)
    assert own.calls == [(1, {"x": 1.0}), (2, {"x": 2.0}), {"a": "b"}, 3]
    assert [method for method in (*NOTES, "flush", "log_many", "missing") if one.takes(method)] == ["tag"]
    own.location = "moved"
    assert (one.location, one.run_id, one.shows, one.settles_s) == ("moved", "", {"text"}, 0.0)


def test_a_users_own_class_is_known_before_it_is_made():
    known = adapted_class(Own)
    assert known.reach("/run") == ("reachable", "nobody at /run")
    assert (known.clean("a"), known.directories, known.status, known.shows) == ("A", True, True, {"text"})
    assert [method for method in NOTES if known.has(method)] == ["tag"]
    assert adapted_class(lambda setup: Own(setup)).reach(None) == ("", "")


class Away(Least):
    """Not there as long as it is told so; then it shows texts and takes tags."""

    there = False
    shows = frozenset({"text"})

    def __init__(self, setup):
        super().__init__()
        if not type(self).there:
            raise UnreachableError("not yet")
        self.location, self.run_id, self.settles_s = "here", "7", 0.5

    def show(self, name, medium, step, wall_ns):
        self.calls.append((name, medium.text))

    def tag(self, tags):
        self.calls.append(tags)


def test_a_backend_that_comes_late_is_asked_for_everything_until_it_is_known(monkeypatch):
    told = []
    setup = Setup("p", "e", None, lambda about, message: told.append(about))
    monkeypatch.setattr("probe.tracking.late.open_backend", lambda name, setup: Away(setup))
    one = Late("away", setup)
    assert (one.location, one.shows, one.settles_s) == ("away (not reached yet)", KINDS, 1.0)
    assert all(one.takes(method) for method in (*NOTES, "flush"))
    assert not one.takes("log_many")
    for use in (lambda: one.log({"x": 1.0}, 1), lambda: one.describe("x"), lambda: one.close(0)):
        with pytest.raises(UnreachableError):
            use()
    monkeypatch.setattr(Away, "there", True)
    one.tag({"a": "b"})
    one.show("words", Text("here"), 1, 2)
    medium = next(iter(KINDS - {"text"}))
    one.show("else", type("Medium", (), {"kind": medium})(), 1, 2)
    assert one.backend.calls == [{"a": "b"}, ("words", "here")]
    assert told == [f"kind {medium}"]
    assert (one.location, one.run_id, one.shows, one.settles_s) == ("here", "7", {"text"}, 0.5)
    assert [method for method in (*NOTES, "flush") if one.takes(method)] == ["tag"]


def test_numbers_know_when_they_were_logged():
    assert wall_ns_of(Values({"x": 1.0}, 12)) == 12
    before = time.time_ns()
    assert before <= wall_ns_of({"x": 1.0}) <= time.time_ns()
