"""The session wires hooks, recorders, the run directory and tracking, and keeps all of them away from training."""

from __future__ import annotations

import json
import math
import os
import pathlib
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch

from probe import hooks
from probe.core.metric import Metric, reduce_metrics
from probe.core.protocol import DataProto
from probe.core.seqlen_balancing import micro_batches
from probe.errors import InputError, SessionError, UnknownNameError
from probe.publishing.publisher import Publisher
from probe.recorders import RECORDERS
from probe.recorders.recorder import Recorder
from probe.records import Incident, Scalar
from probe.runs.reader import Run
from probe.session import current_session, start
from probe.session.outlets import record_incident


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run"


def make_batch(rows=16, width=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, width + 1, (rows,), generator=generator)
    mask = (torch.arange(width)[None] < lengths[:, None]).long()
    ids = torch.randint(0, 9, (rows, width), generator=generator)
    return DataProto.from_dict(tensors={"input_ids": ids, "attention_mask": mask})


def train(steps=3, session=None):
    """A small training that touches every hooked part; returns weights and losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []

    @hooks.watch(role="actor")
    def update(batch):
        for part in micro_batches(batch, max_token_len=40):
            mask = part.batch["attention_mask"]
            loss = (model(part.batch["input_ids"]).squeeze(-1) * mask).pow(2).sum()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()

    for step in range(steps):
        batch = make_batch(seed=step).union(make_batch(seed=step))
        if session is None:
            update(batch)
        else:
            with session.step(step), hooks.phase("update_actor"):
                update(batch)
                session.log(reduce_metrics({"loss": losses, "loss_max": losses}), step)
    return [one.detach().clone() for one in model.parameters()], losses


def test_training_with_probe_on_and_off_is_bitwise_equal(directory):
    weights, losses = train()
    with start("p", run_dir=directory) as session:
        observed_weights, observed_losses = train(session=session)
    again, _ = train()
    assert losses == observed_losses
    for plain, observed, after in zip(weights, observed_weights, again, strict=True):
        assert torch.equal(plain, observed)
        assert torch.equal(plain, after)


def test_training_with_a_publisher_is_bitwise_equal_and_its_end_bounded(directory, monkeypatch):
    """One that hangs from the first moment on, and that can't be left alone."""
    monkeypatch.setattr("probe.publishing.last.able", lambda *_: False)
    monkeypatch.setenv("PROBE_LAST_EDITION", "wait")
    monkeypatch.setattr("probe.publishing.publisher.FINAL_S", 0.5)
    weights, losses = train()
    with start("p", run_dir=directory, track="file", publish=False) as session:
        assert session.publisher is None
        session.sending.publisher = Publisher(
            directory, session.tracking, record_incident, command=[sys.executable, "-c", HANGS]
        )
        observed_weights, observed_losses = train(session=session)
    assert losses == observed_losses
    assert all(map(torch.equal, weights, observed_weights))
    with Run(directory) as run:
        incidents = run.incidents
        assert incidents["kind"].tolist() == ["publisher"]
        assert "within 0.5 s" in incidents["message"][0]


HANGS = "import time; time.sleep(600)"


def test_a_publisher_is_there_where_pictures_can_be_shown(directory, tmp_path, monkeypatch):
    started = []

    class Noted:
        def __init__(self, *args, **options):
            started.append(options)

        def finish(self, timeout_s=None):
            started.append("finished")

    monkeypatch.setattr("probe.session.outlets.Publisher", Noted)
    for number, (options, wanted) in enumerate(
        [
            ({"track": "file"}, []),
            ({}, []),
            ({"track": "tensorboard"}, [{"every_s": 30.0}, "finished"]),
            ({"track": "tensorboard", "publish": False}, []),
            ({"track": "tensorboard", "publish": 5}, [{"every_s": 5.0}, "finished"]),
            ({"track": "file", "publish": True}, [{"every_s": 30.0}, "finished"]),
            ({"track": "tensorboard", "rank": 1, "world_size": 2}, []),
        ]
    ):
        started.clear()
        with start("p", run_dir=tmp_path / str(number), **options):
            pass
        assert started == wanted, options


@pytest.mark.parametrize("publish", [0, "often", -1])
def test_how_often_to_publish_is_checked_at_once(directory, publish):
    with pytest.raises(InputError, match="publish: got"):
        start("p", run_dir=directory, track="file", publish=publish)
    with pytest.raises(InputError, match="without track"):
        start("p", run_dir=directory, publish=True)
    assert current_session() is None
    assert not directory.exists()


def test_a_publisher_that_can_t_be_started_is_an_incident(directory, monkeypatch):
    def no_process(*args, **options):
        raise OSError("no more processes")

    monkeypatch.setattr("probe.publishing.publisher.subprocess.Popen", no_process)
    with start("p", run_dir=directory, track="file", publish=True) as session:
        assert session.publisher is None
        train(steps=1, session=session)
    with Run(directory) as run:
        assert run.incidents["message"].tolist() == [
            "figures aren't published: the publisher can't be started: no more processes"
        ]


def test_a_run_holds_every_table(directory):
    with start("p", run_dir=directory) as session:
        train(session=session)
    with Run(directory) as run:
        assert set(run.memory["phase"].dropna()) == {"update_actor"}
        assert set(run.memory["role"].dropna()) == {"actor"}
        assert sorted(run.micro_batches["step"].unique()) == [0, 1, 2]
        assert (run.micro_batches["tokens"] <= 40).all()
        assert not run.padding.empty
        assert "data_proto.union" in set(run.calls["point"])
        assert set(run.reductions["key"]) >= {"loss", "loss_max"}
        scalars = run.scalars
        assert set(scalars.loc[scalars["source"] == "user", "key"]) == {"loss", "loss_max"}
        ours = set(scalars.loc[scalars["source"] == "probe", "key"])
        assert "probe/token_balance/micro_batch_imbalance_ratio_max" in ours
        assert "probe/cost/hooks_ms" in ours
        assert run.incidents.empty, run.incidents[["kind", "where", "message"]].to_string()


def test_padding_causes_sum_to_rectangle_minus_valid(directory):
    with start("p", run_dir=directory) as session:
        train(session=session)
    with Run(directory) as run:
        wrong = run.sql(
            "select batch_id, field, sum(tokens) as padded, "
            "any_value(rectangle_tokens) - any_value(valid_tokens) as gap "
            "from padding group by batch_id, field having padded <> gap"
        )
        assert wrong.empty
        assert len(run.padding)


def test_the_step_s_metrics_reach_tracking_once_and_reduced(directory):
    with start("p", run_dir=directory, track="file") as session:
        train(session=session)
        path = session.tracking.locations["file"]
    by_step = {}
    for line in pathlib.Path(path).read_text().splitlines():
        entry = json.loads(line)
        for key, value in entry["data"].items():
            assert key not in by_step.setdefault(entry["step"], {}), f"{key} was logged twice in one step"
            by_step[entry["step"]][key] = value
    assert sorted(by_step) == [0, 1, 2]
    for values in by_step.values():
        assert {"loss", "loss_max", "probe/cost/hooks_ms", "probe/padding_tax/rank_ratio"} <= set(values)
        assert values["probe/token_balance/micro_batch_imbalance_ratio_max"] >= 1


class Broken(Recorder):
    points = ("scope", "data_proto.union")

    def enter(self, event):
        raise RuntimeError("enter is broken")

    def sample(self):
        raise RuntimeError("sample is broken")

    def metrics(self, rows):
        raise RuntimeError("metrics is broken")

    def close(self):
        raise RuntimeError("close is broken")


@pytest.mark.usefixtures("lenient")
def test_a_broken_recorder_changes_nothing_but_the_incidents(directory, caplog):
    weights, losses = train()
    with start("p", run_dir=directory, recorders=["token_balance", Broken()]) as session:
        observed_weights, observed_losses = train(session=session)
    assert losses == observed_losses
    assert all(map(torch.equal, weights, observed_weights))
    with Run(directory) as run:
        incidents = run.incidents
        listener = incidents[incidents["where"].isin(["scope", "data_proto.union"])]
        assert listener["count"].max() == hooks.MAX_FAILURES
        assert listener["switched_off"].any()
        assert "enter is broken" in listener["traceback"].iloc[0]
        assert {"Broken.metrics", "close"} <= set(incidents["where"])
        assert len(run.micro_batches)


class Told(Recorder):
    points = ("test_session.tell",)
    keys = ("probe/told/values",)

    def fire(self, event):
        return Scalar(key=event.values["key"], value=event.values["value"])

    def metrics(self, rows):
        return {"probe/told/values": Metric("sum", [row.value for row in rows if isinstance(row, Scalar)])}


def test_rows_carry_the_scope_they_were_made_in(directory):
    tell = hooks.point("test_session.tell", "a test tells")
    with start("p", run_dir=directory, recorders=[Told()], rank=3, world_size=4) as session:
        with (
            session.step(7),
            hooks.phase("update", role="critic"),
            hooks.scope("micro_batch", "2", micro_batch=2),
        ):
            hooks.emit(tell, key="a", value=math.inf)
        hooks.emit(tell, key="b", value=1.0)
        thread = threading.Thread(target=hooks.emit, args=(tell,), kwargs={"key": "c", "value": math.nan})
        thread.start()
        thread.join()
    with Run(directory) as run:
        rows = run.scalars.set_index("key")
        assert run.missing_ranks == [0, 1, 2]
    assert rows.loc["a", ["step", "rank", "role", "phase", "micro_batch", "scope"]].tolist() == [
        7, 3, "critic", "update", 2, "step/update/2",
    ]  # fmt: skip
    assert rows.loc["a", "value"] == math.inf
    assert math.isnan(rows.loc["c", "value"])
    assert rows.loc["probe/told/values", "value"] == math.inf


def test_one_session_at_a_time(directory, tmp_path):
    with start("p", run_dir=directory) as session:
        assert current_session() is session
        with pytest.raises(SessionError, match="already records"):
            start("p", run_dir=tmp_path / "other")
        assert current_session() is session
    assert current_session() is None
    session.close()
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("step", [-1, 1.5, True, "3", None])
def test_a_step_that_is_no_step(directory, step):
    with start("p", run_dir=directory) as session, pytest.raises(InputError, match="step"):
        session.step(step).__enter__()


def test_wrong_set_up_is_loud_and_leaves_no_session(directory):
    with pytest.raises(UnknownNameError, match="recorder"):
        start("p", run_dir=directory, recorders=["memmory"])
    with pytest.raises(UnknownNameError):
        start("p", run_dir=directory, track="tensorbord")
    with pytest.raises(InputError, match="peaks"):
        start("p", run_dir=directory, peaks="sometimes")
    assert current_session() is None


def test_an_exception_in_the_step_passes_and_is_kept(directory):
    error = KeyError("mine")
    with start("p", run_dir=directory) as session:
        with pytest.raises(KeyError) as caught, session.step(0), hooks.phase("update"):
            raise error
        assert caught.value is error
    with Run(directory) as run:
        calls = run.calls.set_index("point")
        assert "KeyError" in calls.loc["scope.phase", "error"]
        assert "KeyError" in calls.loc["scope.step", "error"]


@pytest.mark.slow
def test_a_process_that_never_closes_leaves_a_whole_run(directory):
    code = f"""
        import probe
        session = probe.start("p", run_dir={str(directory)!r}, track="file")
        with session.step(0), probe.phase("update"):
            session.log({{"loss": 1.0}}, 0)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, env=dict(os.environ))
    with Run(directory) as run:
        assert "loss" in set(run.scalars["key"])
        assert (run.calls["point"] == "scope.step").sum() == 1


def test_too_many_rows_in_a_step_is_said(directory, monkeypatch):
    monkeypatch.setattr("probe.session.step_metrics.ROWS_PER_STEP", 5)
    tell = hooks.point("test_session.tell", "a test tells")
    with start("p", run_dir=directory, recorders=[Told()]) as session, session.step(0):
        for index in range(10):
            hooks.emit(tell, key=f"k{index}", value=1.0)
    with Run(directory) as run:
        assert len(run.scalars) == 10
        assert run.incidents["kind"].tolist() == ["limits"]


def test_an_incident_row_needs_no_listener(directory):
    with start("p", run_dir=directory) as session:
        session.recording.write_rows(Incident(kind="test", where="here", message="<b>"), hooks.current_scope(), 1)
    with Run(directory) as run:
        assert run.incidents["message"].tolist() == ["<b>"]


class Failing:
    """A user's backend that can't send anything."""

    def __init__(self, setup):
        self.closed_with = None

    def log(self, values, step):
        raise ConnectionError("nobody there")

    def close(self, exit_code):
        self.closed_with = exit_code


def test_a_backend_in_trouble_is_an_incident_of_the_run(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "failing_backend", sys.modules[__name__])
    weights, losses = train()
    with start("p", run_dir=directory, track=["file", "failing_backend:Failing"]) as session:
        observed_weights, observed_losses = train(session=session)
        session.tracking.flush(1.0)
        monkeypatch.setattr("probe.tracking.tracking.FINISH_S", 2.0)
    assert losses == observed_losses
    assert all(map(torch.equal, weights, observed_weights))
    with Run(directory) as run:
        incidents = run.incidents
        assert "failing_backend:Failing" in set(incidents.loc[incidents["kind"] == "backend", "where"])
        assert "loss" in set(run.scalars["key"])
    assert "loss" in (directory / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_a_killed_process_has_said_where_it_was(directory):
    script = f"""
        import os, pathlib, signal, time
        import probe
        from probe.testing import FakeDevice
        light = {{"recorders": ["memory"], "device": FakeDevice()}}  # which needn't import torch
        session = probe.start("killed", run_dir={str(directory)!r}, rank=0, **light)
        rows = pathlib.Path({str(directory)!r}) / "rank-00000.jsonl"
        with session.step(4), probe.phase("update", role="actor"):
            while not rows.exists() or b'"update"' not in rows.read_bytes():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, timeout=300)
    with Run(directory) as run:
        begun = run.sql("select kind, step, role, phase from memory where edge = 'enter' order by scope_id")
        assert begun.values.tolist()[-1] == ["phase", 4, "actor", "update"]
        assert run.sql("select count(*) as n from memory where edge = 'leave'")["n"][0] == 0


@pytest.mark.usefixtures("lenient")
def test_a_publisher_that_fails_at_the_end_leaves_the_end_whole(tmp_path, monkeypatch, caplog):
    def fail(self, timeout_s=0):
        raise OSError("no more processes")

    session = start("p", "e", run_dir=tmp_path / "run", track="file", publish=5)
    publisher = session.publisher
    with monkeypatch.context() as patched:
        patched.setattr(type(publisher), "finish", fail)
        session.close()
    publisher.finish(0.0)
    assert session.tracking._finished
    assert "no more processes" in caplog.text
    with session.run as run:
        said = "probe failed in publisher; the run goes on: OSError('no more processes')"
        assert said in run.incidents["message"].tolist()


class Bad(Recorder):
    """Fails in what the writer's thread asks of it, each in its own way."""

    points = ("nothing.hears.this",)
    keys = ("probe/bad/x",)

    def __init__(self, way):
        self.way = way

    def metrics(self, rows):
        if self.way == "raises":
            raise RuntimeError("metrics is broken")
        if self.way == "no number":
            return {"probe/bad/x": "no number"}
        if self.way == "no name":
            return {7: 1.0}
        if self.way == "changes rows":
            rows.clear()
        return None


def recorded(directory, more=()):
    with start("p", run_dir=directory, recorders=[*more, *RECORDERS], track=["file"]) as session:
        train(8, session)
    with Run(directory) as run:
        stamp = {"time_ns", "wall_ns", "process", "scope_id", "parent_id", "batch_id", "traceback"}
        timed = {"host_ns", "device_ns", "duration_ns", "begin_ns", "end_ns"}
        rows = {}
        for name in ("micro_batches", "padding", "reductions", "calls", "scalars", "memory"):
            frame = run.tables[name]
            if name == "memory":  # samples come by the clock
                frame = frame[frame["edge"] != "sample"]
            if name == "scalars":  # and so do metrics made of them; the first of hooks' time may be none
                frame = frame[~frame["key"].str.contains("probe/memory|probe/cost")]
            whole = [one for one in frame if one not in stamp | timed and "bytes" not in one and one != "value"]
            # In which order rows of the writer's own stand among the others is a matter of its rounds.
            rows[name] = len(frame) if name == "memory" else sorted(frame[whole].astype(str).values.tolist(), key=repr)
        exact = run.scalars[run.scalars["key"].str.startswith(("probe/padding_tax", "probe/token_balance"))]
        return rows, exact[["step", "key", "value"]].values.tolist(), run.incidents


@pytest.mark.parametrize("way", ["raises", "nothing", "no number", "no name", "changes rows"])
@pytest.mark.usefixtures("lenient")
def test_a_bad_recorder_is_switched_off_once_and_the_others_are_as_without_it(tmp_path, caplog, way):
    without, exact, none = recorded(tmp_path / "without")
    assert not len(none)
    assert len(exact) > 8
    caplog.clear()
    rows, values, incidents = recorded(tmp_path / "with", [Bad(way)])
    assert rows == without
    assert values == exact
    assert len(incidents) == 1
    assert incidents["where"].tolist() == ["Bad.metrics"]
    assert incidents["switched_off"].all()
    assert incidents["traceback"].str.contains("Error").all()
    said = [one.getMessage() for one in caplog.records if one.levelname in ("WARNING", "ERROR")]
    assert said == ["recorder Bad.metrics failed and is switched off"]


@pytest.mark.usefixtures("lenient")
def test_a_recorder_that_fails_when_sampled_is_told_once(tmp_path):
    bad = Bad("")
    asked = []

    def sample():
        asked.append(1)
        raise ZeroDivisionError

    bad.sample = sample
    bad.metrics = lambda rows: {"probe/bad/x": Metric("sum", 1)}
    with start("p", run_dir=tmp_path / "run", recorders=[bad]) as session:
        session.recording.writer._sample_interval_s = 0.01
        deadline = time.monotonic() + 300
        while not session.recording.switched_off and time.monotonic() < deadline:
            time.sleep(0.01)
        count = len(asked)
        for step in range(20):
            with session.step(step):
                session.flush()
        time.sleep(0.1)
    assert len(asked) == count
    with Run(tmp_path / "run") as run:
        assert run.incidents["where"].tolist() == ["Bad.sample"]
        assert (run.scalars["key"] == "probe/bad/x").sum() == 20
