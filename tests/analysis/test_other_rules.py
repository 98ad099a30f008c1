"""Issue 15, part 6: what other rules for the longest answers would have saved a step, by its recorded answers."""

from __future__ import annotations

import json
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import probe
from probe.analysis.long_tail.rules import Rule, enough
from probe.cli import main
from probe.demo.zoo.clock import fake_time
from probe.recorders import rollout_rows
from probe.sampled import TIMED
from probe.views.panel import lanes

SECOND = 1_000_000_000

#: Tokens of the answers, of which each takes a tenth of a second: two are far above the others.
TOKENS = [*range(1, 19), 100, 90]


@contextmanager
def recorded(path, tokens=TOKENS, *, phases=(("generate", 0, 10), ("update", 10, 12)), tell=None, **told):
    """A run of one step of 12 s, opened: answers are asked for at its begin."""
    now = [0]
    with fake_time(lambda: now[0], 1_790_000_000 * SECOND):
        with probe.start("p", "e", run_dir=path, rank=0, world_size=1) as session, session.step(1):
            for name, begin, end in phases:
                now[0] = begin * SECOND
                with probe.phase(name):
                    now[0] = end * SECOND
            ends = [one * SECOND // 10 for one in tokens]
            about = {"replicas": ["a", "b"] * (len(tokens) // 2), **told}
            (tell or probe.samples)(tokens, begin_ns=[0] * len(tokens), end_ns=ends, **about)
            now[0] = 12 * SECOND
        with probe.open(path) as run:
            yield run


def test_15_6_answers_that_end_at_a_limit_save_the_time_in_which_the_trainer_only_waited(tmp_path):
    rewards = [0.0] * 18 + [1.0, 0.0]
    with recorded(tmp_path / "a", rewards=rewards) as run:
        later, limit, more = run.long_tail().rules
        # Nine tenths have at most 18 tokens; the last of the others ended at 1.8 s, and so do the two that are cut.
        assert later == Rule("continue", 2, 18, round(8.2 * SECOND), tokens=18)
        assert limit == Rule("limit", 2, 20, round(8.2 * SECOND), tokens=18, right=1)
        assert (more.kind, more.answers, more.kept, more.tokens, more.right) == ("more", 22, 20, None, None)
        (row, other) = run.rollouts.to_dict("records")
        assert list(row["requests_tokens"]) == [1, 3, 5, 7, 9, 11, 13, 15, 17, 100]
        assert list(row["requests_right"]) == [0] * 9 + [1]
        assert list(other["requests_right"]) == [0] * 10
    beside = (("generate", 0, 4), ("update", 4, 7), ("reward", 8, 9))
    with recorded(tmp_path / "b", phases=beside) as run:
        (_, limit, _) = run.long_tail().rules
        assert (limit.saved_ns, limit.right) == (round(4.2 * SECOND), None)  # without 3 s of update and 1 s of reward
        assert "with the larger reward" not in repr(run.long_tail())


def test_15_6_what_more_answers_save_is_what_drawing_them_gives():
    random = np.random.default_rng(5)
    took = np.sort((random.lognormal(0, 0.5, 200) * SECOND).astype(np.int64))
    mean, low, high = enough(took, 225)
    drawn = np.sort(took[random.integers(0, 200, (20_000, 225))], axis=1)[:, 199]
    assert mean == pytest.approx(drawn.mean(), rel=0.005)
    assert [low, high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]), rel=0.02)


@given(st.lists(st.integers(0, 10**12), min_size=8, max_size=60), st.integers(0, 40))
def test_15_6_more_answers_never_end_later(times, more):
    took = np.sort(np.array(times, np.int64))
    found, others = enough(took, len(took) + more), enough(took, len(took) + more + 1)
    assert all(one >= other for one, other in zip(found, others, strict=True))
    assert took[0] <= found[1] <= found[2] <= took[-1]
    assert took[0] <= found[0] <= took[-1]


@pytest.mark.parametrize(
    ("rewards", "right"),
    [
        ([0.0] * 20, None),
        ([0.0, 0.5] * 9 + [1.0, 0.0], None),
        ([0.0] * 19 + [float("nan")], None),
        ([-1.0, 3.0] * 10, 1),
    ],
)
def test_15_6_answers_are_right_only_where_rewards_have_two_values(tmp_path, rewards, right):
    with recorded(tmp_path, rewards=rewards) as run:
        (_, limit, _) = run.long_tail().rules
        assert limit.right == right


def test_15_6_no_rule_is_told_where_not_every_answer_is_known(tmp_path, monkeypatch):
    with recorded(tmp_path / "alike", [5] * 20) as run:
        assert [one.kind for one in run.long_tail().rules] == ["more"]  # none is longer than nine tenths of them
    with recorded(tmp_path / "few", [1, 2, 3, 40, 5, 6]) as run:
        assert run.long_tail().rules == ()

    def without_one(tokens, end_ns, **told):
        probe.samples(tokens, end_ns=[*end_ns[:-1], None], **told)

    with recorded(tmp_path / "untimed", tell=without_one) as run:
        assert run.long_tail().rules == ()
    monkeypatch.setattr(rollout_rows, "TIMES_KEPT", 10)
    with recorded(tmp_path / "every second", tell=probe.samples) as run:
        assert len(run.rollouts["requests_tokens"].iloc[0]) == 5
        assert run.long_tail().rules == ()
        assert "rather" not in repr(run.long_tail())


@pytest.mark.parametrize("known", [True, False])
def test_15_6_who_only_times_samples_tells_their_tokens_where_it_knows_them(tmp_path, known):
    def tell(tokens, begin_ns, end_ns, replicas):
        about = {"step": 1, "phase": "gen", "source": "test", "uids": [], "compared": []}
        given = {"begin_ns": begin_ns, "end_ns": end_ns, "replicas": replicas, "tokens": tokens if known else None}
        probe.hooks.emit(TIMED, **given, **about)

    with recorded(tmp_path, tell=tell) as run:
        assert [one.kind for one in run.long_tail().rules] == (["continue", "limit", "more"] if known else [])


def test_15_6_the_rules_are_told_in_words_with_what_they_cost(tmp_path, capsys):
    with recorded(tmp_path / "run", rewards=[0.0] * 18 + [1.0, 0.0]) as run:
        found = run.long_tail()
        told = lanes.told(run, 1)["rules"]
        assert told["head"] == ["What would have saved time", "A step", "Price"]
        later, limit, more = told["rows"]
        assert later == (
            "Continue answers above 18 tokens in the next step",
            "−8.20 s (−68 %)",
            "2 answers train one step later, on older weights",
        )
        assert limit == ("Limit answers to 18 tokens", "−8.20 s (−68 %)", "2 answers are cut, 1 with the larger reward")
        assert (more[0], more[2]) == ("Ask for 22 answers, keep the first 20", "Long answers train less often")
        for said in (repr(found), found._repr_html_()):
            assert all(one in said for row in told["rows"] for one in row)
            assert " ".join(said.split()).count("Computed as if the tokens of each answer had come evenly") == 1
        assert '"rules": null' not in json.dumps(lanes.told(run, 1))
    assert main(["long-tail", str(tmp_path / "run"), "--json"]) == 0
    first, *_ = json.loads(capsys.readouterr().out)["rules"]
    assert first == {
        "step": 1,
        "kind": "continue",
        "answers": 2,
        "kept": 18,
        "saved_s": 8.2,
        "reach_s": 0.0,
        "tokens": 18,
        "right": None,
    }
