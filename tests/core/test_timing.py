from __future__ import annotations

import logging
import math
import re
import subprocess
import sys
import time

import pytest
import torch.distributed as dist

from probe import hooks
from probe.core.logging_helpers import log_print
from probe.core.timing import gather_timing, marked_timer, reduce_timing, simple_timer, topk_reduce_ratio_min_max
from probe.errors import InputError, InputTypeError, UnknownNameError

NAN = float("nan")


class Hear(hooks.Listener):
    def __init__(self):
        self.scopes = []

    def leave(self, event, state):
        self.scopes.append((event.scope.kind, event.scope.path, event.scope.phase, dict(event.values), event.error))


class Clock:
    """A clock that only the test moves."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("probe.core.timing.time", made)
    return made


@pytest.mark.parametrize("timer", [simple_timer, marked_timer])
def test_times_add_up_and_are_kept_when_the_body_raises(timer, clock):
    seconds = {"other": 1.0}
    with timer("update", seconds):
        clock.now += 2.0

    @timer("update", seconds)
    def broken():
        clock.now += 3.0
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert seconds == {"other": 1.0, "update": 5.0}


def test_real_time_passes():
    seconds = {}
    with simple_timer("sleep", seconds):
        time.sleep(0.01)
    assert seconds["sleep"] >= 0.01


def test_timers_inside_one_another(clock):
    seconds = {}
    with simple_timer("step", seconds):
        clock.now += 1.0
        with simple_timer("gen", seconds):
            clock.now += 2.0
        with simple_timer("step", seconds):  # the same name again
            clock.now += 4.0
    assert seconds == {"gen": 2.0, "step": 11.0}


def test_a_timer_is_a_phase():
    hear, seconds = Hear(), {}
    with hooks.subscribe(hear, "scope"), simple_timer("step", seconds):
        with marked_timer("gen", seconds, color="red", category="rollout") as opened:
            opened.values["tokens"] = 7
            assert hooks.current_scope().path == "step/gen"
        with pytest.raises(KeyError), marked_timer("update", seconds):
            raise KeyError("x")
    inner, failed, outer = hear.scopes
    assert inner == ("phase", "step/gen", "gen", {"color": "red", "category": "rollout", "tokens": 7}, None)
    assert failed[:4] == ("phase", "step/update", "update", {})
    assert isinstance(failed[4], KeyError)
    assert outer == ("phase", "step", "step", {}, None)


def test_what_listeners_take_is_not_in_the_time(clock):
    class Slow(hooks.Listener):
        def enter(self, event):
            clock.now += 100.0

        def leave(self, event, state):
            clock.now += 100.0

    seconds = {}
    with hooks.subscribe(Slow(), "scope"), simple_timer("update", seconds):
        clock.now += 2.0
    assert clock.now == 202.0
    assert seconds == {"update": 2.0}


def test_a_timer_decorates_a_function(clock):
    seconds = {}

    @simple_timer("work", seconds)
    def work():
        clock.now += 1.5

    work()
    work()
    assert seconds == {"work": 3.0}


@pytest.mark.parametrize("timer", [simple_timer, marked_timer])
@pytest.mark.parametrize(
    ("name", "seconds", "named"), [(3, {}, "name"), ("a", [], "timing_raw"), ("a", {"a": "x"}, r"timing_raw\['a'\]")]
)
def test_a_bad_timer_stops_before_the_body(timer, name, seconds, named):
    ran = []
    with pytest.raises(InputTypeError, match=named), timer(name, seconds):
        ran.append(1)
    assert not ran


# -------------------------------------------------------------------------------------------- alone, without a group


def test_one_process_alone():
    seconds = {"update": 2.5, "gen": 4}
    assert gather_timing(seconds) == {"gen": [4.0], "update": [2.5]}
    for operation in (None, "avg", "SUM", dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp(dist.ReduceOp.SUM)):
        assert list(reduce_timing(seconds, operation).items()) == [("gen", 4.0), ("update", 2.5)]
    assert topk_reduce_ratio_min_max(2.5) == (0.0, 2.5, 2.5)
    assert all(math.isnan(one) for one in topk_reduce_ratio_min_max(NAN))
    assert reduce_timing({}) == gather_timing({}) == {}
    assert seconds == {"update": 2.5, "gen": 4}


@pytest.mark.parametrize("operation", ["median", dist.ReduceOp.PRODUCT, 3])
def test_an_unknown_operation(operation):
    with pytest.raises(UnknownNameError, match="expected one of AVG, MAX, MIN, SUM"):
        reduce_timing({"a": 1.0}, operation)


@pytest.mark.parametrize("function", [gather_timing, reduce_timing])
@pytest.mark.parametrize("seconds", [[1.0], {"a": "1.0"}])
def test_bad_timings(function, seconds):
    with pytest.raises(InputTypeError, match="timing_raw"):
        function(seconds)


@pytest.mark.parametrize(
    ("timing", "k", "error"),
    [("x", 10, InputTypeError), (1.0, 101, InputError), (1.0, -1, InputError), (1.0, None, InputTypeError)],
)
def test_bad_ratios(timing, k, error):
    with pytest.raises(error):
        topk_reduce_ratio_min_max(timing, k)


def test_the_timers_bring_no_torch():
    code = (
        "import sys; from probe.core.timing import marked_timer, simple_timer\n"
        "with simple_timer('a', {}), marked_timer('b', {}): print('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )


# ------------------------------------------------------------------------------------------------------------ log_print

LINE = r"\[\d{4}-\d\d-\d\d-\d\d:\d\d:\d\d-test_timing\.py:\d+:test_\w+\]: hello %s 5"


def test_a_line_goes_through_logging_with_its_caller(caplog, capsys):
    with caplog.at_level(logging.INFO):
        log_print("hello %s 5")
    (record,) = caplog.records
    assert re.fullmatch(LINE, record.getMessage())
    assert (record.filename, record.funcName) == ("test_timing.py", "test_a_line_goes_through_logging_with_its_caller")
    assert capsys.readouterr().out == ""


def test_a_level_that_was_set_is_kept(caplog):
    with caplog.at_level(logging.WARNING):
        log_print("hello")
    assert not caplog.records


def test_without_logging_it_goes_to_stderr_and_never_to_stdout(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom probe.core.logging_helpers import log_print\ndef work(): log_print('grüße')\n"
        "work()\nsys.stderr.close()\nwork()\nsys.stderr = None\nwork()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, encoding="utf-8")
    assert done.stdout == ""
    assert re.fullmatch(r"\[.*-script\.py:3:work\]: gr.*e\n", done.stderr)
