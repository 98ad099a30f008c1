"""Logs and dumps that are damaged, or made to do harm: what is known of them is read, and nothing else happens."""

from __future__ import annotations

import json
import math
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import probe
from probe.analysis.steps import durations, times
from probe.errors import ProbeError
from probe.records import Call, Scalar
from probe.runs.foreign import read, verl_files
from probe.runs.foreign.json_stream import LARGEST
from probe.runs.foreign.rows import DumpedAnswer
from probe.runs.lines import decode

#: Values as they are written, and the number that each of them is; None for what is none.
VALUES: dict[str, float | None] = {
    "1": 1.0,
    "0.25": 0.25,
    "-1": -1.0,
    "1e8": 1e8,
    "1e300": 1e300,
    "1e308": 1e308,
    "1e400": math.inf,
    "-1e400": -math.inf,
    "1e-400": 0.0,
    str(2**70): float(2**70),
    "1" + "0" * 400: math.inf,
    "9" * 5000: math.inf,
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
    "true": None,
    "false": None,
    "null": None,
    '"3"': None,
    "[1, 2]": None,
    '{"loss": 1}': None,
}

#: Steps as they are written, and their numbers.
STEPS: dict[str, int | None] = {
    **{str(step): step for step in (0, 1, 2, 3, 2**31, 2**53 - 1)},
    **dict.fromkeys([*(one for one in VALUES if one != "1"), str(2**53), str(2**63), "1.0", "-3"]),
}

#: Names as they are written, and as they are recorded; None for one that is too long.
NAMES: dict[str, str | None] = {
    "loss": "loss",
    "timing_s/step": "timing_s/step",
    "timing_s/gen": "timing_s/gen",
    "timing_s/update_actor": "timing_s/update_actor",
    "timing_s/testing": "timing_s/testing",
    "perf/time_per_step": "perf/time_per_step",
    "step": "step",
    "": "",
    "\\ud800": r"\ud800",
    "n" * 500: "n" * 500,
    "n" * 501: None,
}

#: Lines that have no step and no metrics, whatever is in them.
DAMAGED = [
    b"{",
    b"\xff\xfe",
    b"[]",
    b"3",
    b"null",
    b'{"step": 1}',
    b'{"step": 1, "data": [1]}',
    b'{"data": {"loss": 1}}',
    b'{"step": 1, "data": {"loss": 1}',
    b'{"step": 1, "data": {"loss": \xff}}',
    b"\x00" * 100,
]
DEEP = b'{"step": 1, "data": {"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
LONG = b'{"step": 1, "data": {"' + b"n" * 2 * LARGEST + b'": 1}}'

#: When a file last changed, seconds: before 1970, now, and later than a row can say.
CHANGED = [-(10**9), 0, 1.8e9, 1e10]

line = st.tuples(
    st.sampled_from(list(STEPS)),
    st.lists(st.tuples(st.sampled_from(list(NAMES)), st.sampled_from(list(VALUES))), max_size=6),
)


@contextmanager
def folder() -> Iterator[Path]:
    """A place of its own for each example, and for the runs that are made in it."""
    with TemporaryDirectory() as name:
        (Path(name) / "temporary").mkdir()
        with mock.patch("tempfile.tempdir", str(Path(name) / "temporary")):
            yield Path(name)


def written(one: tuple[str, list[tuple[str, str]]]) -> bytes:
    step, data = one
    told = ", ".join(f'"{name}": {value}' for name, value in data)
    return f'{{"step": {step}, "data": {{{told}}}}}'.encode()


def expected(lines: list[Any]) -> list[tuple[int, str, float]]:
    """Step, name and value of each metric: of a name that a line has again the last counts."""
    found = []
    for step, data in (one for one in lines if not isinstance(one, bytes)):
        number = STEPS[step]
        for name, value in {name: VALUES[value] for name, value in data}.items():
            if number is not None and value is not None and NAMES[name] is not None:
                found.append((number, str(NAMES[name]), value))
    return sorted(found, key=repr)


def logged(log: Path, lines: list[Any], end: bytes = b"", changed: float = 1.8e9) -> Path:
    log.write_bytes(b"".join((one if isinstance(one, bytes) else written(one)) + b"\n" for one in lines) + end)
    os.utime(log, (changed, changed))
    return log


@settings(deadline=None, max_examples=150)
@given(
    st.lists(line | st.sampled_from(DAMAGED), max_size=8),
    st.sampled_from([b"", b'{"step": 9, "da', b"\n\n"]),
    st.sampled_from(CHANGED),
)
@example([("3", [("timing_s/step", "1e308"), ("timing_s/testing", "1e308")])] * 30, b"", 1.8e9)
@example([("3", [("timing_s/step", "1"), ("timing_s/gen", "1e300")])] * 2, b"", 1.8e9)
def test_7_a_hostile_log_of_verl_s_gives_what_is_known_of_it(lines: list[Any], end: bytes, changed: float) -> None:
    lines = [("1", [("loss", "0.25")]), *lines]
    with folder() as place:
        made = read(logged(place / "grpo.jsonl", lines, end, changed))
        assert made is not None
        rows = [decode(one) for one in (made / "process-driver.jsonl").read_bytes().splitlines()]
        notes = " ".join(json.loads((made / "run.json").read_bytes())["config"]["notes"])
    found = [(one.step, one.key, one.value) for one in rows if isinstance(one, Scalar)]
    assert repr(sorted(found, key=repr)) == repr(expected(lines))  # a NaN equals none
    calls = [one for one in rows if isinstance(one, Call)]
    assert all(0 <= one.duration_ns <= 1e17 and -(2**63) < one.begin_ns <= one.time_ns for one in calls)
    assert all(0 <= one.time_ns < 2**63 for one in rows)
    left_out = sum(isinstance(one, bytes) or STEPS[one[0]] is None for one in lines)
    assert (f"Lines without a step and its metrics were left out: {left_out}." in notes) is (left_out > 0)
    assert ("The file ends in the middle" in notes) is end.startswith(b"{")


def test_7_a_run_of_all_that_is_hostile_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    every = [(step, [(name, value)]) for step in STEPS for name in NAMES for value in VALUES]
    timed = [("1", [("timing_s/step", "1e8"), ("timing_s/gen", "1"), ("timing_s/testing", "1e8")])] * 30
    lines = [("1", [("loss", "0.25")]), *DAMAGED, DEEP, LONG, *every, *timed]
    with probe.open(logged(tmp_path / "grpo.jsonl", lines)) as run:
        scalars = run.scalars
        assert len(scalars) == len(expected(lines))
        assert set(scalars["step"]) == {one for one in STEPS.values() if one is not None}
        assert times(run)["largest_s"].between(0, 1e8).all()
        assert (times(run)["largest_s"] == 1e8).any()
        assert not durations(run).empty
        unknown = len(DAMAGED) + 2 + sum(step is None for step in STEPS.values()) * len(NAMES) * len(VALUES)
        assert f"Lines without a step and its metrics were left out: {unknown}." in run.info.config["notes"]
        run.findings()


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=200), st.lists(st.sampled_from(DAMAGED) | st.binary(max_size=80), max_size=4))
@example(b'{"step": 1, "data": {}}', [b"\xef\xbb\xbf"])
@example(b"", [])
def test_7_whatever_bytes_a_file_has_it_is_read_or_refused(first: bytes, more: list[bytes]) -> None:
    with folder() as place:
        for name in ("grpo.jsonl", "1.jsonl"):
            (place / name).write_bytes(b"\n".join([first, *more]))
        try:
            read(place / "grpo.jsonl", place)
            read(place)
        except ProbeError:
            return


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.fixed_dictionaries({}, optional={key: st.sampled_from(list(VALUES)) for key in ("score", "uid", "gts")})
        | st.sampled_from(DAMAGED[:5]),
        max_size=6,
    ),
    st.sampled_from(["1", "0", "007", str(2**53 - 1)]),
    st.sampled_from(CHANGED),
)
def test_7_hostile_dumps_give_the_answers_that_are_known(lines: list[Any], name: str, changed: float) -> None:
    answer = b'{"input": "q\\ud800", "output": "a", "score": 0.5'
    whole = [one if isinstance(one, bytes) else answer + b"".join(told(one)) + b"}" for one in [{}, *lines]]
    with folder() as place:
        for other in ("²", "9" * 100, str(2**53), "-1", "1.5", "x"):  # names that are no step
            (place / f"{other}.jsonl").write_bytes(answer + b"}\n")
        dump = place / f"{name}.jsonl"
        dump.write_bytes(b"\n".join(whole) + b"\n")
        os.utime(dump, (changed, changed))
        assert verl_files.dumps_in(place) == [dump]
        log = place / "logs" / "grpo.jsonl"
        log.parent.mkdir()
        log.write_bytes(b'{"step": 5, "data": {"loss": 1}}\n')
        made = read(log, place)
        assert made is not None
        rows = [decode(one) for one in (made / "process-driver.jsonl").read_bytes().splitlines()]
    answers = [one for one in rows if isinstance(one, DumpedAnswer)]
    known = [(at, one) for at, one in enumerate([{}, *lines]) if not isinstance(one, bytes)]
    assert [(one.row, one.step, one.prompt) for one in answers] == [(at, int(name), 0) for at, _ in known]
    rewards = [VALUES[one["score"]] if "score" in one else 0.5 for _, one in known]
    assert repr([one.reward for one in answers]) == repr(rewards)
    assert all(0 <= one.time_ns < 2**63 for one in rows)


def test_7_hostile_points_of_tensorboard_are_left_out_and_counted(tmp_path: Path, monkeypatch: Any) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    points = [(1, 1e9, "loss"), (-1, 1e9, "loss"), (2**60, 1e9, "loss"), (2, math.nan, "loss"), (3, math.inf, "loss")]
    points += [(4, 1e300, "loss"), (5, -5.0, "loss"), (6, 1e9, "n" * 501), (7, 1e9, "timing_s/step")]
    writer = EventFileWriter(str(tmp_path / "events"))
    for step, wall_s, key in points:
        value = Summary.Value(tag=key, simple_value=1e30 if key == "timing_s/step" else 0.5)
        writer.add_event(Event(step=step, wall_time=wall_s, summary=Summary(value=[value])))
    writer.close()
    with probe.open(tmp_path / "events") as run:
        told = run.scalars.sort_values("step")
        assert told["step"].tolist() == [1, 4, 5, 7]
        assert told["wall_ns"].tolist() == [10**18, 9 * 10**18, 0, 10**18]
        assert times(run).empty
        notes = ["Values with a step, time or name that can't be one were left out: 5."]
        assert run.info.config["notes"] == notes


def told(more: dict[str, str]) -> Iterator[bytes]:
    for key, value in more.items():
        yield f', "{key}": {value}'.encode()


def test_7_a_line_of_any_length_is_passed_over_and_never_held(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    log = tmp_path / "grpo.jsonl"
    with log.open("wb") as file:
        file.write(b'{"step": 1, "data": {"loss": 1}}\n{"step": 2, "data": {"')
        for _ in range(64):
            file.write(b"n" * LARGEST)
        file.write(b'": 1}}\n{"step": 3, "data": {"loss": 3}}\n')
    tracemalloc.start()
    made = read(log)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert made is not None
    assert peak < 8 * LARGEST
    with probe.open(log) as run:
        assert run.scalars["step"].tolist() == [1, 3]
        assert "Lines without a step and its metrics were left out: 1." in run.info.config["notes"]


def test_7_a_log_of_many_steps_is_read_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    peaks = []
    for many in (1_000, 4_000):
        log = tmp_path / f"of-{many}.jsonl"
        data = {"timing_s/step": 1.0, "timing_s/gen": 0.5, **{f"metric/{number}": 1.0 for number in range(8)}}
        log.write_text("".join(json.dumps({"step": step, "data": data}) + "\n" for step in range(many)))
        tracemalloc.start()
        made = read(log)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert made is not None
        with (made / "process-driver.jsonl").open() as lines:
            assert sum(1 for _ in lines) == 1 + many * 12
    assert peaks[1] < 1.5 * peaks[0], peaks
