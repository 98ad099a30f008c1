"""Issue 15, part 6: the rollout's long tail, exact in whole nanoseconds, and nothing where times aren't known."""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from probe.analysis.long_tail.markup import under_way
from probe.analysis.long_tail.tail import Requests, order_statistic, step_of
from probe.cli import main
from probe.recorders import rollout_rows

SECOND = 1_000_000_000

TIMES = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)).map(lambda two: (two[0], sum(two)))
REPLICAS = st.lists(st.lists(TIMES, min_size=1, max_size=12), min_size=1, max_size=4)


def requests(times):
    return Requests(*np.array(times, np.int64).T)


def step(replicas):
    held = {f"r{at}": [requests(one)] for at, one in enumerate(replicas)}
    counts = {name: len(parts[0].end_ns) for name, parts in held.items()}
    many = sum(counts.values())
    return step_of(1, held, samples=many, timed=many, counts=counts)


@settings(max_examples=150, deadline=None)
@given(REPLICAS)
def test_15_6_the_parts_of_a_step_add_up_exactly(replicas):
    found = step(replicas)
    every = [one for times in replicas for one in times]
    ends = sorted(end for _, end in every)
    assert found.before_ns + found.tail_ns == max(ends) - min(begin for begin, _ in every)
    # The definition of the ninth decile, by counting.
    assert sum(end <= found.ninth_ns for end in ends) * 10 >= 9 * len(ends)
    assert sum(end < found.ninth_ns for end in ends) * 10 < 9 * len(ends)
    assert sum(one.samples for one in found.replicas) == found.samples == len(every)
    assert sum(one.late for one in found.replicas) == sum(end > found.ninth_ns for end in ends)
    for one, times in zip(found.replicas, replicas, strict=True):
        moments = sorted({found.ninth_ns, found.end_ns, *(m for two in times for m in two)})
        inside = [m for m in moments if found.ninth_ns <= m <= found.end_ns]
        busy = sum(
            last - first
            for first, last in itertools.pairwise(inside)
            if any(begin <= first and last <= end for begin, end in times)
        )
        assert busy + one.idle_ns == found.tail_ns
        assert one.median_ns <= one.ninth_decile_ns <= one.longest_ns == max(end - begin for begin, end in times)


@settings(max_examples=60, deadline=None)
@given(st.lists(TIMES, min_size=1, max_size=40))
def test_15_6_a_lane_is_as_high_as_it_has_requests_under_way(times):
    found = step([times]).replicas[0]
    first, last = found.begin_ns, max(found.end_ns, found.begin_ns + 1)
    for at, count in under_way(found, first, last)[:-1]:
        moment = first + at * (last - first)
        open_now = sum(begin <= moment + 1e-6 and moment + 1e-6 < end for begin, end in times)
        assert count == open_now
    assert under_way(found, first, last)[-1][1] == 0


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=30), st.integers(1, 10))
def test_15_6_a_quantile_is_the_smallest_value_that_this_share_does_not_exceed(values, tenths):
    found = order_statistic(np.array(values), tenths)
    assert sum(one <= found for one in values) * 10 >= tenths * len(values)
    assert sum(one < found for one in values) * 10 < tenths * len(values)


def test_15_6_rows_keep_every_kth_request_of_many_and_the_last_of_them(monkeypatch):
    monkeypatch.setattr(rollout_rows, "TIMES_KEPT", 10)
    begin, end = np.zeros(35, np.int64) + 7, np.random.default_rng(1).permutation(35) + 100
    times = rollout_rows.times_of(begin, end, 35)
    (row,) = rollout_rows.rollouts(rollout_rows.Answers(["x"] * 35, times), 35, 3, "test")
    assert (row.samples, row.timed, row.begin_ns, row.end_ns) == (35, 35, 7, 134)
    assert row.requests_end_ns == [134 - 7 - 4 * back for back in reversed(range(9))]
    assert row.requests_begin_ns == [0] * 9
    assert (row.median_ns, row.ninth_decile_ns, row.longest_ns) == (117 - 7, 131 - 7, 127)


@pytest.fixture
def told(tmp_path):
    """Runs some steps that tell, and opens the run."""
    with ExitStack() as stack:

        def run(tell, steps=(1,)):
            with probe.start("p", "e", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
                for number in steps:
                    with session.step(number):
                        tell(number)
            return stack.enter_context(probe.open(tmp_path / "run"))

        yield run


def test_15_6_times_replicas_and_staleness_of_all_samples_are_told(told):
    begin = [1_000, 1_000, 3_000, 3_000, None]
    end = [5_000, 9_000, 4_000, 23_000, 8_000]

    def tell(number):
        probe.samples(
            [3] * 5,
            begin_ns=begin,
            end_ns=end,
            replicas=["a", "b", "a", "b", "b"],
            weight_versions=[7, 7, 6, 4, 7],
            trainer_version=7,
        )

    run = told(tell)
    (found,) = run.long_tail().steps
    assert (found.samples, found.timed, found.whole, found.staleness) == (5, 4, True, {0: 3, 1: 1, 3: 1})
    assert (found.median_ns, found.ninth_decile_ns, found.longest_ns) == (4_000, 20_000, 20_000)
    assert (found.before_ns, found.tail_ns) == (22_000, 0)  # of four the last is the ninth decile, too
    assert [(one.name, one.samples, one.late) for one in found.replicas] == [("a", 2, 0), ("b", 3, 0)]
    rows = run.samples
    assert rows["replica"].tolist() == ["a", "b", "a", "b", "b"]
    assert (rows["end_ns"] - rows["begin_ns"]).dropna().tolist() == [4_000, 8_000, 1_000, 20_000]
    assert "The end of 1 answer wasn't recorded." in run.long_tail().notes
    assert run.incidents.empty


def test_15_6_where_only_a_batchs_times_are_known_no_tail_is_claimed(told, tmp_path, capsys):
    run = told(lambda _: probe.samples([3] * 20, begin_ns=10, end_ns=50, replicas="rank 0"), (1, 2))
    found = run.long_tail()
    assert all((one.tail_ns, one.median_ns, one.share, one.idle_ns) == (None,) * 4 for one in found.steps)
    assert all(one.end_ns - one.begin_ns == 40 for one in found.steps)
    assert (
        found.sentence
        == "Answers come in whole batches: when each of them ended isn't known, so there is no tail to measure."
    )
    assert not {"long_tail", "rollout_ends"} & {one.name for one in run.findings()}
    assert "probe-long-tail" in found._repr_html_()
    assert main(["long-tail", str(tmp_path / "run"), "--json"]) == 0
    assert '"tail_s": null' in capsys.readouterr().out


def test_15_6_without_any_times_there_is_no_answer(told, tmp_path, capsys):
    run = told(lambda _: probe.samples([3] * 4))
    assert run.long_tail() is None
    assert main(["long-tail", str(tmp_path / "run")]) == 1
    assert "when answers were sampled wasn't recorded" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [{"begin_ns": [1, 2]}, {"begin_ns": [1], "end_ns": [2]}, {"begin_ns": 1, "end_ns": [2, 3]}]
)
def test_times_that_are_of_other_samples_are_refused(tmp_path, wrong):
    with (
        probe.start("p", run_dir=tmp_path / "run") as session,
        session.step(1),
        pytest.raises(probe.errors.InputError, match="_ns"),
    ):
        probe.samples([3, 3], **wrong)


def test_15_the_mismatch_of_a_step_is_a_metric_of_all_its_tokens(told):
    """Equal to the definitions of probe/analysis/mismatch/measures.py, over every told token and not the kept few."""
    from probe.analysis.mismatch.measures import measured

    drawing = np.random.default_rng(3)
    log_ratio = drawing.normal(0, 0.7, (200, 5))
    mask = drawing.random((200, 5)) < 0.8
    rollout = np.full((200, 5), -2.0)
    run = told(
        lambda _: probe.samples([5] * 200, mask=mask, rollout_log_probs=rollout, log_probs=rollout + log_ratio),
    )
    expected = measured(log_ratio[mask])
    logged = run.scalars.set_index("key")["value"]
    for name in rollout_rows.MEASURES:
        assert logged[f"probe/samples/mismatch_{name}"] == pytest.approx(getattr(expected, name), rel=1e-9)
    (row,) = run.rollouts.to_dict("records")
    assert row["compared_tokens"] == mask.sum()


def test_two_definitions_of_the_ratio_are_one():
    from probe.analysis.mismatch import measures

    for name in ("LARGEST_LOG_RATIO", "BELOW", "ABOVE"):
        assert getattr(rollout_rows, name) == getattr(measures, name)


def test_15_dashboards_get_the_tail_of_all_replicas_together(tmp_path):
    from probe.publishing import across_ranks

    run = tmp_path / "run"
    for rank in range(2):
        with probe.start("p", "e", run_dir=run, rank=rank, world_size=2) as session, session.step(4):
            now = time.monotonic_ns()
            ends = [now + 1_000_000 * (at + 1) for at in range(5)]
            ends[-1] += 20_000_000 * rank
            probe.samples([3] * 5, begin_ns=[now] * 5, end_ns=ends, replicas=f"rank {rank}")
            wait_until(ends[-1])
    with probe.open(run) as opened:
        (found,) = opened.long_tail().steps
        logged = across_ranks.numbers(opened, [4], [])[4]
    assert logged["probe/across_ranks/rollout_tail_s"] == found.tail_ns / 1e9 > 0
    assert logged["probe/across_ranks/rollout_tail_ratio"] == found.share > 0
    assert set(across_ranks.TAIL) <= across_ranks.keys_of([])


def wait_until(moment):
    while time.monotonic_ns() < moment:
        time.sleep(0.001)


def test_a_row_that_times_samples_of_another_process_is_not_counted_twice(told):
    from probe.hooks import emit
    from probe.sampled import TIMED

    def tell(number):
        given = {"step": number, "phase": "gen", "source": "loop", "begin_ns": [1, 2], "end_ns": [5, 9]}
        emit(TIMED, replicas=["x", "y"], **given)
        probe.samples([3, 4], weight_versions=[1, 1], trainer_version=2)

    run = told(tell)
    (found,) = run.long_tail().steps
    assert (found.samples, found.timed, found.staleness) == (2, 2, {1: 2})
    assert [one.name for one in found.replicas] == ["x", "y"]


def test_15_6_of_fewer_than_ten_answers_there_is_no_tail_and_none_outside_the_step(tmp_path):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        for number in range(3):
            with session.step(number):
                asked = time.monotonic_ns()
                probe.samples([4] * 3, begin_ns=[asked] * 3, end_ns=[asked + 1, asked + 2, asked + 1000])
    found = session.run.long_tail()
    assert found.sentence == "The last tenth of the answers ends at one time: there is no tail (median of 2 steps)."
