"""The changes of an advice taken together, and what came of the advice for earlier runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import probe
from probe.analysis.advice import advise
from probe.analysis.advice.earlier import earlier
from probe.analysis.advice.jointly import Joint, jointly
from probe.analysis.advice.suggestions import Advice, Suggestion
from probe.analysis.memory_model import risk_of
from probe.analysis.what_if.answering import Replayer
from probe.analysis.what_if.settings import Settings
from probe.records import GIB
from tests.analysis.planted_batches import Planted, planted
from tests.analysis.test_promises import CONFIG, DONE, made


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The batches and the advice of a run whose cap can grow and whose ranks can be dealt to by work."""
    path = tmp_path_factory.mktemp("two") / "run"
    told = Planted(steps=6, total=50 * GIB, balanced=False, config=CONFIG)
    with planted(path, told) as run:
        yield Replayer(run), advise(run)


def of_kind(advice: Advice, kind: str) -> Suggestion:
    (found,) = [one for one in advice.suggestions if one.kind == kind]
    return found


def test_16_2_changes_taken_together_are_replayed_as_one_and_not_added_up(two: tuple[Replayer, Advice]) -> None:
    replayer, advice = two
    cap = of_kind(advice, "cap")
    found = jointly(replayer, advice)
    assert isinstance(found, Joint)
    assert {one.kind for one in found.suggestions} == {"cap", "balance"}
    both = Settings.of({"cap_tokens": next(iter(cap.values.values())), "balance": "batch"})
    wanted = replayer.answer(both, lambda: True)
    pd.testing.assert_frame_equal(found.what_if.frame, wanted.frame)
    assert found.gain_s == wanted.saved_s["actor", "update_actor"]
    assert found.sum_s == sum(one.gain_s[0] for one in advice.suggestions if one.gain_s is not None)
    model = replayer.memory["actor", "update_actor"]
    steps = [sorted(replayer.after(at, both).micro_batches) for at in range(len(replayer))]
    assert found.risk == risk_of(model, steps)
    other = found.gain_s[0] - found.sum_s
    assert found.beside_sum == (
        "less than" if other < -0.01 * found.sum_s else "more than" if other > 0 else "as much as"
    )


def test_16_2_how_the_gain_compares_with_the_sum_is_said_only_where_both_are_known(two: Any) -> None:
    found = jointly(*two)
    assert isinstance(found, Joint)
    for gain, words in ((0.8, "less than"), (0.995, "as much as"), (1.2, "more than")):
        assert replace(found, gain_s=(gain, 0.1), sum_s=1.0).beside_sum == words
    assert replace(found, gain_s=None, sum_s=None).beside_sum == ""


def test_16_2_what_cant_be_replayed_together_is_named_and_nothing_is_added_up(two: Any) -> None:
    replayer, advice = two
    cap, balance = of_kind(advice, "cap"), of_kind(advice, "balance")
    # Another value of the same setting: one of the two is taken.
    (key,) = cap.values
    what_if = replace(cap.what_if, changes={"cap_tokens": 4096})
    smaller = replace(cap, values={key: 4096}, what_if=what_if)
    found = jointly(replayer, replace(advice, suggestions=(cap, smaller, balance)))
    assert isinstance(found, Joint)
    assert found.left_out == ((smaller, "Another change sets the same, or switches it off."),)
    assert found.suggestions == (cap, balance)
    # What the packer refuses beside the others.
    evened = replace(balance, values={"balance": "tokens"}, what_if=replace(cap.what_if, changes={"evened": "tokens"}))
    refused = jointly(replayer, replace(advice, suggestions=(cap, evened)))
    assert not isinstance(refused, Joint)
    ((one, why),) = refused
    assert one is evened
    assert why.startswith("It can't be replayed beside the others: ")
    assert "evened" in why
    assert jointly(replayer, replace(advice, suggestions=(cap,))) == ()


def test_16_2_seconds_that_one_change_doesn_t_have_are_not_known_together(two: Any) -> None:
    replayer, advice = two
    some = tuple(replace(one, gain_s=None) if one.kind == "balance" else one for one in advice.suggestions)
    found = jointly(replayer, replace(advice, suggestions=some))
    assert isinstance(found, Joint)
    assert (found.gain_s, found.sum_s) == (None, None)


def begun(path: Path, wall_ns: int, **told: Any) -> None:
    """When a run began, and what else its ``run.json`` says."""
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"wall_ns": wall_ns} | told))


def test_16_2_the_promises_of_earlier_runs_of_the_project_are_judged_in_the_run_that_keeps_them(tmp_path: Path) -> None:
    for name, told in {"first": {}, "now": {"balanced": True, "config": DONE}, "later": {}, "other": {}}.items():
        made(tmp_path / name, **told).close()
    made(tmp_path / "same", balanced=True, config=DONE).close()
    for name, at in {"first": 1, "same": 2, "now": 5, "later": 9}.items():
        begun(tmp_path / name, at)
    begun(tmp_path / "other", 3, project="another")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    with probe.open(tmp_path / "now") as now, probe.open(tmp_path / "first") as first:
        (one,) = earlier(now)
        assert one.name == "first"
        pd.testing.assert_frame_equal(one.promises, probe.compare(first, now).promises)
        assert True in set(one.promises["held"])
        assert False not in set(one.promises["held"])
        assert earlier(first) == []
    begun(tmp_path / "first", 1, config=CONFIG | {"trainer": {"balance_batch": True}})
    with probe.open(tmp_path / "now") as now:
        assert earlier(now) == []  # the earlier run had it too
