"""Issue 13 (supplement): what was looked at and can't be judged is said, with what is missing; it is no finding."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from probe.analysis.verdict import Findings
from probe.analysis.verdict.finding import Finding
from probe.analysis.verdict.watch import Watch
from probe.cli import main
from probe.opened import Run
from probe.publishing.summary import markdown
from probe.records import GIB, GroupBaseline, Memory, MicroBatch, Reduction, Rollout, Row, Sample, Scalar, TokenFate
from probe.runs import answers
from probe.views.panel.looking import told
from probe.views.report.report import report_html
from probe.views.terminal.verdict import verdict_lines
from tests.sample_run import MS, clock, open_run, write_run

VERL = {"actor_rollout_ref": {"rollout": {"calculate_log_probs": False}}}
TRL = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}


def steps(many: int, rank: int = 0, *more: Row, of_each: Any = lambda step: (), leaks: int = 0) -> list[Row]:
    """A rank's rows of some steps, each of 100 ms with its memory, of which some bytes more stay after each."""
    rows: list[Row] = []
    for step in range(many):
        at = clock(rank) + step * 100 * MS
        scope = {"kind": "step", "name": "step", "scope_id": step + 1, "rank": rank, "step": step}
        level = {"allocated_bytes": GIB + step * leaks, "peak_allocated_bytes": 2 * GIB, "device_total_bytes": 80 * GIB}
        rows.append(Memory(edge="enter", **scope, **level, time_ns=at))
        for one in of_each(step):
            one.step, one.rank, one.time_ns = step, rank, at + 50 * MS
            rows.append(one)
        rows.append(Memory(edge="leave", **scope, **level, time_ns=at + 100 * MS))
    return [*rows, *more]


def answer(**known: Any) -> Sample:
    return Sample(batch_id=0, row=0, response_tokens=5, **known)


def norm(step: int) -> list[Row]:
    return [Scalar(key="actor/grad_norm", value=1.0, source="user")]


def withheld(place: Path, rows: Iterable[Row] | dict[int, list[Row]], **more: Any) -> dict[str, Finding]:
    """What is withheld of a run, by its name; each is told once."""
    by_rank = rows if isinstance(rows, dict) else {0: list(rows)}
    with open_run(place, by_rank, **more) as run:
        found = run.findings()
        assert found == run.findings()
        with Run(run.path) as watched:
            assert Watch(watched).look(whole=True) == found
    assert all(one.kind != "withheld" for one in found)
    told = {one.name: one for one in found.withheld}
    assert len(told) == len(found.withheld)
    return told


def test_too_few_steps_say_how_many_each_question_takes(tmp_path: Path) -> None:
    ranks = {rank: steps(3, rank, of_each=norm) for rank in range(2)}
    found = withheld(tmp_path / "few", ranks)
    assert found["few_steps"].sentence == (
        "3 steps have ended, too few to say whether memory leaks (takes 16), the gradient jumps (takes 7) or a rank "
        "is slow (takes 4)."
    )
    alone = withheld(tmp_path / "one", steps(1))
    assert alone["few_steps"].sentence == "One step has ended, too few to say whether memory leaks (takes 16)."
    assert withheld(tmp_path / "enough", steps(16, of_each=norm)) == {}


def test_before_a_step_has_ended_nothing_is_withheld(tmp_path: Path) -> None:
    assert withheld(tmp_path / "run", steps(1)[:1]) == {}


def test_where_something_is_logged_and_no_norm_of_the_gradient_that_is_said(tmp_path: Path) -> None:
    found = withheld(tmp_path / "run", steps(20, of_each=lambda _: [Scalar(key="loss", value=1.0, source="user")]))
    assert found["gradient_spike"].sentence == (
        "Whether the gradient jumps isn't known: its norm wasn't logged by a name that probe knows."
    )
    assert found["gradient_spike"].change is not None
    assert "actor/grad_norm" in found["gradient_spike"].change.advice
    # Of what nobody logs nothing is asked.
    assert "gradient_spike" not in withheld(tmp_path / "silent", steps(20))


BOTH = {"rollout_log_prob_mean": -0.5, "log_prob_mean": -0.5, "difference_mean": 0.0}


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        ({}, "the rollout's and the trainer's log-probabilities weren't recorded."),
        ({"log_prob_mean": -0.5}, "the rollout's log-probabilities weren't recorded."),
        ({"rollout_log_prob_mean": -0.5}, "the trainer's log-probabilities weren't recorded."),
    ],
)
def test_without_the_log_probabilities_of_a_side_agreement_is_withheld(
    tmp_path: Path, known: dict[str, float], missing: str
) -> None:
    rows = steps(20, of_each=lambda _: [answer(**known)])
    found = withheld(tmp_path / "run", rows)["agreement"]
    assert found.sentence == f"Whether rollout and training agree about their tokens isn't known: {missing}"
    assert found.change is not None
    assert "probe.samples(rollout_log_probs=…, log_probs=…)" in found.change.advice
    of_verl = withheld(tmp_path / "verl", rows, config=VERL)["agreement"]
    assert of_verl.change is not None
    assert of_verl.change.line == "actor_rollout_ref.rollout.calculate_log_probs=True"


def test_agreement_is_asked_only_where_answers_are_told_and_an_engine_samples_them(tmp_path: Path) -> None:
    rows = steps(20, of_each=lambda _: [answer()])
    assert "agreement" not in withheld(tmp_path / "nobody", steps(20))
    assert "agreement" not in withheld(tmp_path / "itself", rows, config={**TRL, "use_vllm": False})
    found = withheld(tmp_path / "vllm", rows, config={**TRL, "use_vllm": True})["agreement"]
    assert found.change is not None
    assert found.change.line == "vllm_importance_sampling_correction=True"
    is_on = {"actor_rollout_ref": {"rollout": {"calculate_log_probs": True}}}
    assert withheld(tmp_path / "on", rows, config=is_on)["agreement"].change is None
    told = steps(20, of_each=lambda _: [answer(**BOTH)])
    kept = withheld(tmp_path / "both", told)["agreement"]  # the tokens of none, as of very long answers
    assert "the tokens of no answer are kept" in kept.sentence


def test_where_nobody_tells_ids_that_is_said_and_of_trl_that_it_can_t_be_helped(tmp_path: Path) -> None:
    rows = steps(20, of_each=lambda _: [answer()])
    found = withheld(tmp_path / "own", rows)["identity"]
    assert found.sentence == (
        "Whether the trained tokens are those that were sampled isn't known: their ids weren't compared."
    )
    assert found.change is not None
    assert "probe.samples(sampled_ids=…, response_ids=…)" in found.change.advice
    of_trl = withheld(tmp_path / "trl", rows, config=TRL)["identity"]
    assert of_trl.change is None
    assert "identity" not in withheld(tmp_path / "nobody", steps(20))


def _groups(failed: int, elsewhere: int) -> list[Row]:
    moved = {"groups": 4, "moved_groups": 1, "moved_by_failed": 0, "elsewhere_groups": elsewhere}
    baseline = GroupBaseline(batch_id=0, source="probe.samples", answers=8, failed_answers=failed, masked_answers=1)
    for name, value in moved.items():
        setattr(baseline, name, value)
    fates = {"fate": "carried", "tokens": 9, "samples": 8, "batch_tokens": 9, "batch_samples": 8, "kept_samples": 8}
    return [baseline, TokenFate(batch_id=0, source="probe.samples", **fates)]


def test_groups_that_aren_t_told_whole_are_withheld_where_answers_failed(tmp_path: Path) -> None:
    found = withheld(tmp_path / "parts", steps(20, of_each=lambda _: _groups(failed=2, elsewhere=3)))
    assert "isn't known: many advantages are relative to something other" in found["group_baseline"].sentence
    assert "group_baseline" not in withheld(tmp_path / "none", steps(20, of_each=lambda _: _groups(0, 3)))
    assert "group_baseline" not in withheld(tmp_path / "whole", steps(20, of_each=lambda _: _groups(2, 0)))


@pytest.mark.parametrize(("rollout", "asked"), [({}, True), ({"together": True}, False)])
def test_requests_that_nobody_timed_are_withheld_but_for_a_batch_that_is_sampled_as_one(
    tmp_path: Path, rollout: dict[str, bool], asked: bool
) -> None:
    rows = steps(20, of_each=lambda _: [Rollout(batch_id=0, source="probe.samples", samples=4, **rollout)])
    assert ("rollout_ends" in withheld(tmp_path / "run", rows)) is asked


def _batches(**more: Any) -> list[Row]:
    lengths = [3, 5]
    common = {"batch_id": 0, "micro_batches": 2, "sequences": 2, "tokens": 8, "lengths": lengths, "phase": "update"}
    return [MicroBatch(micro_batch=at, **common, **more) for at in range(2)]


def test_metrics_of_several_micro_batches_that_nobody_reduced_by_probe_are_withheld(tmp_path: Path) -> None:
    def each(step: int) -> list[Row]:
        return [*_batches(), *norm(step)]

    found = withheld(tmp_path / "own", steps(20, of_each=each))
    assert "what they were reduced from wasn't recorded" in found["metrics"].sentence
    assert "metrics" not in withheld(tmp_path / "verl", steps(20, of_each=each), config=VERL)
    reduced = Reduction(key="loss", reducer="mean", chosen_by="type", count=2, value=1.0)
    assert "metrics" not in withheld(tmp_path / "told", steps(20, 0, reduced, of_each=each))


# ------------------------------------------------------------------------------------------------- where it is shown


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A run in which nothing is wrong, and two questions can't be judged."""
    return write_run(tmp_path / "run", {0: steps(20, of_each=lambda step: [answer(), *norm(step)])})


def test_it_is_no_finding_and_stands_behind_them(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Run(place) as run:
        found = run.findings()
        page, summary = report_html(run), markdown(run, final=True)
        lines = verdict_lines(found, "runs/it", whole=True, begun=True)
    names = [one.name for one in found.withheld]
    assert sorted(names) == ["agreement", "identity"]
    assert {one.kind for one in found} == {"fine"}
    assert len(found.to_frame()) == len(found)
    assert found.everything == (*found, *found.withheld)
    assert found != Findings(found)
    assert [one["name"] for one in told(found)] == [one.name for one in found.everything]
    assert main(["findings", str(place)]) == 0
    printed = capsys.readouterr().out
    assert main(["findings", str(place), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed if one["kind"] == "withheld"] == names
    for one in found.withheld:
        assert f"◌ Not judged: {one.sentence}" in printed.replace("\n  ", " ")
        assert one.sentence in summary.partition("### Not judged")[2]
    assert page.count('<tr class="withheld">') == 2
    assert "2 questions couldn't be judged." in summary
    assert [line for line, _ in lines] == [
        "✓ Nothing is wrong and nothing is worth a change.",
        "  2 questions couldn't be judged: probe findings runs/it",
    ]


def test_it_is_kept_with_what_was_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "LEAST_BYTES", 1)
    with Run(place) as run:
        first = run.findings()
    with Run(place) as run:
        assert run.findings() == first
    assert len(first.withheld) == 2


def test_what_would_say_more_stands_beside_the_finding(tmp_path: Path) -> None:
    one = Finding("alarm", "x", "It is wrong.", why="Rows say so.", missing=("Ids aren't kept.",))
    assert one.reasons == "Rows say so. Ids aren't kept."
    assert "Rows say so. Ids aren't kept." in repr(Findings([one]))
    assert "Rows say so. Ids aren&#x27;t kept." in Findings([one])._repr_html_()
    assert one.to_dict()["missing"] == ("Ids aren't kept.",)


def test_a_leak_says_that_tokens_weren_t_recorded_and_claims_nothing_of_them(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", {0: steps(30, leaks=GIB // 8)}) as run:
        leak = run.findings()[0]
    assert leak.name == "device_leak"
    assert leak.missing == ("Tokens of the steps weren't recorded: whether batches grow isn't known.",)
    assert "neither tokens" not in leak.why


def test_a_jump_of_the_gradient_says_why_no_micro_batch_is_named(tmp_path: Path) -> None:
    def each(step: int) -> list[Row]:
        return [Scalar(key="grad_norm", value=100.0 if step == 15 else 1.0, source="user")]

    with open_run(tmp_path / "run", {0: steps(20, of_each=each)}) as run:
        jump = run.findings()[0]
    assert (jump.name, jump.where.micro_batch) == ("gradient_spike", None)
    assert "no metric has a value per micro-batch" in jump.reasons
