"""Issue 13, supplement (d): what the time of training and of sampling goes for, where both run at once.

Exact in whole nanoseconds; nothing is claimed of requests that may be under way still, nor of sides that take turns.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from probe.analysis.idle import Idle
from probe.analysis.idle.sides import REPLICA, TRAINER, Trainer, step_of
from probe.analysis.long_tail.tail import Requests, between, merged
from probe.analysis.verdict import Finding
from probe.cli import main
from probe.demo.zoo.ahead import Ahead
from probe.demo.zoo.clock import fake_time
from probe.opened import Run
from probe.sampled import TIMED
from probe.testing import FakeClock

SECOND = 10**9
WALL_NS = 1_790_000_000 * SECOND

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)).map(lambda two: (two[0], sum(two))), max_size=8)


def spans_of(given_spans: Sequence[tuple[int, int]]) -> Requests:
    both = np.array(given_spans, np.int64).reshape(-1, 2)
    return merged(both[:, 0], both[:, 1])


def covers(given_spans: Sequence[tuple[int, int]], moment: int) -> bool:
    """Whether the nanosecond from this moment on lies in any of them."""
    return any(begin <= moment < end for begin, end in given_spans)


@settings(max_examples=200, deadline=None)
@given(SPANS)
def test_merged_stretches_are_the_same_time_apart_and_in_order(given_spans: list[tuple[int, int]]) -> None:
    found = spans_of(given_spans)
    assert (found.end_ns[:-1] < found.begin_ns[1:]).all()
    listed = list(zip(found.begin_ns.tolist(), found.end_ns.tolist(), strict=True))
    for moment in range(95):
        assert covers(listed, moment) == covers(given_spans, moment)
    near = between(found, 20, 50)
    kept = list(zip(near.begin_ns.tolist(), near.end_ns.tolist(), strict=True))
    assert all(covers(kept, moment) == covers(listed, moment) for moment in range(20, 50))
    assert all(end > 20 and begin < 50 for begin, end in kept)


@settings(max_examples=200, deadline=None)
@given(SPANS, SPANS, SPANS, st.lists(SPANS, min_size=1, max_size=3))
def test_13_d_the_parts_of_both_sides_add_up_to_the_wall_time_nanosecond_by_nanosecond(
    work: list[tuple[int, int]],
    weights: list[tuple[int, int]],
    answers: list[tuple[int, int]],
    replicas: list[list[tuple[int, int]]],
) -> None:
    trainer = Trainer(spans_of(work), spans_of(weights), spans_of(answers))
    held = {f"engine {at}": spans_of(one) for at, one in enumerate(replicas)}
    found = step_of(3, 10, 50, trainer, held)
    moments = range(10, 60)

    def doing(moment: int) -> str:
        given_spans = {"work": work, "weights": weights, "answers": answers}
        return next((name for name, one in given_spans.items() if covers(one, moment)), "rest")

    assert found.trainer == {name: sum(doing(one) == name for one in moments) for name in TRAINER}
    assert sum(found.trainer.values()) == found.wall_ns == 50
    for name, one in zip(held, replicas, strict=True):
        told = ["sampling" if covers(one, moment) else doing(moment) for moment in moments]
        assert found.replicas[name] == {part: told.count(part) for part in REPLICA}
        assert sum(found.replicas[name].values()) == 50
    sampling = [any(covers(one, moment) for one in replicas) for moment in moments]
    assert found.sampling_ns == sum(sampling)
    assert found.overlap_ns == sum(asked and covers(work, one) for asked, one in zip(sampling, moments, strict=True))


# -------------------------------------------------------------------------------------------------- runs


class Made:
    """A run whose trainer does the same in each step, on a clock of its own, beside replicas that are asked anyhow.

    Args:
        place: The run directory.
        phases: Seconds of each phase of a step, in their order; "" is in none.
        asked: Of a step, the seconds from its begin at which each replica is asked and has answered; None for nothing.
        steps: How many.
        config: Of the run.
    """

    def __init__(
        self,
        place: Path,
        phases: dict[str, float],
        asked: Callable[[int], dict[str, tuple[float, float]]],
        *,
        steps: int = 12,
        config: Any = None,
        tells: Callable[[int, list[str], list[int], list[int]], None] | None = None,
    ) -> None:
        self.place = place
        clock = FakeClock()
        with fake_time(clock, WALL_NS):
            clock.advance(100 * SECOND)
            with probe.start("p", "idle", run_dir=place, rank=0, world_size=1, config=config) as session:
                for number in range(steps):
                    with session.step(number):
                        begin = clock.time_ns
                        for name, seconds in phases.items():
                            if not name:
                                clock.advance(int(seconds * SECOND))
                                continue
                            with probe.phase(name):
                                clock.advance(int(seconds * SECOND))
                        told = asked(number)
                        names = list(told)
                        begins = [begin + int(told[name][0] * SECOND) for name in names]
                        ends = [begin + int(told[name][1] * SECOND) for name in names]
                        if names:
                            (tells or tell)(number, names, begins, ends)

    def findings(self) -> dict[str, Finding]:
        with Run(self.place) as run:
            return {one.name: one for one in run.findings()}

    def idle(self, **options: Any) -> Idle:
        with Run(self.place) as run:
            found = run.idle(**options)
        assert found is not None
        return found


def tell(number: int, names: list[str], begins: list[int], ends: list[int]) -> None:
    probe.samples([4] * len(names), begin_ns=begins, end_ns=ends, replicas=names)


def test_13_d_a_trainer_that_waits_for_slow_engines_is_told_with_what_would_keep_up(tmp_path: Path) -> None:
    # Ten seconds a step, six of them in wait for answers; both engines sample all the time.
    made = Made(
        tmp_path / "run", {"gen": 6, "update_actor": 3, "update_weights": 1}, lambda _: {"a": (-4, 6), "b": (-4.0, 5.5)}
    )
    found = made.idle()
    assert found.asynchronous
    # Of the last steps it isn't known yet whether more is under way: a request takes ten seconds until it is told.
    assert [one.step for one in found.steps] == list(range(10))
    for one in found.steps:
        assert one.trainer == {"answers": 6 * SECOND, "work": 3 * SECOND, "weights": SECOND, "rest": 0}
        assert one.replicas["a"] == {"sampling": 10 * SECOND, "work": 0, "weights": 0, "answers": 0, "rest": 0}
        assert one.replicas["b"]["answers"] == SECOND // 2
    one = made.findings()["idle_trainer"]
    assert one.where.phase == "gen"
    assert (one.cost.seconds, one.cost.share) == (6.0, 0.6)
    assert one.explained == pytest.approx(1 - 0.25 / 6)
    # Of 2 × 10 seconds 19.5 are sampling, for 4 seconds of training.
    assert one.change is not None
    assert "about 5 replicas in place of 2" in one.change.advice
    assert one.why == "The trainer's time: 30 % work, 10 % weights, 60 % waiting for answers."


@pytest.mark.parametrize(
    ("phases", "asked", "cause", "advice"),
    [
        (
            {"update_actor": 8, "gen": 0.01, "update_weights": 1.99},
            (1, 5),
            "the trainer works",
            "Training is the slower",
        ),
        ({"update_actor": 4, "gen": 0.01, "update_weights": 5.99}, (-1, 4.5), "weights are sent", "less often"),
        ({"update_actor": 4, "gen": 5, "update_weights": 1}, (-1, 4), "waits for answers", "before the trainer needs"),
        ({"update_actor": 4, "gen": 0.01, "": 5.99}, (-1, 4.5), "in no phase", "a phase of its own"),
    ],
    ids=["work", "weights", "answers", "rest"],
)
def test_13_d_replicas_without_requests_are_told_with_what_the_trainer_does_meanwhile(
    tmp_path: Path, phases: dict[str, float], asked: tuple[float, float], cause: str, advice: str
) -> None:
    made = Made(tmp_path / "run", phases, lambda _: {"a": asked, "b": asked})
    one = made.findings()["idle_rollout"]
    idle_s = 10 - (asked[1] - asked[0])
    assert one.cost.seconds == pytest.approx(idle_s)
    assert one.cost.share == pytest.approx(idle_s / 10)
    assert cause in one.sentence
    assert one.change is not None
    assert advice in one.change.advice
    with Run(made.place) as run:
        rows = run.sql(one.evidence_sql)
    assert set(rows["engine"]) == {"a", "b"}
    assert rows["idle_s"].tolist() == [pytest.approx(idle_s)] * len(rows)
    assert len(rows) >= 20


def test_13_d_verl_s_settings_are_named_and_a_value_where_it_divides(tmp_path: Path) -> None:
    config = {
        "actor_rollout_ref": {"rollout": {"n_gpus_per_node": 8}},
        "trainer": {"v1": {"separate_async": {"parameter_sync_step": 1}}},
    }
    made = Made(
        tmp_path / "run",
        {"update_actor": 9, "gen": 0, "update_weights": 1},
        lambda _: dict.fromkeys("abcd", (1, 5)),
        config=config,
    )
    change = made.findings()["idle_rollout"].change
    assert change is not None
    assert "2 of 4 replicas would keep up" in change.advice
    assert (change.setting, change.now, change.value) == ("actor_rollout_ref.rollout.n_gpus_per_node", 8, 4)


def test_13_d_the_one_replica_that_gets_few_requests_is_named(tmp_path: Path) -> None:
    made = Made(
        tmp_path / "run",
        {"update_actor": 9, "gen": 0, "update_weights": 1},
        lambda _: {"a": (0, 10), "b": (0, 10), "c": (0, 1)},
    )
    one = made.findings()["idle_rollout"]
    assert "100 % of the idle time is that of c" in one.sentence
    assert one.change is not None
    assert "how requests are dealt" in one.change.advice


def test_13_d_sides_that_take_turns_are_told_as_numbers_and_never_as_a_fault(tmp_path: Path) -> None:
    made = Made(
        tmp_path / "run", {"gen": 6, "update_actor": 3, "update_weights": 1}, lambda _: {"a": (0, 6), "b": (0, 5)}
    )
    found = made.idle()
    assert not found.asynchronous
    assert found.sentence.startswith("Training and sampling take turns")
    assert not {"idle_trainer", "idle_rollout", "sides_keep_up"} & set(made.findings())


def test_13_d_sides_that_keep_up_are_in_order(tmp_path: Path) -> None:
    made = Made(tmp_path / "run", {"gen": 1, "update_actor": 8, "update_weights": 1}, lambda _: {"a": (-8, 1)})
    told = made.findings()
    assert told["sides_keep_up"].kind == "fine"
    assert "waits for answers 10 %" in told["sides_keep_up"].sentence


def test_13_d_a_wait_for_the_last_answers_alone_is_told_once_as_that(tmp_path: Path) -> None:
    """One of twenty answers lets the trainer wait, and nothing else is asked meanwhile."""

    def tells(number: int, names: list[str], begins: list[int], ends: list[int]) -> None:
        long = [*(begins[0] + SECOND * (2 + at) // 10 for at in range(18)), ends[0], ends[0]]
        probe.samples([4] * 20, begin_ns=[begins[0]] * 20, end_ns=long, replicas=["a", "b"] * 10)

    made = Made(
        tmp_path / "run", {"gen": 6, "update_actor": 3, "update_weights": 1}, lambda _: {"a": (-4, 6)}, tells=tells
    )
    assert made.idle().asynchronous
    told = made.findings()
    assert "long_tail" in told
    assert "idle_trainer" not in told


def test_15_6_of_engines_that_go_on_with_the_next_step_no_tail_is_claimed_and_none_is_idle(tmp_path: Path) -> None:
    """The last answers of a step end six seconds after the others, in which its replicas sample those of the next."""

    def tells(number: int, names: list[str], begins: list[int], ends: list[int]) -> None:
        begin = begins[0]
        ended = [*(begin + 4 * SECOND + at for at in range(18)), begin + 10 * SECOND, begin + 10 * SECOND]
        probe.samples([4] * 20, begin_ns=[begin] * 20, end_ns=ended, replicas=["a", "b"] * 10)

    phases = {"gen": 5.0, "update_actor": 0.5, "update_weights": 0.5}
    made = Made(tmp_path / "run", phases, lambda _: {"a": (-5.0, 5.0)}, tells=tells)
    with Run(made.place) as run:
        long_tail = run.long_tail()
        alone = run.long_tail(first=5, last=5)
    assert long_tail is not None
    assert alone is not None
    one = long_tail.steps[5]
    assert one.replicas[0]._replace(requests=None) == alone.steps[0].replicas[0]._replace(requests=None)
    assert one.waited_share is not None
    assert one.waited_share >= 0.2
    # The next step's requests begin 6 s after its own, and the tail is from 4 s to 10 s after.
    assert [(two.idle_ns, two.meanwhile_ns, two.idle) for two in one.replicas] == [(0, 4 * SECOND, ())] * 2
    told = made.findings()
    assert "long_tail" not in told
    assert told["idle_trainer"].cost.share == pytest.approx(5 / 6)


def test_13_d_what_is_under_way_still_is_never_called_idle(tmp_path: Path) -> None:
    """Requests of step 8 on last until the run's end and beyond, and are never told: nothing is said of that time."""
    made = Made(
        tmp_path / "run",
        {"gen": 0, "update_actor": 9, "update_weights": 1},
        lambda step: {"a": (-9, 1)} if step < 8 else {},
        steps=20,
    )
    found = made.idle()
    assert found.steps[-1].step <= 7
    assert max(one.idle for one in found.steps[1:]) == 0
    assert "idle_rollout" not in made.findings()


def test_13_d_a_replica_that_is_asked_no_more_is_gone_and_not_idle(tmp_path: Path) -> None:
    made = Made(
        tmp_path / "run",
        {"gen": 0, "update_actor": 9, "update_weights": 1},
        lambda step: {"a": (-9, 1), **({"b": (-9, 1)} if step < 4 else {})},
    )
    assert [sorted(one.replicas) for one in made.idle().steps[2:6]] == [["a", "b"], ["a", "b"], ["a"], ["a"]]


def test_13_d_requests_that_processes_of_their_own_time_belong_to_the_clock_and_not_to_their_step(
    tmp_path: Path,
) -> None:
    """As verl's agent loops tell them: of a step that another one trains, or of none."""

    def tells(number: int, names: list[str], begins: list[int], ends: list[int]) -> None:
        about = {"step": None if number % 2 else number - 3, "phase": "gen", "source": "loop"}
        probe.hooks.emit(TIMED, begin_ns=begins, end_ns=ends, replicas=names, **about)

    made = Made(
        tmp_path / "run", {"gen": 6, "update_actor": 3, "update_weights": 1}, lambda _: {"a": (-4, 6)}, tells=tells
    )
    assert {tuple(one.replicas["a"].values()) for one in made.idle().steps} == {(10 * SECOND, 0, 0, 0, 0)}


def test_13_d_phases_of_processes_that_only_sample_are_not_the_trainer_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_ATTEMPT", "1")  # all of them are one launch
    place, alone = tmp_path / "run", tmp_path / "alone"
    phases = {"gen": 6.0, "update_actor": 3.0, "update_weights": 1.0}
    for role, name in (("worker", "generate"), ("rollout", "tokenize"), ("engine", "load_weights")):
        clock = FakeClock()
        with fake_time(clock, WALL_NS):
            clock.advance(100 * SECOND)
            with probe.start("p", "idle", run_dir=place, name=f"beside-{name}", role=role) as beside:
                for number in range(6):
                    with beside.step(number), probe.phase(name):
                        clock.advance(10 * SECOND)
    made = Made(
        place,
        {"wait_for_samples" if name == "gen" else name: took for name, took in phases.items()},
        lambda _: {"a": (-4, 6)},
        steps=6,
    )
    with_others = made.idle()
    assert made.findings()["idle_trainer"].where.phase == "wait_for_samples"  # and not "generate"
    assert with_others.steps == Made(alone, phases, lambda _: {"a": (-4, 6)}, steps=6).idle().steps
    with Run(place) as run:
        assert len(run.processes) == 4


def test_13_d_batches_that_come_as_a_whole_have_the_times_of_the_whole(tmp_path: Path) -> None:
    def tells(number: int, names: list[str], begins: list[int], ends: list[int]) -> None:
        probe.samples([4] * 3, begin_ns=begins[0], end_ns=ends[0], replicas="a")

    made = Made(
        tmp_path / "run", {"gen": 6, "update_actor": 3, "update_weights": 1}, lambda _: {"a": (-2, 6)}, tells=tells
    )
    assert {one.replicas["a"]["sampling"] for one in made.idle().steps[1:]} == {8 * SECOND}
    with Run(made.place) as run:
        found = {one.name: one for one in run.findings()}["idle_trainer"]
        assert len(run.sql(found.evidence_sql)) == len(run.sql("select * from scopes where name = 'gen' and step >= 1"))


def test_13_d_it_is_shown_as_text_data_and_in_a_notebook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Made(
        tmp_path / "run", {"gen": 6, "update_actor": 3, "update_weights": 1}, lambda _: {"a": (-4, 6), "<b>": (-4, 5)}
    )
    found = made.idle(first=3, last=7)
    assert [one.step for one in found.steps] == [3, 4, 5, 6, 7]
    frame, replicas = found.to_frame(), found.by_replica()
    assert (frame[[f"trainer_{name}_s" for name in TRAINER]].sum(axis=1) == frame["wall_s"]).all()
    assert (frame[[f"replicas_{name}_s" for name in REPLICA]].sum(axis=1) == 2 * frame["wall_s"]).all()
    assert (replicas[[f"{name}_s" for name in REPLICA]].sum(axis=1) == replicas["wall_s"]).all()
    assert len(replicas) == 2 * len(frame)
    html = found._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert main(["idle", str(made.place), "--first", "3", "--last", "7"]) == 0
    printed = capsys.readouterr().out
    assert printed.strip() == repr(found)
    assert "the trainer waits for answers 60 % of the time, and replicas have no request under way 5.0 %" in printed
    assert main(["idle", str(made.place), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["trainer"] == {"work_s": 27.0, "weights_s": 9.0, "answers_s": 54.0, "rest_s": 0.0}
    assert told["asynchronous"]
    assert main(["report", str(made.place), "--out", str(tmp_path / "report.html")]) == 0
    assert "Who waits: training or sampling" in (tmp_path / "report.html").read_text()


def test_13_d_without_times_there_is_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with probe.start("p", "e", run_dir=tmp_path / "run", rank=0, world_size=1) as session, session.step(1):
        probe.samples([4, 4])
    assert main(["idle", str(tmp_path / "run")]) == 1
    assert "probe.samples" in capsys.readouterr().err
    with Run(tmp_path / "run") as run:
        assert run.idle() is None


def test_13_d_the_replicas_that_are_said_to_keep_up_do(tmp_path: Path) -> None:
    """The advice, followed: of a trainer that waits 60 % of a step for two engines, with five of them."""
    phases = {"gen": 0.2, "update_actor": 3, "update_weights": 1}  # 19.5 replica-seconds on five engines: 3.9 s
    made = Made(tmp_path / "run", phases, lambda _: dict.fromkeys("abcde", (-3.7, 0.2)))
    assert made.findings()["sides_keep_up"].kind == "fine"


def test_13_d_a_training_that_samples_ahead_tells_what_it_does(tmp_path: Path) -> None:
    """The zoo's own: engines are never asked before the weights of the step before are there."""
    training = Ahead(1.0, 3)
    with Run(training.run(tmp_path / "run")) as run:
        found = run.idle()
        steps = run.sql(
            "select step, min(begin_ns) as begin_ns from scopes where kind = 'step' group by step order by step"
        )
    assert found is not None
    assert found.asynchronous
    begun = dict(zip(steps["step"], steps["begin_ns"], strict=True))
    for one, after in itertools.pairwise(found.steps):
        assert one.begin_ns == begun[one.step]
        assert one.begin_ns + one.wall_ns == after.begin_ns
