"""What probe costs, as it says it: by a clock that the tests turn, and against what a run without it takes."""

from __future__ import annotations

import gc
import math
import threading
import time
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from probe import hooks
from probe.analysis import cost as cost_of
from probe.analysis import overview
from probe.analysis.verdict import findings
from probe.core.seqlen_balancing import micro_batches, rearrange_micro_batches
from probe.errors import InputError
from probe.hooks import Listener, phase, scope, subscribe
from probe.own_cost import COST, FIRST, HOOKS, OUTSIDE, RATIO, STEP, STEPS, WRITER, Activity, Budget, OwnCost, Threads
from probe.recorders.recorder import Recorder
from probe.records import Scalar
from probe.runs.reader import Run
from probe.runs.writer import RunWriter
from probe.session import start
from tests.sample_run import clock, open_run

MS = 1_000_000


class Clocks:
    """Everything that own cost is worked out from, turned by hand; milliseconds."""

    def __init__(self) -> None:
        self.now = self.hooks = self.writer = self.thread = 0.0
        self.waits = 0

    def watch(self) -> int:
        return 1

    def activity(self, thread: int) -> Activity:
        return Activity(round(self.thread * MS), self.waits)

    def cost(self) -> OwnCost:
        return OwnCost(
            lambda: round(self.writer * MS),
            spent_ns=lambda: round(self.hooks * MS),
            clock=lambda: round(self.now * MS),
            threads=self,  # type: ignore[arg-type]  # it has the same two methods
            turn_ns=lambda: 5 * MS,
        )

    def step(self, cost, number, hooks_ms=0.0, work_ms=0.0, waits_ms=0.0):
        begun = cost.begin()
        self.hooks += hooks_ms
        self.now += hooks_ms + work_ms + waits_ms
        self.thread += hooks_ms + work_ms
        return cost.end(number, begun)


@pytest.fixture
def clocks():
    return Clocks()


def test_e_hooks_are_billed_to_the_step_in_which_they_ran(clocks):
    cost = clocks.cost()
    ended = [clocks.step(cost, step, hooks_ms=step, work_ms=10) for step in range(5)]
    billed = [cost.bill(one) for one in ended]  # all of them later, in one round of the writer
    assert [one[HOOKS] for one in billed] == [0, 1, 2, 3, 4]
    assert [one[RATIO] for one in billed[1:]] == [1 / 11, 2 / 12, 3 / 13, 4 / 14]


def test_e_the_first_step_is_told_apart(clocks):
    cost = clocks.cost()
    first, second = (clocks.step(cost, step, hooks_ms=900 - 899 * step, work_ms=9) for step in range(2))
    told = cost.bill(first)
    assert told[FIRST] == 900
    assert {RATIO, STEP, COST}.isdisjoint(told)
    told = cost.bill(second)
    assert FIRST not in told
    assert (told[STEP], told[RATIO]) == (10, 0.1)


def test_e_hooks_between_steps_are_of_no_step_and_are_not_lost(clocks):
    cost = clocks.cost()
    first = clocks.step(cost, 0, hooks_ms=1, work_ms=9)
    clocks.hooks += 4
    clocks.now += 4
    second = clocks.step(cost, 1, hooks_ms=1, work_ms=9)
    billed = [cost.bill(one) for one in (first, second)]
    assert OUTSIDE not in billed[0]
    assert (billed[1][OUTSIDE], billed[1][HOOKS], billed[1][RATIO]) == (4, 1, 0.1)


def test_e_a_round_of_the_writer_is_billed_to_all_steps_that_it_served(clocks):
    cost = clocks.cost()
    ended = [clocks.step(cost, step, work_ms=0.8) for step in range(400)]
    clocks.writer += 32.0
    billed = [cost.bill(one)[WRITER] for one in ended]
    assert min(billed) == pytest.approx(0.08, rel=1e-3)
    assert max(billed) == pytest.approx(0.08, rel=1e-3)
    assert sum(billed) == pytest.approx(32.0, abs=1e-9)


def test_e_the_writer_s_work_between_steps_is_billed_to_none_and_of_an_open_step_to_that(clocks):
    cost = clocks.cost()
    first = clocks.step(cost, 0, work_ms=10)
    clocks.now += 10  # a validation, say
    begun = cost.begin()
    clocks.now += 20
    clocks.writer += 4  # over 40 ms
    assert cost.bill(first)[WRITER] == 1
    clocks.now += 20
    clocks.writer += 2
    assert cost.bill(cost.end(1, begun))[WRITER] == 4


def test_e_waiting_for_the_lock_is_at_most_what_the_writer_used(clocks):
    cost = clocks.cost()
    cost.bill(clocks.step(cost, 0, work_ms=10))

    def lock_ms(**step):
        ended = clocks.step(cost, 1, **step)
        clocks.writer += 2
        return cost.bill(ended)[COST]

    assert lock_ms(work_ms=10) == 2  # it wanted the lock all the time
    assert lock_ms(waits_ms=10) == 0  # for a device, or the network
    assert lock_ms(work_ms=4, waits_ms=6) == 1


def test_e_a_thread_that_wakes_up_waits_for_what_is_left_of_the_writer_s_turn(clocks):
    cost = clocks.cost()
    cost.bill(clocks.step(cost, 0, work_ms=10))

    def lock_ms(wakes, writer_ms):
        ended = clocks.step(cost, 1, waits_ms=100)
        clocks.waits += wakes
        clocks.writer += writer_ms
        return cost.bill(ended)[COST]

    assert lock_ms(1, 2) == pytest.approx(2 / 100 * 1)  # it comes upon the writer twice in a hundred times, half way
    assert lock_ms(20, 2) == pytest.approx(20 * 2 / 100 * 1)
    assert lock_ms(1, 20) == pytest.approx(15 / 100 * 5 + 5 / 100 * 2.5)  # which gives the lock up after 5 ms
    assert lock_ms(10_000, 2) == 2  # no more than the writer had it
    assert lock_ms(0, 2) == 0


def test_e_how_often_a_thread_has_waited_is_known_from_another_one():
    if not Path("/proc/self/task").exists():
        pytest.skip("Linux alone tells")
    threads, found, go = Threads(), [], threading.Event()

    def wait():
        found.append(threads.watch())
        ready.set()
        go.wait()
        for _ in range(50):
            time.sleep(0.001)
        done.set()
        over.wait()

    ready, done, over = threading.Event(), threading.Event(), threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    before = threads.activity(found[0])
    go.set()
    done.wait()
    after = threads.activity(found[0])
    over.set()
    thread.join()
    assert 50 <= after.waits - before.waits < 500


def test_e_where_threads_have_no_clocks_all_of_the_writer_counts(clocks):
    clocks.activity = lambda thread: Activity()
    cost = clocks.cost()
    cost.bill(clocks.step(cost, 0, work_ms=10))
    ended = clocks.step(cost, 1, waits_ms=10)
    clocks.writer += 2
    assert cost.bill(ended)[COST] == 2


def written(tmp_path, billed):
    rows = [
        Scalar(key=key, value=value, source="probe", step=step, time_ns=clock(0) + step * MS)
        for step, one in enumerate(billed)
        for key, value in one.items()
    ]
    return open_run(tmp_path, {0: rows})


def test_e_many_small_steps_cost_what_they_cost_together(clocks, tmp_path):
    """2,000 steps of 0.8 ms, 0.2 of them in hooks, and now and then a round of the writer: it said "0 %, good"."""
    cost, billed, ended = clocks.cost(), [], []
    for step in range(2000):
        ended.append(clocks.step(cost, step, hooks_ms=0.2, work_ms=0.6 if step else 400.0))
        if step % 400 == 399:
            clocks.writer += 6.4  # of 320 ms
            billed += [cost.bill(one) for one in ended]
            ended = []
    with written(tmp_path, billed) as run:
        tile = overview.numbers(run).set_index("name").loc["own_cost"]
        said = findings(run).named("own_cost").sentence
    assert tile["value"] == pytest.approx((0.2 + 0.016) / 0.8, rel=1e-3)
    assert (tile["text"], tile["status"]) == ("27 %", "alarm")
    assert said.startswith("probe took 27 % of step time")
    assert "The first step isn't counted: probe took" in said


def test_e_three_steps_of_which_the_first_warms_up(clocks, tmp_path):
    """The tile said 141 %: most of the first step's hooks were imports, and steps were as short as an example's are."""
    cost = clocks.cost()
    spent = ((70, 30), (0.2, 19.8), (0.2, 19.8))
    ended = [clocks.step(cost, step, hooks_ms=hooks, work_ms=work) for step, (hooks, work) in enumerate(spent)]
    with written(tmp_path, [cost.bill(one) for one in ended]) as run:
        tile = overview.numbers(run).set_index("name").loc["own_cost"]
        assert cost_of.first_step_ms(run) == 70
    assert (tile["text"], tile["status"]) == ("1.0 %", "warn")


class Slow(Recorder):
    """Takes its time where it is told to."""

    points = ("scope",)

    def __init__(self, at):
        self.at = at

    def enter(self, event):
        if (event.scope.step, event.scope.kind) == self.at:
            time.sleep(0.05)

    def leave(self, event, state):
        self.enter(event)


def told(directory, key):
    with Run(directory) as run:
        frame = run.sql("select step, sum(value) as value from scalars where key = ? group by step", [key])
    return dict(zip(frame["step"].tolist(), frame["value"].tolist(), strict=True))


@pytest.mark.parametrize("kind", ["step", "phase"])
def test_e_a_session_bills_hooks_to_their_step(tmp_path, kind):
    """Also those of the step's own end: they are read by the thread that trains, and not when a row is written."""
    with start("p", run_dir=tmp_path / "run", recorders=[Slow((2, kind))]) as session:
        for step in range(5):
            with session.step(step), phase("x"):
                pass
    found = told(tmp_path / "run", HOOKS)
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert found.pop(2) >= 100
    assert max(found.values()) < 100


def test_e_the_steps_of_a_session_share_its_writer(tmp_path):
    with start("p", run_dir=tmp_path / "run") as session:
        for step in range(50):
            with session.step(step), phase("x"):
                time.sleep(0.001)
        session.flush()
    found = told(tmp_path / "run", WRITER)
    assert sum(value > 0 for value in found.values()) > 45


def test_e_a_thread_that_has_ended_has_no_clock():
    clocks, found = Threads(), []
    thread = threading.Thread(target=lambda: found.append(clocks.watch()))
    thread.start()
    thread.join()
    deadline = time.monotonic() + 300
    while (
        clocks.activity(found[0]) != Activity() and time.monotonic() < deadline
    ):  # the system buries it a little later
        time.sleep(0.001)
    assert clocks.activity(found[0]) == Activity()
    assert clocks.activity(clocks.watch()).cpu_ns != 0


def test_e_collections_that_hooks_set_off_are_in_their_time():
    class Collects(Listener):
        def leave(self, event, state):
            gc.collect()

    took = []

    def watch(when, info):
        took.append(time.monotonic_ns())

    gc.callbacks.append(watch)
    try:
        with subscribe(Collects(), "scope"):
            before = hooks.spent_ns()
            with scope("phase", "x"):
                pass
            spent = hooks.spent_ns() - before
    finally:
        gc.callbacks.remove(watch)
    assert spent >= took[-1] - took[-2]


def test_e_an_empty_step_with_one_phase_leaves_few_objects_to_collections(tmp_path, monkeypatch):
    """What waits for the writer makes each collection longer, and the next one come sooner."""
    monkeypatch.setattr(RunWriter, "_round", lambda self, last=False: None)  # nothing is taken away meanwhile
    monkeypatch.setattr(RunWriter, "_sample", lambda self: None)
    with start("p", run_dir=tmp_path / "run") as session:

        def steps(numbers):
            for number in numbers:
                with session.step(number), phase("x"):
                    pass

        steps(range(10))
        gc.collect()
        gc.disable()
        try:
            before = len(gc.get_objects())
            steps(range(10, 110))
            left = (len(gc.get_objects()) - before) / 100
        finally:
            gc.enable()
    assert left < 24  # it was 44


# ------------------------------------------------------------------------------------------------------ the budget


@hooks.observed("test_own_cost.inner", "a call at an inner point")
def inner():
    return None


def trained(directory, budget, steps=40):
    """Steps that hooks take a good part of; what is computed is balanced and padded."""
    with start("p", run_dir=directory, budget=budget) as session:
        for step in range(steps):
            with session.step(step), phase("update", role="actor"):
                for lengths in ([3, 5, 7, 9], [8, 2]):
                    rearrange_micro_batches(batch_of(lengths), max_token_len=12)
                for _ in range(20):
                    with hooks.scope("watch", "forward"):
                        inner()
            session.log({"loss": 1.0 / (1 + step)}, step)


def batch_of(lengths):
    mask = torch.tensor([[1] * one + [0] * (9 - one) for one in lengths])
    return TensorDict({"input_ids": mask, "attention_mask": mask}, batch_size=[len(lengths)])


def counts(directory, table):
    with Run(directory) as run:
        frame = run.sql(f"select step, count(*) as n from {table} where step is not null group by step")
    return dict(zip(frame["step"].tolist(), frame["n"].tolist(), strict=True))


def test_e_a_budget_thins_only_sampled_rows_at_inner_points_and_says_so(tmp_path):
    trained(tmp_path / "all", None)
    trained(tmp_path / "kept", 1e-9)
    for table in ("micro_batches", "padding", "reductions"):
        assert counts(tmp_path / "all", table) == counts(tmp_path / "kept", table)
    with Run(tmp_path / "all") as whole, Run(tmp_path / "kept") as kept:
        scopes = "select kind, count(*) as n from memory where kind in ('step', 'phase') group by kind order by kind"
        assert whole.sql(scopes).to_dict() == kept.sql(scopes).to_dict()
        told = "select key, count(*) as n from scalars where source = 'user' group by key"
        assert whole.sql(told).to_dict() == kept.sql(told).to_dict()
        left = kept.incidents[kept.incidents["kind"] == "budget"].groupby("where")["count"].sum().to_dict()
        for table, where, condition in (
            ("calls", "test_own_cost.inner", "point = 'test_own_cost.inner'"),
            ("memory", "scope.watch", "kind = 'watch'"),
        ):
            question = f"select count(*) as n from {table} where {condition}"
            here, there = (int(run.sql(question)["n"][0]) for run in (whole, kept))
            assert 0 < there < here / 4, where  # the first steps, before it knew
            assert there + left[f"{table}: {where}"] == here
        assert kept.incidents["message"].str.contains("without them it is still").any()
        said = [one.sentence for one in findings(kept)]
        assert any("rows of inner points were left out to keep the budget" in one for one in said)
        assert not any("incident" in one for one in said)
        peaks = "select count(*) as n from scalars where starts_with(key, 'probe/memory/phase/update')"
        assert whole.sql(peaks)["n"][0] == kept.sql(peaks)["n"][0]


@pytest.mark.parametrize("recorders", [None, ["calls", "token_balance"]])
def test_e_what_lies_inside_a_scope_that_is_left_out_lies_in_the_one_around_it(tmp_path, recorders):
    """A phase is counted once, and the batch of a micro-batch is told, as without a budget."""

    def told(name, budget):
        with start("p", run_dir=tmp_path / name, budget=budget, recorders=recorders) as session:
            for step in range(4):
                with session.step(step), phase("update", role="actor"), hooks.scope("watch", "helper"):
                    with phase("forward"):
                        pass
                    for _ in micro_batches(batch_of([3, 5, 7, 9]), max_token_len=12):
                        inner()
        with Run(tmp_path / name) as run:
            levels = run.sql(
                """select step, level, phase, tokens, count(*) as n from spans where kind in ('phase', 'micro_batch')
                group by all order by all"""
            )
            left = run.incidents[run.incidents["kind"] == "budget"]["where"]
        return levels.astype(object).where(levels.notna(), None).to_dict("records"), set(left)

    whole, nothing = told("whole", None)
    kept, left = told("kept", 1e-9)
    assert kept == whole
    assert nothing == set()
    assert "calls: test_own_cost.inner" in left
    assert ("memory: scope.watch" in left) == (recorders is None)  # else calls alone tell of scopes


def test_e_a_budget_that_is_kept_leaves_nothing_out(tmp_path):
    with start("p", run_dir=tmp_path / "run", budget=1.0) as session:
        for step in range(5):
            with session.step(step), phase("update"):
                inner()
                time.sleep(0.002)
        assert session.budget.left_out == {}


def test_e_a_budget_follows_what_steps_cost_together(clocks):
    cost, budget = clocks.cost(), Budget(0.1)

    def after(**spent):
        ended = clocks.step(cost, 1, **spent)
        budget.note(ended)
        budget.note_bill(cost.bill(ended))
        return budget.thins

    assert not after(hooks_ms=900)  # the first
    assert not after(hooks_ms=1, work_ms=99)
    assert after(hooks_ms=30, work_ms=70)
    assert budget.spent_ratio == pytest.approx(0.155)
    assert after(hooks_ms=5, work_ms=95)
    assert not after(hooks_ms=1, work_ms=199)
    for _ in range(STEPS):
        after(work_ms=100)
    assert budget.spent_ratio == pytest.approx(0)


@pytest.mark.parametrize("budget", [0, -0.1, 1.5, True, "1 %", math.nan])
def test_e_a_budget_is_a_share(tmp_path, budget):
    with pytest.raises(InputError, match="budget: got"):
        start("p", run_dir=tmp_path / "run", budget=budget)
    assert not (tmp_path / "run").exists()
