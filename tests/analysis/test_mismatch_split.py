"""15, supplement: the mismatch by version lag, confident disagreement, and what is withheld."""

from __future__ import annotations

import html
import json
import math
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from probe.analysis.mismatch.answer import Mismatch
from probe.analysis.mismatch.confident import SURE, UNLIKELY, confident, counted
from probe.analysis.mismatch.lag import behind_by, lags
from probe.analysis.mismatch.split import Split, split
from probe.analysis.mismatch.tokens import NOT_KNOWN, Answer, Tokens
from probe.analysis.verdict import agreement
from probe.analysis.verdict.finding import Findings
from probe.cli import main
from probe.opened import Run
from probe.views.report.sections import mismatch_section


def answers_of(seed: int, many: int = 40, *, engine: float = 0.02, stale: float = 0.0, **more: Any) -> list[Answer]:
    """Answers 0 to 3 versions behind, with noise of the engine, and of older weights, whose square grows with lag.

    Args:
        seed: Of all that is drawn.
        many: Answers.
        engine: Standard deviation of the engine's noise.
        stale: Its square at lag 1.
        **more: Values of ``known``, one each.
    """
    drawing = np.random.default_rng(seed)
    found = []
    for at in range(many):
        tokens, lag, step = int(drawing.integers(20, 60)), at % 4, at // 4 + 4
        train = -drawing.exponential(1.5, tokens)
        off = engine * drawing.normal(size=tokens) + math.sqrt(stale * lag) * drawing.normal(size=tokens)
        known = {"step": step, "rank": at % 2, "weight_version": step - lag, "trainer_version": step}
        known |= {name: values[at] for name, values in more.items()}
        found.append(Answer(train + off, train, drawing.random(tokens) < 0.9, known=known))
    return found


def split_of(answers: list[Answer]) -> Split:
    tokens = Tokens(answers)
    found = split(tokens, lags(tokens))
    assert found is not None
    return found


# ---------------------------------------------------------------------------------------------------------- the lag


def test_lag_is_that_of_the_trainers_version_where_it_is_told_else_of_the_steps() -> None:
    one = [
        {"step": 3, "weight_version": 1, "trainer_version": 7},
        {"step": 3, "weight_version": 7, "trainer_version": 7},
    ]
    told = Tokens([Answer(np.zeros(1), np.zeros(1), np.ones(1), known=known) for known in one])
    assert lags(told).behind.tolist() == [6, 0]
    assert not lags(told).by_steps
    untold = [{name: known[name] for name in ("step", "weight_version")} for known in one]
    by_steps = Tokens([Answer(np.zeros(1), np.zeros(1), np.ones(1), known=known) for known in untold])
    found = behind_by(by_steps)
    assert found is not None
    assert lags(by_steps).behind.tolist() == found.tolist() == [6, 0]
    assert lags(by_steps).by_steps


@given(st.lists(st.tuples(*[st.none() | st.integers(0, 9)] * 3), max_size=6))
def test_lag_of_each_answer_is_known_only_where_both_versions_or_all_steps_are(rows: list[tuple[Any, ...]]) -> None:
    names = ("step", "weight_version", "trainer_version")
    tokens = Tokens(
        [Answer(np.zeros(1), np.zeros(1), np.ones(1), known=dict(zip(names, row, strict=True))) for row in rows]
    )
    behind, by_steps, uncounted = lags(tokens)
    told = [row for row in rows if row[1] is not None]
    assert (by_steps or uncounted) == (any(row[2] is None for row in told) and all(row[0] is not None for row in told))
    assert not (by_steps and uncounted)
    least = min((row[0] - row[1] for row in told), default=0) if by_steps else 0
    for row, lag in zip(rows, behind.tolist(), strict=True):
        step, version, trainer = row
        zero = trainer if not by_steps or version is None else step - least
        assert lag == (NOT_KNOWN if version is None or zero is None or uncounted else zero - version)
    found = behind_by(tokens)
    assert (found is None) == (not rows or NOT_KNOWN in behind)


def at_steps(versions: list[int], every: int = 1) -> Tokens:
    """Two answers a step: the newest of such versions, and one that is one older."""
    told = [{"step": at * every, "weight_version": one - old} for at, one in enumerate(versions) for old in (0, 1)]
    return Tokens([Answer(np.zeros(1), np.zeros(1), np.ones(1), known=known) for known in told])


@pytest.mark.parametrize(
    ("versions", "every"),
    [
        ([*range(12)], 2),  # a version each other step: syncs are counted, and each sync is of two steps
        ([at // 2 for at in range(12)], 1),
        ([at // 4 for at in range(24)], 1),
        ([3 * at for at in range(12)], 1),  # updates are counted, three of them a step
        ([7] * 12, 1),  # an engine that always says the same
        ([0, 1, 1, 2, 2, 3, 3, 4, 4, 5], 1),
    ],
)
def test_where_versions_count_something_else_than_steps_no_lag_is_told(versions: list[int], every: int) -> None:
    tokens = at_steps(versions, every)
    assert lags(tokens).uncounted
    assert behind_by(tokens) is None
    assert (lags(tokens).behind == NOT_KNOWN).all()


@pytest.mark.parametrize(
    ("versions", "every"),
    [
        ([*range(12)], 1),
        ([5 * at for at in range(12)], 5),  # each fifth step is looked at
        ([at - at % 3 for at in range(12)], 1),  # a sync each third step
        ([0, 9, 18, 30, 39, 48], 10),  # both
        ([0, 1, 2, 3, 3, 3, 3, 3, 3], 1),  # the engine isn't synced any more
        ([0, 1, 2, 3, 0, 1, 2, 3, 4, 5], 1),  # from step 4 on it lags by four more
        ([4], 1),
    ],
)
def test_where_they_count_steps_it_is_told(versions: list[int], every: int) -> None:
    tokens = at_steps(versions, every)
    ahead = [at * every - one + old for at, one in enumerate(versions) for old in (0, 1)]
    assert lags(tokens).by_steps
    assert lags(tokens).behind.tolist() == [one - min(ahead) for one in ahead]


def test_from_a_step_on_the_reason_says_whether_versions_were_recorded() -> None:
    rows = answers_of(
        9, 48, engine=0.02, trainer_version=[None] * 48, weight_version=[at // 4 // 2 for at in range(48)]
    )
    loud = [
        replace(one, rollout=one.train + 12 * (one.rollout - one.train)) if one.known["step"] >= 10 else one
        for one in rows
    ]
    why = Mismatch(Tokens(loud)).judgement.why
    assert "how old they are isn't known" in why
    bare = [replace(one, known={**one.known, "weight_version": None}) for one in loud]
    assert "no weight version was recorded" in Mismatch(Tokens(bare)).judgement.why


def test_the_view_by_lag_has_a_line_for_each_and_one_for_what_isn_t_known() -> None:
    rows = answers_of(1, 9)
    rows[8] = replace(rows[8], known={"step": 6, "rank": 0, "weight_version": None})
    found = Mismatch(Tokens(rows))
    by_lag = found.by("lag")
    assert by_lag["lag"].tolist() == ["0", "1", "2", "3", "unknown"]
    assert by_lag["tokens"].sum() == found.measures.tokens
    for name in ("k1", "k2", "k3"):
        mean = (by_lag[name] * by_lag["tokens"]).sum() / by_lag["tokens"].sum()
        assert mean == pytest.approx(getattr(found.measures, name))
    nobody = Mismatch(Tokens([replace(one, known={}) for one in rows]))
    assert nobody.by("lag").empty


# -------------------------------------------------------------------------------------------------------- the split


@given(st.integers(0, 10**6), st.floats(1e-4, 30), st.floats(0, 9), st.lists(st.booleans(), min_size=24, max_size=24))
@settings(max_examples=60, deadline=None)
def test_the_parts_sum_to_k2_to_the_last_bit(seed: int, engine: float, stale: float, untold: list[bool]) -> None:
    rows = answers_of(seed, 24, engine=engine, stale=stale)
    told = zip(rows, untold, strict=True)
    rows = [replace(one, known={**one.known, "weight_version": None}) if no else one for one, no in told]
    tokens = Tokens(rows)
    found = split(tokens, lags(tokens))
    if found is None:
        assert not (lags(tokens).behind == 0).any()
        return
    parts = [found.engine, found.unknown, *(one.added for one in found.by_lag)]
    assert all(sum(order) == found.total for order in (*list(permutations(parts))[:24], tuple(reversed(parts))))
    assert found.engine + found.stale + found.unknown == found.total
    assert sum(one.added for one in found.by_lag) == found.stale
    held = tokens.held
    assert found.total == pytest.approx(float((tokens.log_ratio[held] ** 2).mean() / 2), rel=1e-9)
    if not any(untold):
        assert found.unknown == 0
        fresh = held & (lags(tokens).behind == 0)[tokens.row]
        assert found.engine == pytest.approx(float((tokens.log_ratio[fresh] ** 2).mean() / 2), rel=1e-9)


@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_of_answers_changes_nothing(seed: int, mixed: Any) -> None:
    rows = answers_of(seed, 24, stale=0.01)
    other = list(rows)
    mixed.shuffle(other)
    first, second = Mismatch(Tokens(rows)), Mismatch(Tokens(other))
    assert first.split == second.split
    assert first.split is not None
    assert first.confident == second.confident
    assert first.judgement.cause == second.judgement.cause


@pytest.mark.parametrize("strength", [1.0, 0.5, 0.25])
def test_staleness_that_grows_with_lag_is_recovered_and_the_engines_part_too(strength: float) -> None:
    engine, stale, within = 0.05, 0.01 * strength, 0
    for seed in range(10, 30):
        found = split_of(answers_of(seed, 80, engine=engine, stale=stale))
        assert found.clear
        counts = {one.lag: one.tokens for one in found.by_lag}
        total = sum(counts.values()) / (1 - 0.25)  # about a quarter of the answers is of lag 0
        planted = sum(stale * lag / 2 * count for lag, count in counts.items()) / total
        within += abs(found.stale - planted) <= 3 * found.error
        assert found.engine == pytest.approx(engine**2 / 2, rel=0.35)
        added = [one.added / one.tokens for one in found.by_lag]
        assert added == sorted(added)
    assert within >= 19


@pytest.mark.parametrize("engine", [0.2, 0.05, 0.0125])
def test_what_is_alike_at_all_lags_is_the_engines(engine: float) -> None:
    splits = [split_of(answers_of(seed, 80, engine=engine)) for seed in range(10, 30)]
    assert sum(one.clear for one in splits) == 0
    assert all(abs(one.stale) <= 4 * one.error for one in splits)
    assert all("nothing beyond noise" in one.sentence for one in splits)


def test_answers_of_older_weights_may_differ_less_and_that_is_no_staleness() -> None:
    rows = answers_of(3, 80)
    loud = [
        replace(one, rollout=one.train + 10 * (one.rollout - one.train))
        if one.known["weight_version"] == one.known["step"]
        else one
        for one in rows
    ]
    found = split_of(loud)
    assert found.stale < 0
    assert not found.clear
    assert found.sentence.startswith("Answers of older weights differ less than those of the newest")


def test_the_error_is_that_of_a_difference_of_two_means_over_answers() -> None:
    def of(lag: int, *differences: float) -> Answer:
        train = np.full(len(differences), -1.0)
        known = {"weight_version": 5 - lag, "trainer_version": 5}
        return Answer(train - np.array(differences), train, np.ones(len(train)), known=known)

    found = split_of([of(0, 1.0), of(0, 2.0), of(1, 3.0), of(1, 1.0)])
    # k2 of the answers: 1/2, 2 (mean 5/4) and 9/2, 1/2 (mean 5/2); half of the tokens are stale.
    assert (found.total, found.engine, found.stale) == (1.875, 1.25, 0.625)
    fresh, stale = 2 * (0.75**2 * 2) / 4, 2 * (2.0**2 * 2) / 4
    assert found.error == pytest.approx(0.5 * math.sqrt(fresh + stale))


# ------------------------------------------------------------------------------------------------------- withheld


NAMES = {
    "which weights sampled the answers wasn't recorded.": {"weight_version": [None] * 40},
    "no answer was sampled by the trainer's own weights; the newest are 2 versions old.": {
        "trainer_version": [at // 4 + 6 for at in range(40)]
    },
    "the trainer's version wasn't recorded, and all answers may lag behind it alike.": {
        "weight_version": [at // 4 for at in range(40)],
        "trainer_version": [None] * 40,
    },
    "the trainer's version wasn't recorded, and weight versions don't rise as steps do.": {
        "weight_version": [at // 8 for at in range(40)],
        "trainer_version": [None] * 40,
    },
    "the answers tell newer weights than the trainer's, so that the two don't count versions alike.": {
        "weight_version": [99] * 40
    },
}


@pytest.mark.parametrize("why", NAMES)
def test_what_can_t_be_split_is_withheld_with_what_is_missing(why: str) -> None:
    found = Mismatch(Tokens(answers_of(5, engine=0.3, **NAMES[why])))
    assert found.judgement.cause == "kernels"
    assert found.split is None
    assert found.split_sentence == ""
    (told,) = found.withheld
    assert told.sentence == f"Whether older weights or the engine make the difference isn't known: {why}"
    assert told.change is not None
    assert found.to_dict()["split"] is None
    assert found.to_dict()["withheld"] == [told.to_dict()]
    # The same words everywhere.
    finding = agreement._withheld(told)
    assert repr(Findings([finding])) in repr(found)
    for text in (html.escape(told.sentence), html.escape(told.change.advice), finding_mark()):
        assert text in found._repr_html_()
        assert text in Findings([finding])._repr_html_()
    assert agreement._finding(found).missing == (f"{told.sentence} {told.change.advice}",)


def test_a_few_answers_of_lag_0_are_too_few() -> None:
    versions = [at // 4 + 4 - (0 if at < 3 else 1) for at in range(40)]
    found = Mismatch(Tokens(answers_of(5, engine=0.3, weight_version=versions)))
    assert found.split is None
    assert "tokens of 3 answers are of the trainer's own weights; at least 100 of 6 are needed." in repr(
        found.withheld[0].sentence
    )


def test_where_both_agree_nothing_is_withheld_and_nothing_is_said_of_staleness() -> None:
    found = Mismatch(Tokens(answers_of(6, engine=0.004, weight_version=[None] * 40)))
    assert (found.judgement.cause, found.withheld, found.split_sentence) == ("agree", (), "")


def test_few_tokens_are_withheld_in_the_words_of_the_finding() -> None:
    found = Mismatch(Tokens(answers_of(7, 3)))
    (told,) = found.withheld
    assert found.sentence == told.sentence
    assert told.sentence.startswith("Whether rollout and training agree about their tokens isn't known: ")
    assert "of 3 answers have both log-probabilities; at least 100 of 6 are needed" in told.sentence
    assert f"◌ Not judged: {told.sentence[:40]}" in repr(found)
    assert found.to_dict()["withheld"][0]["change"]["advice"].startswith("Look at more steps")


def finding_mark() -> str:
    """How a page marks what is withheld."""
    return "</span> Not judged</b>"


def told_run(place: Path, many: int, config: dict[str, Any] | None = None, **each: Any) -> Path:
    with probe.start("mismatch", run_dir=place, rank=0, world_size=1, config=config) as session:
        for step in range(many):
            with session.step(step):
                probe.samples([30] * 4, rewards=[1.0, 0.0, 1.0, 0.0], clipped=False, **each)
    return place


def test_without_a_side_the_answer_the_page_and_the_finding_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"actor_rollout_ref": {"rollout": {"calculate_log_probs": False}}}
    place = told_run(tmp_path / "run", 2, config, log_probs=np.full((4, 30), -1.0))
    with Run(place) as run:
        found, findings, section = run.mismatch(), run.findings(), mismatch_section(run)
        assert run.mismatch(first=5) is None
    assert found is not None
    (told,) = found.withheld
    (finding,) = (one for one in findings.withheld if one.name == "agreement")
    assert finding == agreement._withheld(told)
    assert "the rollout's log-probabilities weren't recorded." in told.sentence
    assert told.change is not None
    assert told.change.line == "actor_rollout_ref.rollout.calculate_log_probs=True"
    assert told.to_html() in section
    assert html.escape(finding.sentence) in section
    assert "<table" not in section
    assert main(["mismatch", str(place)]) == 1
    printed = capsys.readouterr().out
    assert printed == f"{Findings([finding])!r}\n"
    assert main(["mismatch", str(place), "--json"]) == 1
    (listed,) = json.loads(capsys.readouterr().out)["withheld"]
    assert listed == {name: json.loads(json.dumps(finding.to_dict()))[name] for name in listed}


def test_a_run_without_answers_has_no_mismatch(tmp_path: Path) -> None:
    with probe.start("mismatch", run_dir=tmp_path / "run", rank=0, world_size=1) as session, session.step(0):
        pass
    with Run(tmp_path / "run") as run:
        assert run.mismatch() is None
        assert mismatch_section(run) == ""


def test_replicas_are_told_apart(tmp_path: Path) -> None:
    both = np.full((4, 30), -1.0)
    place = told_run(tmp_path / "run", 2, rollout_log_probs=both, log_probs=both, replicas=["a", "b", "a", "b"])
    with Run(place) as run:
        found = run.mismatch()
    assert found is not None
    assert found.by("replica")["replica"].tolist() == ["a", "b"]


# ----------------------------------------------------------------------------------------- confident disagreement


def sure(rollout: list[float], train: list[float], **known: Any) -> Answer:
    """An answer of such probabilities."""
    return Answer(np.log(rollout), np.log(train), np.ones(len(train)), known=known)


def test_confident_disagreement_takes_a_side_that_is_sure_and_one_that_finds_it_unlikely() -> None:
    pairs = {(0.5, 0.05): True, (0.9, 0.01): True, (0.04, 0.6): True, (0.49, 0.01): False, (0.9, 0.06): False}
    rollout, train = ([pair[side] for pair in pairs] for side in (0, 1))
    tokens = Tokens([sure(rollout, train, rank=3, weight_version=1, trainer_version=3)])
    assert confident(tokens).tolist() == list(pairs.values())
    found = counted(tokens, lags(tokens).behind)
    assert (found.tokens, found.ratio, found.answers, found.position) == (3, 0.6, 1, 1)
    assert (found.rollout_sure, found.training_sure) == (2, 1)
    assert (found.ranks, found.lags) == ((3,), (2,))
    unmasked = Tokens([replace(tokens.answers[0], mask=np.zeros(5))])
    assert not confident(unmasked).any()


def test_it_is_said_only_where_it_says_something_and_the_worst_tokens_are_marked() -> None:
    rows = answers_of(8, 60, engine=0.3)
    quiet = Mismatch(Tokens(rows))
    assert quiet.judgement.cause == "kernels"
    for at in (0, 1, 2, 3):
        one = rows[at]
        one.rollout[5], one.train[5], one.mask[5] = math.log(0.9), math.log(0.001), True
    found = Mismatch(Tokens(rows))
    assert found.confident.tokens >= 4
    assert found.confident.sentence in found.judgement.why
    assert "retokenised" in found.judgement.alternatives
    assert (quiet.judgement.confidence, found.judgement.confidence) == ("high", "medium")
    assert agreement._finding(found).why.startswith(found.judgement.why)
    worst = found.worst(4)
    assert all(one.confident for one in worst)
    assert sorted(one.lag for one in worst if one.lag is not None) == [0, 1, 2, 3]
    assert found._repr_html_().count("confident disagreement</td>") >= 4
    by_lag = found.by("lag")
    assert by_lag["confident_tokens"].sum() == found.confident.tokens == found.measures.confident_tokens
    assert found.to_dict()["confident"]["tokens"] == found.confident.tokens
    # Two in one answer, among thousands, say nothing.
    rows = answers_of(8, 60, engine=0.3)
    alone = Mismatch(Tokens([*rows[:-1], sure([0.9, 0.9], [0.001, 0.001], **rows[-1].known)]))
    assert "Confident" not in alone.judgement.why


# -------------------------------------------------------------------------------------------------- a real model


@pytest.mark.slow
def test_of_a_real_model_staleness_is_told_from_a_temperature(tmp_path: Path) -> None:
    """The whole table, on held-out seeds, is in docs/design/mismatch.md."""
    from probe.demo.zoo.lags import LAGS

    found, planted, kinds = {}, {}, {}
    for name, kind in LAGS.items():
        trained = kind(1.0 if name != "both" else 0.25, 21)
        with Run(trained.run(tmp_path / name)) as run:
            answer = run.mismatch()
            assert answer is not None
            assert answer.split is not None
            kinds[name] = {one.kind for one in run.findings() if one.name in ("mismatch", "agreement")}
        keys = [(*(one.known[name] for name in ("step", "rank", "row")), one.weight) for one in answer.tokens.answers]
        found[name], planted[name] = answer.split, trained.planted(keys)
    assert [one.clear for one in found.values()] == [False, True, False, True]
    assert kinds["nothing"] == {"fine"}  # weights that are told to be older are no alarm
    for name, told in found.items():
        engine, stale = planted[name]
        assert abs(told.stale - stale) <= 4 * told.error, name
        assert told.total == pytest.approx(engine + stale, rel=0.02)


def test_the_panel_marks_the_tokens_that_the_verdict_counts():
    """Its colours are made in the browser, from the same two probabilities."""
    source = (Path(probe.__file__).parent / "views/panel/static/src/colouring.js").read_text("utf-8")
    assert f"const [SURE, UNLIKELY] = [{SURE:g}, {UNLIKELY:g}];" in source
