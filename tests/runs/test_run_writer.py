"""The writer: what is put is stamped, seen and written, and nothing that goes wrong reaches the caller."""

from __future__ import annotations

import threading
import time

import pytest

from probe import hooks
from probe.errors import InputError, RunError
from probe.hooks import Scope, current_scope, scope
from probe.records import Call, Deferred, Memory, Row, Scalar
from probe.runs.reader import Run
from probe.runs.writer import SOON, RunWriter
from tests.runs.writer_rows import incidents, keys, scalars, until

# ------------------------------------------------------------------------------------------------ what is put


def test_items_of_every_shape_are_taken(directory, writer, put):
    one = writer()
    put(
        one,
        Scalar(key="row", value=1),
        None,
        [Scalar(key="list", value=2), None, [Scalar(key="nested", value=3)]],
    )
    put(
        one,
        (Scalar(key=key, value=4) for key in ("generated",)),
        Deferred(lambda: [Scalar(key="deferred", value=5)]),
    )
    assert one.flush()
    with Run(directory) as run:
        assert run.scalars["key"].tolist() == ["row", "list", "nested", "generated", "deferred"]


def test_a_generator_is_consumed_at_once(writer, put):
    one = writer()
    taken = []

    def rows():
        taken.append(threading.current_thread())
        yield Scalar(key="k", value=1)

    put(one, rows())
    assert taken == [threading.current_thread()]


@pytest.mark.usefixtures("lenient")
def test_what_is_no_item_is_told_and_never_raises(directory, writer, put):
    def broken():
        yield Scalar(key="k", value=1)
        raise OSError("in the recorder")

    class Foreign(Row, kw_only=True, tag="foreign"):
        pass

    one = writer()
    put(one, 3, "text", broken(), Foreign(), Memory(edge=object()), Scalar(key="k", value=2))
    assert one.flush()
    assert one.flush()
    with Run(directory) as run:
        assert run.scalars["value"].tolist() == [1, 2]
        assert run.incidents["kind"].tolist() == ["writer"] * 5
        assert "in the recorder" in "".join(run.incidents["traceback"])


def test_rows_are_stamped_with_the_scope_of_their_put(directory, writer, put):
    one = writer(rank=2)
    with scope("step", "step", step=4, role="actor"), scope("phase", "update", phase="update"):
        put(one, Scalar(key="k", value=1))
        inner = current_scope()
    one.flush()
    with Run(directory) as run:
        row = run.scalars.iloc[0]
    assert (row["rank"], row["step"], row["role"], row["phase"]) == (2, 4, "actor", "update")
    assert (row["scope"], row["scope_id"]) == ("step/update", inner.id)


def test_rows_of_one_thread_keep_their_order_and_none_is_lost(directory, writer):
    one = writer(interval_s=0.01)

    def produce(thread):
        for value in range(2000):
            kind = (
                Memory(edge=str(thread), allocated_bytes=value)
                if value % 2
                else Call(point=str(thread), begin_ns=value)
            )
            one.add_rows(kind, current_scope(), 1)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.flush(20)
    with Run(directory) as run:
        for thread in map(str, range(4)):
            memory = run.memory[run.memory["edge"] == thread]["allocated_bytes"]
            calls = run.calls[run.calls["point"] == thread]["begin_ns"]
            assert memory.tolist() == list(range(1, 2000, 2))
            assert calls.tolist() == list(range(0, 2000, 2))
    assert one.dropped == {}


def test_rows_are_written_without_being_asked(directory, writer, put):
    put(writer(), Scalar(key="k", value=1))
    until(lambda: b'"scalars"' in (directory / "rank-00000.jsonl").read_bytes())


# --------------------------------------------------------------------------------------------------- deferred


def test_a_deferred_waits_for_its_turn_and_holds_up_nobody(directory, writer, put):
    one = writer(interval_s=0.01)
    ready, built = threading.Event(), []

    def build():
        built.append(threading.current_thread().name)
        return [Scalar(key="late", value=1)]

    with scope("phase", "p", step=3):
        put(one, Deferred(build, ready.is_set))
    put(one, Scalar(key="early", value=1))
    until(lambda: b"early" in (directory / "rank-00000.jsonl").read_bytes())
    assert not built
    ready.set()
    assert one.flush()
    assert built == ["probe-run-writer"]
    with Run(directory) as run:
        assert run.scalars[["key", "step"]].iloc[1].tolist() == ["late", 3]


@pytest.mark.usefixtures("lenient")
def test_a_deferred_that_fails_is_an_incident(directory, writer, put):
    one = writer()
    put(
        one,
        Deferred(lambda: 1 / 0),
        Deferred(list, lambda: 1 / 0),
        Deferred(lambda: [Scalar(key="k", value=1)]),
    )
    assert one.flush()
    assert one.flush()
    found = incidents(directory)
    assert found["kind"].tolist() == ["deferred"] * 2
    assert "ZeroDivisionError" in found["traceback"][0]


def test_building_is_not_observed(writer, put):
    heard = []

    class Hear(hooks.Listener):
        def leave(self, event, state):
            heard.append(event.point.name)

    @hooks.observed("test_writer.work")
    def work():
        return [Scalar(key="k", value=1)]

    one = writer()
    with hooks.subscribe(Hear(), "test_writer.*"):
        put(one, Deferred(work))
        assert one.flush()
    assert heard == []


def test_a_deferred_that_is_never_ready_is_given_up_at_close(directory, writer, put):
    one = writer()
    put(one, Deferred(list, lambda: False), Scalar(key="k", value=1))
    one.close()
    assert incidents(directory, "deferred")["count"].tolist() == [1]


class Partly(Deferred):
    """Rows of which something is known before they are ready."""

    partial = True


def test_what_is_known_of_rows_that_are_never_ready_is_written_at_close(directory, writer, put):
    one = writer()
    put(one, Partly(lambda: [Scalar(key="known", value=1)], lambda: False))
    one.close()
    assert keys(directory) == ["known"]
    assert incidents(directory, "deferred").empty


def test_the_end_waits_a_moment_for_rows_that_become_ready(directory, writer, put):
    one, asked = writer(), []

    def ready():
        asked.append(1)
        return one._stop.is_set() and len(asked) > 20

    put(one, Deferred(lambda: [Scalar(key="late", value=1)], ready))
    one.close()
    assert keys(directory) == ["late"]
    assert incidents(directory, "deferred").empty


# --------------------------------------------------------------------------------------- marks, on_rows, tick


def test_a_mark_comes_after_all_that_was_put_before(directory, writer, put):
    seen, at_mark = [], []
    ready = threading.Event()
    one = writer(interval_s=0.01, on_rows=seen.extend)
    put(one, scalars(500), Deferred(lambda: [Scalar(key="late", value=1)], ready.is_set))

    def marked():
        at_mark.append((len(seen), (directory / "rank-00000.jsonl").read_bytes().count(b'"scalars"')))

    one.mark(marked)
    time.sleep(0.05)
    assert not at_mark
    ready.set()
    assert one.flush()
    assert at_mark == [(501, 501)]


def test_e_many_rows_that_wait_at_a_mark_are_written_at_once(directory, writer, put):
    one = writer(interval_s=600, sample_interval_s=600)
    assert one.flush()  # the round with which it begins is over
    called = threading.Event()
    put(one, scalars(SOON))
    one.mark(called.set)
    assert not called.wait(0.5)
    put(one, scalars(1))
    one.mark(lambda: None)
    assert called.wait(60)


def test_a_mark_does_not_wait_for_ever(writer, put, monkeypatch):
    monkeypatch.setattr("probe.runs.marks.MARK_WAIT_S", 0.05)
    one = writer(interval_s=0.01)
    put(one, Deferred(list, lambda: False))
    called = threading.Event()
    one.mark(called.set)
    assert called.wait(60)


def test_what_the_last_mark_puts_is_written(directory, writer, put):
    one = writer(interval_s=5)
    one.mark(lambda: put(one, Scalar(key="from the mark", value=1)))
    one.close()
    with Run(directory) as run:
        assert run.scalars["key"].tolist() == ["from the mark"]


@pytest.mark.usefixtures("lenient")
def test_a_mark_that_fails_is_an_incident_and_the_next_is_called(directory, writer):
    one = writer()
    one.mark(lambda: 1 / 0)
    assert one.flush()
    one.close()
    assert incidents(directory)["where"].tolist() == ["mark"]


@pytest.mark.usefixtures("lenient")
def test_callbacks_that_fail_are_switched_off(directory, writer, put):
    calls = []

    def on_rows(rows):
        calls.append(rows)
        raise ValueError("on_rows")

    def tick():
        raise ValueError("tick")

    one = writer(interval_s=0.01, sample_interval_s=0.01, on_rows=on_rows, tick=tick)
    for value in range(6):
        put(one, Scalar(key="k", value=value))
        assert one.flush()
    until(lambda: len(incidents(directory)) == 6)
    found = incidents(directory)
    for name in ("on_rows", "tick"):
        of_one = found[found["where"] == name]
        assert of_one["count"].tolist() == [1, 2, 3]
        assert of_one["switched_off"].tolist() == [False, False, True]
    assert len(calls) == 3
    with Run(directory) as run:
        assert len(run.scalars) == 6


def test_tick_puts_samples_in_the_process_scope(directory, writer):
    def tick():
        yield [Memory(edge="sample", allocated_bytes=threading.get_ident())]

    with scope("step", "step", step=1):
        one = writer(sample_interval_s=0.01, interval_s=0.01, tick=tick)
        until(lambda: b"sample" in (directory / "rank-00000.jsonl").read_bytes())
    one.close()
    with Run(directory) as run:
        assert run.memory["step"].isna().all()
        assert set(run.memory["scope_id"]) == {0}
        assert threading.get_ident() not in set(run.memory["allocated_bytes"])


def test_a_sample_is_of_no_step_where_the_step_changes_while_it_is_read(directory, writer):
    steps = [3]

    def tick():
        allocated_bytes = len(steps)
        if steps[-1] < 6:
            steps.append(steps[-1] + 1)  # the training thread goes on, as this one loses the processor
        return [Memory(edge="sample", allocated_bytes=allocated_bytes)]

    one = writer(
        sample_interval_s=0.01,
        interval_s=0.01,
        tick=tick,
        tick_scope=lambda: Scope("process", "process", step=steps[-1]),
    )
    until(lambda: (directory / "rank-00000.jsonl").read_bytes().count(b'"sample"') > 5)
    one.close()
    with Run(directory) as run:
        samples = run.memory[["allocated_bytes", "step"]]
    changing, within = samples[samples["allocated_bytes"] < 4], samples[samples["allocated_bytes"] == 4]
    assert changing["step"].isna().tolist() == [True] * 3
    assert len(within) >= 3
    assert set(within["step"]) == {6}


def test_own_cost_is_counted(writer, put):
    one = writer()
    put(one, scalars(2000))
    assert one.flush()
    until(lambda: one.cost_ns > 0)


def test_a_directory_that_cannot_be_used_is_an_error_at_once(tmp_path, process):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="can't be written to"):
        RunWriter(tmp_path / "file", rank=0, process=process())


@pytest.mark.parametrize(
    "bad", [{"rank": -1}, {"capacity": 0}, {"interval_s": 0}, {"roll_over_bytes": 0}, {"rank": "0"}]
)
def test_bad_arguments_are_named(directory, process, bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        RunWriter(directory, **{"rank": 0, "process": process(), **bad})
    assert not list(directory.glob("*.jsonl"))
