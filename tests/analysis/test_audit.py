"""Part 1 of the auditor: what a run says of its own numbers."""

from __future__ import annotations

import json
import math

import pytest

import probe
from probe.analysis.audit import TRAPS, Audit
from probe.analysis.audit.answers import Answered, Answers
from probe.analysis.audit.checks import CHECKS, Counted, of_step
from probe.analysis.audit.reading import Number
from probe.analysis.verdict import audited
from probe.cli import main
from probe.core.micro_batch import micro_batch
from probe.demo.zoo.loop import Training
from probe.opened import Run

NAN = float("nan")


def one_number(metric, value, **others):
    """The numbers of a step by name, each logged once."""
    return {name: Number(1, name, logged=[("driver", value)]) for name, value in {metric: value, **others}.items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Twelve steps in which the long micro-batch always has the larger loss."""
    place = tmp_path_factory.mktemp("audit") / "run"
    with probe.start("audit", "one", run_dir=place, rank=0, world_size=1, peaks="observe") as session:
        for step in range(12):
            with session.step(step), probe.phase("update"):
                metrics = {}
                for index, (lengths, loss) in enumerate((([500, 400], 2.0), ([100], 1.0 + 0.01 * step))):
                    with micro_batch(index, lengths=lengths):
                        probe.append_to_dict(metrics, {"actor/loss": loss, "timing/step": loss})
                metrics["kl"] = [0.5, NAN if step == 7 else 0.25]
                reduced = probe.reduce_metrics(metrics)
            session.log(reduced, step)
    return Run(place)


def test_15_1_each_number_stands_beside_what_weighted_means_would_have_said(run):
    found = run.audit(step=3)
    loss = found.named("actor/loss")
    assert loss.reported == pytest.approx((2.0 + 1.03) / 2, abs=1e-15)
    assert loss.token_weighted == pytest.approx((900 * 2.0 + 100 * 1.03) / 1000, abs=1e-15)
    assert loss.sequence_weighted == pytest.approx((2 * 2.0 + 1.03) / 3, abs=1e-15)
    assert loss.error == loss.reported - loss.token_weighted
    assert loss.relative_error == loss.error / loss.token_weighted
    assert (loss.trap, loss.expected_by, loss.phase) == ("mean_of_unequal_means", "token-weighted mean", "update")
    assert loss.who == "mean, chosen by the name, in rank-00000"
    assert len(run.sql(loss.evidence_sql)) == 1
    timing = found.named("timing/step")
    assert (timing.trap, timing.reported) == ("accidental_reducer", 1.03)
    assert timing.expected == loss.token_weighted


def test_15_1_the_worst_step_of_each_metric_is_shown_and_since_when(run):
    found = run.audit()
    assert isinstance(found, Audit)
    assert (found.steps, found.looked_at) == (12, 12)
    assert [one.trap for one in found.trapped] == [one.trap for one in found]
    kl = found.named("kl")
    assert (kl.trap, kl.step, kl.since, kl.wrong_steps, kl.looked_at) == ("nan", 7, 7, 1, 12)
    assert math.isnan(kl.reported)
    assert kl.expected is None
    assert kl.error is None
    assert (found.named("actor/loss").since, found.named("actor/loss").wrong_steps) == (0, 12)


def test_15_1_it_is_data_and_can_be_read(run):
    found = run.audit()
    frame = found.to_frame()
    assert list(frame["metric"]) == [one.metric for one in found]
    assert {"reported", "token_weighted", "sequence_weighted", "error", "relative_error", "trap", "who"} <= set(frame)
    assert json.loads(json.dumps(found.to_list()))[0]["metric"] == found[0].metric
    said = repr(found)
    assert said.startswith("3 of 3 metrics aren't what they say.")
    assert "actor/loss" in said
    page = found._repr_html_()
    assert TRAPS["nan"] in page
    assert page.count("<tr>") == 4
    assert repr(Audit()) == "No metric was logged or reduced yet: there is nothing to audit."
    assert repr(found[:0]) == repr(Audit())
    assert repr(run.audit(step=99)) == "No metric was logged or reduced in step 99."
    fine = Audit([one for one in run.audit(step=3) if one.trap is None], 12, 1)
    assert repr(fine.trapped).startswith("None of 1 metric fell into a known trap.")


def test_15_1_the_command_prints_it(run, capsys):
    assert main(["audit", str(run.path)]) == 1
    assert "mean_of_unequal_means" in capsys.readouterr().out
    assert main(["audit", str(run.path), "--step", "3", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert {one["metric"]: one["trap"] for one in told} == {
        "actor/loss": "mean_of_unequal_means",
        "timing/step": "accidental_reducer",
        "kl": None,
    }


def test_15_1_means_that_are_always_off_to_one_side_are_found(run):
    found = run.findings().named("unweighted_mean")
    assert found.kind == "tuning"
    assert "actor/loss is off by" in found.sentence
    assert len(run.sql(found.evidence_sql)) == 1
    assert found.change.advice.startswith("Give the weights")


def test_15_1_a_run_without_numbers(tmp_path, capsys):
    with probe.start("audit", "none", run_dir=tmp_path / "run"):
        pass
    with Run(tmp_path / "run") as empty:
        assert len(empty.audit()) == 0
    assert main(["audit", str(tmp_path / "run")]) == 0
    assert "nothing to audit" in capsys.readouterr().out


def test_15_1_of_a_large_run_some_steps_that_lie_evenly_are_looked_at(run, monkeypatch):
    monkeypatch.setattr("probe.analysis.audit.reading.MOST_ROWS", 20)
    found = run.audit()
    assert (found.steps, found.looked_at) == (12, 3)
    assert "3 of 12 steps were looked at" in found.sentence


@pytest.mark.parametrize(
    ("numbers", "counted", "trap", "expected"),
    [
        (one_number("perf/mfu/actor", 1.3), Counted(), "share_above_1", None),
        (one_number("perf/mfu/actor", 0.4), Counted(), None, None),
        (one_number("mfu_percent", 38.0), Counted(), None, None),
        (one_number("perf/throughput", 4000.0), Counted(8000, 80.0, 2.0, 4), "scaled_rate", 1000.0),
        (one_number("perf/throughput", 1010.0), Counted(8000, 80.0, 2.0, 4), None, None),
        (one_number("perf/throughput", 4000.0), Counted(None, 80.0, 2.0, 4), None, None),
        (one_number("train/tokens_per_second", 16000.0), Counted(8000, 80.0, 2.0, 4), "scaled_rate", 4000.0),
        (one_number("train/tokens_per_second", 4000.0), Counted(8000, 80.0, 2.0, 4), None, None),
        (
            one_number("response_length/clip_ratio", 0.0, **{"response_length/max": 1024.0}),
            Counted(limit=1024),
            "zero_clip_ratio",
            None,
        ),
        (
            one_number("response_length/clip_ratio", 0.0, **{"response_length/max": 900.0}),
            Counted(limit=1024),
            None,
            None,
        ),
        (
            one_number("response_length/mean", 120.0, **{"prompt_length/mean": 40.0}),
            Counted(mean_tokens=100.0),
            "unlike_lengths",
            60.0,
        ),
        (
            one_number("response_length/mean", 61.0, **{"prompt_length/mean": 40.0}),
            Counted(mean_tokens=100.0),
            None,
            None,
        ),
        (one_number("response_length/mean", 120.0), Counted(mean_tokens=100.0), "unlike_lengths", None),
        (one_number("response_length/mean", 90.0), Counted(mean_tokens=100.0), None, None),
    ],
)
def test_15_1_cross_checks_with_what_probe_counts_itself(numbers, counted, trap, expected):
    told = dict(of_step(numbers, counted))
    (found,) = told.values() if trap else (None,)
    assert (found.trap if found else None) == trap
    assert (found.expected if found else None) == expected
    assert trap is None or trap in CHECKS


#: Eight answers of a step, four of them truncated.
LENGTHS = [64, 64, 64, 64, 10, 12, 14, 9]


def told_run(place, logged, *, steps=6, world_size=1, **more):
    """A loop of one's own that tells of its answers; ``logged`` gives the metrics of a step."""
    known = {"truncated": [True] * 4 + [False] * 4, "groups": ["a"] * 4 + ["b"] * 4, "clipped": False} | more
    with probe.start("audit", "told", run_dir=place, rank=0, world_size=world_size) as session:
        for step in range(steps):
            with session.step(step):
                probe.samples([one + step for one in LENGTHS], **known)
            if logged(step):
                session.log(logged(step), step)
    return Run(place)


@pytest.mark.parametrize(
    "names",
    [
        ("response_length/clip_ratio", "response_length/mean"),
        ("completions/clipped_ratio", "completions/mean_length"),
    ],
)
def test_15_1_truncated_answers_and_lengths_are_held_against_the_recorded_answers(names, tmp_path):
    run = told_run(tmp_path / "run", lambda step: {names[0]: 0.0, names[1]: 200.0, "kl": 0.1})
    found = run.audit(step=3)
    clipped, length = (found.named(name) for name in names)
    assert (clipped.trap, clipped.expected, clipped.error) == ("zero_clip_ratio", 0.5, -0.5)
    assert clipped.why == "4 of 8 answers of the step are truncated."
    assert (length.trap, length.expected) == ("unlike_lengths", pytest.approx(sum(LENGTHS) / 8 + 3))
    assert found.named("kl").trap is None
    told = {one.name: one for one in audited.contradictions(run)}
    assert told["zero_clip_ratio"].kind == "alarm"
    assert told["unlike_lengths"].sentence == (
        f"{names[1]} is 200 in step 0, which isn't the length that probe counts."
    )
    assert len(run.sql(told["unlike_lengths"].evidence_sql)) == 1
    run.close()


def mean_of(steps):
    return sum(LENGTHS) / len(LENGTHS) + sum(steps) / len(steps)


@pytest.mark.parametrize(
    ("logged", "more"),
    [
        pytest.param(
            lambda step: {"completions/mean_length": mean_of([step]), "completions/clipped_ratio": 0.5}, {}, id="right"
        ),
        pytest.param(
            lambda step: {"completions/mean_length": mean_of(range(step - 11, step + 1))} if step % 12 == 11 else {},
            {"steps": 36},
            id="mean_since_it_was_logged_before",
        ),
        pytest.param(
            lambda step: {"response_length/mean": (sum(LENGTHS[4:]) + 4 * step) / 4, "response_length/clip_ratio": 0.0},
            {"dropped": ["truncated"] * 4 + [None] * 4},
            id="of_those_that_are_trained",
        ),
        pytest.param(lambda _: {"response_length/mean": 90.0}, {"world_size": 2}, id="other_ranks_did_not_tell"),
        pytest.param(lambda _: {"response_length/clip_ratio": 0.0}, {"truncated": None}, id="not_told"),
    ],
)
def test_15_1_numbers_that_agree_with_the_recorded_answers_are_in_no_trap(logged, more, tmp_path):
    run = told_run(tmp_path / "run", logged, **more)
    found = run.audit()
    assert len(found)
    assert not found.trapped
    assert not audited.contradictions(run)
    run.close()


def test_15_1_a_process_may_log_a_number_about_its_own_answers():
    everyone = Answered(38.0, 38.0, 38.0, truncated=3, rows=8)
    mine, other = Answered(20.0, 20.0, 20.0, truncated=0, rows=4), Answered(56.0, 56.0, 56.0, truncated=3, rows=4)
    counted = Counted(answers=Answers(everyone, {"driver": mine}))
    right = one_number("response_length/mean", 20.5, **{"response_length/clip_ratio": 0.0})
    assert not dict(of_step(right, counted))
    wrong = dict(of_step(right, Counted(answers=Answers(everyone, {"driver": other}))))
    assert {one.trap for one in wrong.values()} == {"unlike_lengths", "zero_clip_ratio"}
    assert wrong["response_length/clip_ratio"].expected is None  # not all answers have a row
    assert wrong["response_length/clip_ratio"].why == "3 of 8 answers that were kept are truncated."


class Rates(Training):
    """Rank 0 logs the rate of both ranks as that of one, and answers that are longer than the rows."""

    def __init__(self):
        super().__init__()
        self.ends = {}

    def after_step(self, rank, step):
        self.ends[rank.rank, step] = rank.clock.time_ns

    def rate(self, step):
        tokens = sum(sum(self.rows(step, rank)) for rank in range(self.shape.ranks))
        return tokens * 1e9 / (self.ends[0, step] - self.ends[0, step - 1])

    def log(self, session, values, step, rank):
        more = {"perf/mfu/actor": 1.7, "response_length/mean": 500.0}
        super().log(session, values | more | ({"perf/throughput": self.rate(step)} if step else {}), step, rank)


@pytest.mark.slow
def test_15_1_numbers_that_contradict_what_probe_counts_are_found(tmp_path):
    training = Rates()
    with Run(training.run(tmp_path / "run")) as run:
        found = run.findings()
        assert {one.name for one in found.alarms} == {"scaled_rate", "share_above_1"}
        assert found.named("unlike_lengths").kind == "tuning"
        rate = run.audit(step=3).named("perf/throughput")
        assert rate.expected == pytest.approx(training.rate(3) / 2, rel=1e-3)
        assert (rate.trap, rate.expected_by) == ("scaled_rate", "as probe counts it")
        assert len(run.sql(found.named("scaled_rate").evidence_sql)) == 1
