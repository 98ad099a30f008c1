from __future__ import annotations

import builtins
import gc
import json
import multiprocessing
import os
import sys
import threading
import warnings

import pytest

from probe.errors import BackendError, InputError, InputTypeError, MissingDependencyError, UnknownNameError
from probe.hooks import Listener, subscribe
from probe.tracking import backends
from probe.tracking.tracking import Tracking
from tests.waiting import PATIENCE_S, until

HERE = "tracking_own_backends"

OWN = """
    class Good:
        def __init__(self, setup):
            self.setup = setup
            self.calls, self.parameters, self.exit_codes = [], None, []
        def log(self, values, step): self.calls.append((step, dict(values)))
        def params(self, parameters): self.parameters = parameters
        def close(self, exit_code): self.exit_codes.append(exit_code)
    class Bad(Good):
        def log(self, values, step): raise RuntimeError("I never work")
    class Broken:
        def __init__(self, setup): raise OSError("no route")
    class Mute:
        def __init__(self, setup): pass
    class Outer:
        class Inner(Good): pass
    number = 3
"""


@pytest.fixture(autouse=True)
def own_backends(tmp_path, monkeypatch):
    import textwrap

    (tmp_path / f"{HERE}.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROBE_FILE_LOGGER_PATH", raising=False)
    monkeypatch.delenv("VERL_FILE_LOGGER_PATH", raising=False)
    before = set(threading.enumerate())
    yield
    sys.modules.pop(HERE, None)
    until(lambda: set(threading.enumerate()) - before, lambda left: not left)


def test_the_documented_front(tmp_path, capsys):
    tracking = Tracking("p", "e")
    assert list(tracking.logger) == ["console"]
    tracking.log({"loss": 0.5}, 1)
    tracking.finish()
    tracking.finish(1)
    assert capsys.readouterr().out == "step 1 | loss 0.5\n"
    assert {"console", "file", "mlflow", "tensorboard"} <= set(Tracking.supported_backend)


@pytest.mark.parametrize("path", [f"{HERE}:Good", f"{HERE}.Good", f"{HERE}:Outer.Inner"])
def test_a_users_own_backend_by_dotted_path(path, tmp_path):
    with Tracking("p", "e", [path], {"a": {"b": 1}}, directory=tmp_path) as tracking:
        tracking.log({"x": 1}, 1)
    own = tracking.logger[path]
    assert (own.setup.project, own.setup.experiment, own.setup.directory) == ("p", "e", tmp_path)
    assert (own.calls, own.parameters, own.exit_codes) == ([(1, {"x": 1.0})], {"a/b": 1}, [0])


def test_a_failing_neighbour_is_reported_once_and_harms_nobody(tmp_path, caplog):
    incidents = []
    bad, good = f"{HERE}:Bad", f"{HERE}:Good"
    with Tracking("p", "e", [bad, good, "file"], directory=tmp_path, on_incident=incidents.append) as tracking:
        for step in range(10):
            tracking.log({"x": step}, step)
    assert len(tracking.logger[good].calls) == 10
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 10
    assert tracking.logger[bad].exit_codes == [0]
    first = [record.message for record in caplog.records if "I never work" in record.message]
    assert first == [f"{bad}: failed at step 0: RuntimeError('I never work'); training goes on"]
    assert {one.where for one in incidents} == {bad}


@pytest.mark.parametrize("name", ["nothing", "Console", "console_x", ""])
def test_unknown_backends_are_listed(name):
    with pytest.raises(UnknownNameError, match="console, file, mlflow, otlp, swanlab, tensorboard, trackio, wandb"):
        Tracking("p", "e", name)


def test_the_old_alias_is_deprecated(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    missing = pytest.raises(MissingDependencyError, match=r"probe-rl\[wandb\]")
    with pytest.warns(DeprecationWarning, match="'wandb'"), missing:
        Tracking("p", "e", "tracking")


@pytest.mark.parametrize(
    ("path", "why", "opened_first"),
    [
        (f"{HERE}:Missing", "Missing", False),
        ("no_such_package.x:Y", "no_such_package", False),
        (f"{HERE}:number", "expected a class", False),
        (f"{HERE}:Mute", "methods log and close", True),
        (f"{HERE}:Broken", "no route", True),
    ],
)
def test_a_backend_that_cannot_be_used_is_a_loud_error_that_closes_the_others(path, why, opened_first, tmp_path):
    closed = []

    class Watched:
        def __init__(self, setup):
            pass

        def log(self, values, step):
            pass

        def close(self, exit_code):
            closed.append(exit_code)

    import tracking_own_backends

    tracking_own_backends.Watched = Watched
    with pytest.raises(BackendError, match=why):
        Tracking("p", "e", [f"{HERE}:Watched", path], directory=tmp_path)
    assert closed == ([1] if opened_first else [])


@pytest.mark.parametrize(
    ("backend", "package"),
    [
        ("mlflow", "mlflow"),
        ("otlp", "opentelemetry.proto"),
        ("swanlab", "swanlab"),
        ("tensorboard", "tensorboard"),
        ("trackio", "trackio"),
        ("wandb", "wandb"),
    ],
)
def test_a_missing_package_names_the_extra(backend, package, monkeypatch, tmp_path):
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"probe-rl\[{backend}\]"):
        Tracking("p", "e", backend, directory=tmp_path)


def test_a_filter_takes_exact_names_only(tmp_path, capsys):
    with Tracking("p", "e", ["console", "file"], directory=tmp_path) as tracking:
        tracking.log({"x": 1}, 1, backend="file")
        tracking.log({"x": 2}, 2, backend=["console"])
        for given in ("console_x", "consol", ["file", "wandb"]):
            with pytest.raises(UnknownNameError, match="console, file"):
                tracking.log({"x": 3}, 3, backend=given)
        with pytest.raises(InputTypeError, match="backend"):
            tracking.log({"x": 3}, 3, backend=3)
    assert capsys.readouterr().out == "step 2 | x 2\n"
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1]


@pytest.mark.parametrize("step", [None, True, 1.0, "1"])
def test_a_step_is_a_whole_number(step):
    with Tracking("p", "e") as tracking, pytest.raises(InputTypeError, match="step"):
        tracking.log({"x": 1}, step)


def test_bad_input_is_named():
    with Tracking("p", "e") as tracking:
        with pytest.raises(InputError, match="-1"):
            tracking.log({"x": 1}, -1)
        with pytest.raises(InputTypeError, match="data: got list"):
            tracking.log([1], 1)
        with pytest.raises(TypeError):
            tracking.log({"x": 1})
    for names in (3, ["console", 3], {"console": 1}):
        with pytest.raises(InputTypeError, match="default_backend"):
            Tracking("p", "e", names)
    with pytest.raises(InputTypeError, match="experiment_name"):
        Tracking("p", "")
    with pytest.raises(InputError, match="capacity"):
        Tracking("p", "e", capacity=0)


@pytest.mark.parametrize(("place", "name", "expected"), [(None, "", 3), (sys, "ps1", 0), (builtins, "__IPYTHON__", 0)])
def test_an_exception_that_ended_the_process_gives_the_exit_code_unless_people_type_there(
    place, name, expected, tmp_path, monkeypatch
):
    """In a shell or a notebook any earlier line may have left the exception."""
    for where, known in ((sys, "ps1"), (builtins, "__IPYTHON__")):
        monkeypatch.delattr(where, known, raising=False)
    if place is not None:
        monkeypatch.setattr(place, name, ">>> ", raising=False)
    monkeypatch.setattr(sys, "last_value", SystemExit(3), raising=False)
    tracking = Tracking("p", "e", f"{HERE}:Good", directory=tmp_path)
    tracking.finish()
    assert tracking.logger[f"{HERE}:Good"].exit_codes == [expected]


def test_logging_after_the_end_is_reported_not_raised(tmp_path):
    incidents = []
    tracking = Tracking("p", "e", "file", directory=tmp_path, on_incident=incidents.append)
    tracking.finish()
    tracking.log({"x": 1}, 1)
    assert ["after finish()" in one.message for one in incidents] == [True]
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_threads_may_log_at_once(tmp_path):
    with Tracking("p", "e", "file", directory=tmp_path) as tracking:

        def work(name):
            for step in range(200):
                tracking.log({name: step}, step)

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found: dict[str, list[int]] = {name: [] for name in "abcd"}
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name in record["data"]:
            found[name].append(record["step"])
    assert found == {name: list(range(200)) for name in "abcd"}


def test_console_follows_standard_output(capsys, monkeypatch):
    import io

    with Tracking("p", "e") as tracking:
        tracking.log({"x": 1}, 1)
        assert tracking.flush()
        other = io.StringIO()
        monkeypatch.setattr("sys.stdout", other)
        tracking.log({"x": 2}, 2)
        assert tracking.flush()
        monkeypatch.undo()
    assert other.getvalue() == "step 2 | x 2\n"


def test_log_can_be_observed(tmp_path):
    heard = []

    class Hear(Listener):
        def leave(self, event, state):
            heard.append((event.point.name, dict(event.argument("data")), event.argument("step")))

    with subscribe(Hear(), "tracking.*"), Tracking("p", "e", "file", directory=tmp_path) as tracking:
        tracking.log({"x": 1}, 3)
    assert heard == [("tracking.log", {"x": 1}, 3)]


def test_a_part_of_a_config_that_cannot_be_read_costs_only_itself(tmp_path):
    class Angry:
        def to_dict(self):
            raise RuntimeError("no")

    incidents = []
    path = f"{HERE}:Good"
    with Tracking("p", "e", path, {"a": Angry()}, directory=tmp_path, on_incident=incidents.append) as tracking:
        tracking.log({"x": 1}, 1)
    assert tracking.logger[path].calls == [(1, {"x": 1.0})]
    assert tracking.logger[path].parameters == {"a": "<Angry: it can't be opened: RuntimeError>"}
    assert incidents == []


def _child(tracking, queue):
    tracking.log({"x": 2}, 2)
    queue.put((tracking.flush(1), tracking.finish()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_neither_sends_nor_hangs(tmp_path):
    context = multiprocessing.get_context("fork")
    with Tracking("p", "e", "file", directory=tmp_path) as tracking:
        tracking.log({"x": 1}, 1)
        assert tracking.flush()
        queue = context.SimpleQueue()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of forking with threads, which is the point here
            child = context.Process(target=_child, args=(tracking, queue))
            child.start()
        assert queue.get() == (True, None)
        child.join(PATIENCE_S)
        queue.close()
    assert child.exitcode == 0
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


def test_nothing_stays_behind(tmp_path):
    import weakref

    tracking = Tracking("p", "e", ["console", "file", "tensorboard"], directory=tmp_path)
    tracking.log({"x": 1}, 1)
    tracking.finish()
    gone = weakref.ref(tracking)
    del tracking
    gc.collect()
    assert gone() is None  # no atexit hook and no thread holds it
    assert backends.BACKENDS["console"] == "probe.tracking.backends.console:Console"
