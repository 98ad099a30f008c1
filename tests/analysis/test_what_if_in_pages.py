"""A page cuts batches as the run's side does: parts, order and numbers. The page's own code answers, in node."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from probe.analysis.what_if import what_if
from probe.analysis.what_if.numbers import Width, step_numbers
from probe.core.balancing.replay import Cut, replay_ranks
from probe.errors import InputError
from probe.views.panel.what_if import WhatIfs
from tests.analysis.planted_batches import Planted, planted

SCRIPT = Path(__file__).parents[1] / "js" / "cut_batches.js"
BATCHES = 1000
CONFIG = {
    "actor_rollout_ref": {
        "actor": {"ppo_max_token_len_per_gpu": 8192, "use_dynamic_bsz": True, "ulysses_sequence_parallel_size": 1},
        "rollout": {},
    },
    "trainer": {"balance_batch": True},
}


def asked(questions: list[dict[str, Any]]) -> list[Any]:
    """What the page's code answers."""
    found = shutil.which("node")
    if found is None:
        if os.environ.get("PROBE_REQUIRE_NODE"):
            pytest.fail("node isn't there, and PROBE_REQUIRE_NODE is set")
        pytest.skip("node isn't there")
    done = subprocess.run(
        [found, str(SCRIPT)], input=json.dumps(questions), capture_output=True, text=True, check=True, timeout=600
    )
    answers: list[Any] = json.loads(done.stdout)
    return answers


def drawn(chance: random.Random, alike: bool) -> tuple[list[list[int]], Cut, Width]:
    """Lengths of ranks, what their packer is given, and how wide rows are; with ``alike`` many lengths are equal."""
    group = chance.choice([1, 1, 1, 2])
    few = [chance.randint(1, 900) for _ in range(chance.randint(1, 3))]
    ranks = [
        [chance.choice(few) if alike else chance.randint(1, 900) for _ in range(group * chance.randint(1, 14))]
        for _ in range(chance.randint(1, 3))
    ]
    width = Width(chance.random() < 0.3, chance.choice([None, 1024]), chance.choice([1, 1, 64]))
    if chance.random() < 0.2:
        packer = chance.choice(["verl.fixed_rows", "trl.fixed_rows"])
        return ranks, Cut(packer=packer, lengths=[], rows_each=chance.randint(1, 5), group_size=group), width
    cut = Cut(
        packer="verl.rearrange_micro_batches",
        lengths=[],
        cap_tokens=chance.randint(700, 4000),
        group_size=group,
        divisor=chance.choice([None, None, 2, 3]),
        minimum_count=chance.choice([None, None, 2]),
        counts_agreed=chance.random() < 0.5,
        ordered=chance.random() < 0.8,
        strict=chance.random() < 0.8,
    )
    return ranks, cut, width


def in_python(ranks: list[list[int]], cut: Cut, width: Width) -> Any:
    from dataclasses import replace

    try:
        parts = replay_ranks([replace(cut, lengths=mine) for mine in ranks])
    except InputError:
        return "refused"
    made = [[[mine[row] for row in part] for part in own] for mine, own in zip(ranks, parts, strict=True)]
    return {"parts": parts, "values": step_numbers([made], cut.cap_tokens, width).values}


def told(ranks: list[list[int]], cut: Cut, width: Width) -> dict[str, Any]:
    names = ("packer", "cap_tokens", "minimum_count", "divisor", "group_size", "counts_agreed", "rows_each")
    given = {name: getattr(cut, name) for name in (*names, "ordered", "strict")}
    wide = {"padded": width.padded, "fixed": width.fixed, "round_to": width.round_to}
    return {"ranks": ranks, "cut": given, "width": wide}


def test_2_a_page_cuts_1000_batches_as_python_does_parts_and_order_equal() -> None:
    chance = random.Random(16)
    batches = [drawn(chance, alike=at % 2 == 0) for at in range(BATCHES)]
    answers = asked([told(*one) for one in batches])
    wanted = [in_python(*one) for one in batches]
    refused = sum(one == "refused" for one in wanted)
    assert 50 < refused < BATCHES / 2  # both happen
    for batch, mine, theirs in zip(batches, answers, wanted, strict=True):
        if theirs == "refused" or mine == "refused":
            assert mine == theirs, batch
            continue
        assert mine["parts"] == theirs["parts"], batch
        for name, value in theirs["values"].items():
            here = mine["values"][name]
            assert (here is None) if math.isnan(value) else here == pytest.approx(value, rel=1e-12, abs=1e-12), name


@pytest.fixture(scope="module", params=[{}, {1: 1.5, 3: 1.2}], ids=["alike", "slow ranks"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = Planted(steps=4, config=CONFIG, slower=request.param)
    with planted(tmp_path_factory.mktemp("planted") / "run", made) as opened:
        yield opened


def test_2_a_page_answers_as_the_run_does_times_and_peaks_too(run: Any) -> None:
    (phase,) = WhatIfs(run).batches(4)["phases"]
    assert phase["seconds"] is not None
    questions = [{}, {"cap_tokens": 5000}, {"cap_tokens": 16384}, {"dynamic": False, "rows_each": 4}]
    for changes, mine in zip(questions, asked([{"phase": phase, "changes": one} for one in questions]), strict=True):
        theirs = what_if(run, changes, steps=[4])
        numbers = theirs.frame.set_index("number")
        before, after, reach = theirs.step_s
        step = {"before": before, "after": after, "low": after - reach, "high": after + reach}
        assert {side: mine[side].pop("predicted_step_s") for side in step} == pytest.approx(step, rel=1e-9)
        assert set(mine["after"]) == set(numbers.index)
        for side in ("before", "after"):
            assert mine[side] == pytest.approx(numbers[side].to_dict(), rel=1e-9, abs=1e-9)
        assert mine["modelled"] == pytest.approx(numbers["modelled"].dropna().to_dict(), rel=1e-9)
        for name in ("predicted_s", "predicted_peak_bytes"):
            assert (mine["low"][name], mine["high"][name]) == pytest.approx(
                (numbers["low"][name], numbers["high"][name]), rel=1e-9
            )
        assert mine["notes"] == [one for one in theirs.notes if "takes" in one or "no peak is told" in one]
        assert mine["saved"] == pytest.approx(theirs.saved_s["actor", "update_actor"], rel=1e-6, abs=1e-9)
        if not changes:
            assert mine["after"] == pytest.approx(mine["before"] | mine["modelled"], rel=1e-12)


def test_2_a_page_tells_no_peak_where_the_run_tells_none(tmp_path: Path) -> None:
    with planted(tmp_path / "run", Planted(steps=4, cap=None, config=CONFIG)) as run:
        (phase,) = WhatIfs(run).batches(4)["phases"]
        questions = [{}, {"rows_each": 2}, {"rows_each": 8}, {"dynamic": True, "cap_tokens": 5000}]
        for changes, mine in zip(
            questions, asked([{"phase": phase, "changes": one} for one in questions]), strict=True
        ):
            theirs = what_if(run, changes, steps=[4])
            peak = theirs.number("predicted_peak_bytes")[1]
            assert math.isnan(peak) == bool(changes)
            assert mine["after"]["predicted_peak_bytes"] == (None if changes else pytest.approx(peak, rel=1e-9))
            assert mine["notes"] == [one for one in theirs.notes if "no peak is told" in one]
            assert bool(mine["notes"]) == bool(changes)


def test_2_what_a_page_has_no_rule_for_it_asks(run: Any, tmp_path: Path) -> None:
    (phase,) = WhatIfs(run).batches(4)["phases"]
    (loose,) = asked([{"phase": phase, "changes": {"cap_tokens": 8192, "sp_size": 2}}])
    assert loose == "asks"
    with planted(tmp_path / "run", Planted(steps=2, packer="probe")) as other:
        (own,) = WhatIfs(other).batches(2)["phases"]
        assert (own["in_page"], own["lengths"], own["cuts"]) == (False, "", {})
