"""When a change can be made: at once, or only after the leak is fixed that would make it run out of memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.analysis.advice import advise
from probe.analysis.advice.suggestions import Advice, Suggestion
from probe.analysis.advice.when import READY, When, leak_of
from probe.analysis.what_if import Replayer, Settings
from probe.cli import main
from probe.opened import Run
from probe.records import GIB
from probe.views.panel import outlook
from tests.analysis.planted_batches import MIB, Planted, planted
from tests.analysis.test_advice import CAP, DYNAMIC, config

#: The balance over ranks and a larger cap save time; memory leaks.
LEAKS = Planted(
    steps=40, drift=50 * MIB, total=62 * GIB, balanced=False, config=config(balance=False), per_micro_batch_s=0.1
)


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("when") / "run"
    planted(path, LEAKS).close()
    return path


def cap_of(advice: Advice) -> Suggestion:
    (one,) = [each for each in advice.suggestions if each.kind == "cap"]
    return one


def full_in(run: Any, made: Planted, cap: int) -> float:
    """In which step the planted leak fills the memory under a cap."""
    own, room = Replayer(run), made.total - made.beside - made.above
    told = {one for at in range(len(own)) for one in own.after(at, Settings(cap_tokens=cap)).micro_batches}
    costs = np.array([made.per_token, made.per_longest, made.per_row])
    return float((room - made.floor - max(costs @ one for one in told)) / made.drift)


def test_4_a_larger_cap_waits_for_the_leak_that_would_fill_the_memory_and_what_needs_no_more_is_ready(
    leaking: Path, capsys: Any
) -> None:
    with Run(leaking) as run:
        advice = advise(run)
        cap = cap_of(advice)
        (balance,) = [one for one in advice.suggestions if one.kind == "balance"]
        full = full_in(run, LEAKS, cap.values[CAP])
    assert balance.when == READY
    assert balance.when.told() == "alone: ready"
    assert cap.when.state == "after_leak"
    assert 40 < full < 60
    assert cap.when.fails_near_step == pytest.approx(full, abs=4)
    told = f"only after the leak is fixed: it would fail near step {cap.when.fails_near_step}"
    assert f"  {told}" in cap.change.told
    assert main(["advise", str(leaking)]) == 0
    printed = capsys.readouterr().out
    assert f"  {told}\n" in printed
    assert "  alone: ready\n" in printed
    assert main(["advise", str(leaking), "--json"]) == 0
    found = {one["kind"]: one["when"] for one in json.loads(capsys.readouterr().out)["suggestions"]}
    assert found["cap"] == {"state": "after_leak", "fails_near_step": cap.when.fails_near_step, "told": told}
    assert found["balance"] == {"state": "ready", "fails_near_step": None, "told": "alone: ready"}


def test_4_the_panel_has_when_each_change_and_all_of_them_can_be_made(leaking: Path) -> None:
    with Run(leaking) as run:
        advice = advise(run)
        found, careless = outlook.told(run, advice), outlook.told(run, replace(advice, risk=1.0))
    assert found is not None
    assert careless is not None
    together = found["together"]
    assert together["head"][-1] == "When"
    for one, line in zip(advice.suggestions, together["rows"], strict=False):
        assert line["cells"][-1] == one.when.told()
        assert line["when"] == ("ready" if one.when == READY else "held")
    last = together["rows"][-1]
    assert (last["cells"][-1], last["when"]) == ("too risky: out of memory in 100 % of runs of 1,000 steps", "held")
    last = careless["together"]["rows"][-1]
    assert last["cells"][-1].startswith("only after the leak is fixed: it would fail near step ")
    assert last["when"] == "held"


def test_4_a_run_whose_memory_does_not_leak_has_nothing_to_wait_for(tmp_path: Path) -> None:
    with planted(tmp_path / "a", replace(LEAKS, drift=0.0)) as run:
        advice = advise(run)
        found = outlook.told(run, advice)
        assert leak_of(run, advice.memory[0]) is None
    assert {one.when for one in advice.suggestions} == {READY}
    assert cap_of(advice).values[CAP] > 8192
    assert found is not None
    assert [line["cells"][-1] for line in found["together"]["rows"]] == [
        "alone: ready",
        "alone: ready",
        "together: ready",
    ]
    with planted(tmp_path / "few", replace(LEAKS, steps=12)) as run:  # too few to judge
        assert cap_of(advise(run)).when == READY


def test_4_a_leak_of_one_rank_alone_is_the_one_that_counts(tmp_path: Path, leaking: Path) -> None:
    """The model has a drift for all ranks in common; the level of the fastest is judged."""
    made = replace(LEAKS, drift=0.0, drifts={2: 50 * MIB})
    with planted(tmp_path / "a", made) as run, Run(leaking) as other:
        (model,), (all_leak,) = advise(run).memory, advise(other).memory
        one, each = leak_of(run, model), leak_of(other, all_leak)
    assert one is not None
    assert each is not None
    assert one.bytes_per_step == pytest.approx(50 * MIB, rel=0.05)
    assert one.bytes_per_step == pytest.approx(each.bytes_per_step, rel=0.05)
    assert one.level_bytes == pytest.approx(20 * GIB + 38 * 50 * MIB, rel=0.02)  # the median of the last five


def test_4_memory_that_runs_out_after_the_runs_last_step_holds_nothing_back(tmp_path: Path) -> None:
    told = config(balance=False)
    told["trainer"]["total_training_steps"] = 45
    with planted(tmp_path / "a", replace(LEAKS, config=told)) as run:
        assert full_in(run, LEAKS, cap_of(advise(run)).values[CAP]) > 46
        assert cap_of(advise(run)).when == READY
    told["trainer"]["total_training_steps"] = 1000
    with planted(tmp_path / "b", replace(LEAKS, config=told)) as run:
        assert cap_of(advise(run)).when.state == "after_leak"


def test_4_a_change_whose_peak_is_not_told_is_not_called_ready(tmp_path: Path) -> None:
    made = Planted(cap=None, balanced=False, config=config(dynamic=False, balance=False))
    with planted(tmp_path, made) as run:
        whens = {next(iter(one.values)): one.when for one in advise(run).suggestions}
    assert whens[DYNAMIC] == When("untold")
    assert whens[DYNAMIC].told() == "alone: its peak isn't known"
    assert whens["trainer.balance_batch"] == READY


def test_4_a_cap_that_has_to_go_down_waits_for_nothing(tmp_path: Path) -> None:
    with planted(tmp_path, replace(LEAKS, total=43 * GIB)) as run:
        one = cap_of(advise(run))
        assert one.lowers
        assert one.when == READY
