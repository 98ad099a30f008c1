"""What a page is handed beside the sliders of settings: caps, changes together, and what came of earlier advice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.analysis.advice import advise
from probe.opened import Run
from probe.records import GIB
from probe.views.panel import outlook
from probe.views.panel.looking import Looker
from probe.views.panel.verdict import Verdict
from tests.analysis.planted_batches import Planted, planted
from tests.analysis.test_jointly import begun
from tests.analysis.test_promises import CONFIG, DONE, made


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose cap can grow."""
    path = tmp_path_factory.mktemp("grown") / "run"
    planted(path, Planted(steps=6, total=50 * GIB, balanced=False, config=CONFIG)).close()
    return path


def test_16_2_the_figure_of_a_cap_has_the_peaks_the_model_and_the_replay(grown: Path) -> None:
    with Run(grown) as run:
        advice = advise(run)
        found = outlook.told(run, advice)
        (model,) = advice.memory
        peaks = run.sql("select peak, tokens, process from spans where kind = 'micro_batch'")
    assert found is not None
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    (cap,) = found["caps"]
    own = peaks[peaks["process"] == model.process]
    known = {(int(row.tokens), round(row.peak / GIB, 3)) for row in own.itertuples()}
    assert {tuple(one) for one in cap["dots"]} <= known
    assert max(one[1] for one in cap["dots"]) == pytest.approx(own["peak"].max() / GIB, abs=0.2)  # a place of the grid
    assert cap["seen"] == model.largest_tokens
    assert cap["capacity"] == (model.room_bytes or 0) / GIB
    assert cap["now"] == {"at": 8192, "text": "8,192"}
    best = advice.limits["actor", "update_actor"].best
    assert cap["best"] == {"at": best, "text": f"{best:,}"}
    (one,) = [each for each in advice.suggestions if each.kind == "cap"]
    after = one.what_if.number("predicted_peak_bytes")[1] / GIB
    assert cap["aim"]["peak"] == pytest.approx(after, abs=1e-3)
    assert cap["aim"]["low"] < cap["aim"]["peak"] < cap["aim"]["high"] < cap["capacity"]
    # The line is the planted one, within the usual length of its rows; its band holds most of the dots.
    at, mean, low, high = np.array(cap["line"]).T
    assert list(at) == sorted(at)
    assert at[-1] >= best
    slope = np.polyfit(at, mean, 1)[0] * GIB / 1024**2
    assert slope == pytest.approx(3.0 + 20 * 128 / 1024 / 100, rel=0.1)
    inside = [np.interp(x, at, low) - 0.6 <= y <= np.interp(x, at, high) + 0.6 for x, y in cap["dots"]]
    assert np.mean(inside) > 0.9
    assert cap["rows"][0][0] == f"{int(at[0]):,}"
    assert "Best within 2 % risk in 1,000 steps" in cap["notes"][-1]


def test_16_2_a_cap_that_counts_no_padding_isn_t_drawn_on_an_axis_that_does(tmp_path: Path) -> None:
    with planted(tmp_path / "run", Planted(steps=6, total=400 * GIB, width=4000, config=DONE)) as run:
        found = outlook.told(run, advise(run))
    assert found is not None
    (cap,) = found["caps"]
    assert (cap["now"], cap["best"], cap["aim"]) == (None, None, None)
    assert any("counts padding too" in one for one in cap["notes"])


def test_16_2_a_run_whose_memory_tells_nothing_says_why_and_has_no_figure(tmp_path: Path) -> None:
    with planted(tmp_path / "run", Planted(steps=3, peak_kind="at_least", config=DONE)) as run:
        found = outlook.told(run, advise(run))
    assert found is not None
    assert found["caps"] == []
    assert "no cap is advised" in found["remarks"][0]


def test_16_2_the_list_of_changes_ends_with_all_of_them_together(grown: Path) -> None:
    with Run(grown) as run:
        advice = advise(run)
        found, alone, risky = (
            outlook.told(run, one)
            for one in (advice, replace(advice, suggestions=advice.suggestions[:1]), replace(advice, risk=-1.0))
        )
    assert found is not None
    assert alone is not None
    assert risky is not None
    changes = found["together"]
    assert changes["title"] == "The 2 changes, by gain"
    assert [bool(one.get("sum")) for one in changes["rows"]] == [False, False, True]
    for one, line in zip(advice.suggestions, changes["rows"], strict=False):
        (key,) = one.values
        assert line["cells"][0].startswith(f"{key} → ")
        assert line["cells"][1].startswith("−")
        assert line["cells"][3] == one.confidence
    assert changes["rows"][-1]["cells"][0] == "All together"
    assert "their sum of" in changes["sentence"]
    assert alone["together"]["title"] == "The change"
    assert len(alone["together"]["rows"]) == 1
    assert "too risky" in risky["together"]["rows"][-1]["cells"][-1]
    # A pair that can't be replayed together: it says so, and there is no sum.
    (cap,) = [one for one in advice.suggestions if one.kind == "cap"]
    evened = replace(cap, values={}, advice="Even it.", what_if=replace(cap.what_if, changes={"evened": "tokens"}))
    with Run(grown) as run:
        apart = outlook.told(run, replace(advice, suggestions=(cap, evened)))
    assert apart is not None
    assert apart["together"]["sentence"] == "No two of them can be replayed together, so nothing is added up."
    assert not any(one.get("sum") for one in apart["together"]["rows"])
    (note,) = apart["together"]["notes"]
    assert note.startswith("Not taken together with the others: Even it. It can't be replayed beside the others: ")


def test_16_2_what_came_of_earlier_advice_is_told_kept_and_missed(tmp_path: Path) -> None:
    made(tmp_path / "a").close()
    made(tmp_path / "b", balanced=True, config=DONE).close()
    made(tmp_path / "c", config=DONE).close()
    for at, name in enumerate("abc", 1):
        begun(tmp_path / name, at)
    told = {}
    for name in "abc":
        with Run(tmp_path / name) as run:
            found = outlook.told(run, advise(run))
        assert found is not None
        told[name] = found["earlier"]
    assert told["a"]["rows"] == []
    assert told["a"]["sentence"].startswith("–  No earlier run beside this one")
    kept = [one["held"] for one in told["b"]["rows"]]
    assert set(kept) <= {True, None}  # noise hides what there is of time
    count = sum(one is True for one in kept)
    assert count
    assert told["b"]["sentence"].startswith(f"{count} of {count} promises held.")
    for one in told["b"]["rows"]:
        assert one["held"] is True or "Step times vary by more than what is missing" in one["about"]
    missed = [one for one in told["c"]["rows"] if one["held"] is False]
    assert missed
    assert missed[0]["cells"][:2] == ["a", "trainer.balance_batch: False → True"]
    assert missed[0]["cells"][-1] == "missed"


def test_16_2_it_is_worked_out_with_the_advice_and_no_more_often(grown: Path, monkeypatch: Any) -> None:
    asked, told = [], outlook.told

    def counted(*both: Any, **more: Any) -> Any:
        asked.append(both)
        return told(*both, **more)

    monkeypatch.setattr(outlook, "told", counted)
    looker = Looker(str(grown), looks=(), often=())
    answers = [looker.answer({"attempt": None, "whole": True, "live": live}) for live in (True, True, False)]
    assert len(asked) == 1
    assert [one["failed"] for one in answers] == [[], [], []]
    assert answers[0]["outlook"]["caps"]
    assert answers[2]["outlook"] == answers[0]["outlook"]
    verdict = Verdict(str(grown))
    verdict.outlook = answers[0]["outlook"]
    assert verdict.state()["outlook"] == answers[0]["outlook"]


@pytest.mark.usefixtures("lenient")
def test_16_2_the_advice_stands_where_what_comes_with_it_fails(grown: Path, monkeypatch: Any) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("no figure")

    monkeypatch.setattr(outlook, "told", fails)
    answer = Looker(str(grown), looks=(), often=()).answer({"attempt": None, "whole": True})
    assert answer["outlook"] is None
    assert answer["advice"]["changes"]
    assert answer["failed"] == ["outlook: ValueError: no figure"]
