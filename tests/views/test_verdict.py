"""Item 3 of the verdict: who looks for findings beside a panel, how often, and what the panel's state says then."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from probe.analysis.verdict import Change, Finding, Findings
from probe.demo.zoo.healthy import One
from probe.runs.reader import Run
from probe.views.panel import looking, static_bundle
from probe.views.panel.aside import Aside
from probe.views.panel.looking import (
    MOST,
    MOST_FOLDED,
    MOST_LETTERS,
    MOST_SQL,
    PART_ROWS,
    PART_TEXT,
    Looker,
    told,
)
from probe.views.panel.panel import Panel
from probe.views.panel.verdict import ALARMS_S, LEAST_S, SHARE, SILENT, Moment, Pace, Verdict
from tests.waiting import PATIENCE_S, until
from tests.zoo import planting

SENTENCE = (
    "NaN went into actor/pg_loss (update · micro-batch 1 · step 9 · rank 1): 5 of 8 values; "
    "1 other metric had NaN later."
)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a NaN in one sample of one micro-batch."""
    return planting.planted(tmp_path_factory, "nan", tmp_path_factory.mktemp("zoo") / "run")


# ---- how often


def test_3_a_panel_looks_at_once_and_again_when_the_run_has_ended_or_another_attempt_is_shown() -> None:
    pace = Pace()
    assert pace.next(Moment()) == (float("-inf"), True)
    pace.looked(100.0, Moment(), 0.5, whole=True)
    assert pace.next(Moment(live=False)) == (float("-inf"), True)
    assert pace.next(Moment(attempt=2)) == (float("-inf"), True)


def test_14_an_alarm_is_looked_for_at_once_when_a_process_of_a_live_run_has_ended() -> None:
    pace = Pace()
    pace.looked(100.0, Moment(), 0.5, whole=True)
    assert pace.next(Moment(ended=1)) == (float("-inf"), False)
    pace.looked(101.0, Moment(ended=1), 0.5, whole=False)
    due = pace.next(Moment(ended=1))
    assert due is not None
    assert due[0] > 101.0
    over = Moment(live=False)
    pace.looked(102.0, over, 0.5, whole=True)
    assert pace.next(over._replace(ended=2)) != (float("-inf"), False)  # of one that is over everything is known


def test_3_looking_takes_at_most_1_percent_of_a_core_and_alarms_wait_30_s_at_most() -> None:
    pace = Pace()
    pace.looked(100.0, Moment(rows=1), 0.1, whole=True)
    due = pace.next(Moment(rows=2))
    assert due == (pytest.approx(100.0 + 0.1 / SHARE), True)
    pace.looked(120.0, Moment(rows=2), 0.01, whole=False)
    assert pace.next(Moment(rows=3)) == (pytest.approx(120.0), True)  # everything: 0.1 s at 0.5 %, since 100
    pace.looked(120.0, Moment(rows=3), 4.0, whole=True)
    assert pace.next(Moment(rows=4)) == (pytest.approx(120.0 + LEAST_S), False)
    pace.looked(130.0, Moment(rows=4), 3.0, whole=False)
    assert pace.next(Moment(rows=5)) == (pytest.approx(130.0 + ALARMS_S), False)
    assert 2 * SHARE <= 0.01


def test_3_a_live_run_without_new_rows_may_hang_and_one_that_is_over_is_left_alone() -> None:
    pace = Pace()
    pace.looked(100.0, Moment(rows=1), 0.01, whole=True)
    assert pace.next(Moment(rows=1)) == (pytest.approx(100.0 + LEAST_S), False)
    pace.looked(200.0, Moment(live=False, rows=1), 0.01, whole=True)
    assert pace.next(Moment(live=False, rows=1)) is None
    assert pace.next(Moment(live=False, rows=2)) == (pytest.approx(200.0 + LEAST_S), True)


# ---- what is looked for


@pytest.mark.usefixtures("lenient")
def test_a_look_that_fails_hides_no_other_and_is_named(planted: Path) -> None:
    def works(run: Any) -> list[Finding]:
        return [Finding("alarm", "works", "It works.")]

    def fails(run: Any) -> list[Finding]:
        raise KeyError("column")

    answer = Looker(str(planted), looks=[works, fails], often=[works]).answer({"attempt": None, "whole": True})
    assert [one["sentence"] for one in answer["findings"]] == ["It works."]
    assert len(answer["failed"]) == 1
    assert "fails: KeyError: 'column'" in answer["failed"][0]
    assert answer["cpu_s"] > 0


def test_looking_for_alarms_alone_keeps_what_else_was_found(planted: Path) -> None:
    asked = []

    def alarm(run: Any) -> list[Finding]:
        asked.append("alarm")
        return [Finding("alarm", "a", f"{len(asked)}.")]

    def tuning(run: Any) -> list[Finding]:
        asked.append("tuning")
        return [Finding("tuning", "t", "T.")]

    looker = Looker(str(planted), looks=[alarm, tuning], often=[alarm])
    looker.answer({"attempt": None, "whole": False})  # the first is of all
    second = looker.answer({"attempt": None, "whole": False})
    assert asked == ["alarm", "tuning", "alarm"]
    assert [one["sentence"] for one in second["findings"]] == ["3.", "T."]


def test_what_a_page_is_told_is_plain_and_bounded() -> None:
    change = Change("Lower it.", "cap", 8192, 16384)
    long = Finding("alarm", "long", "x" * 5000, change=change)
    many = [Finding("fine", f"f{at}", "Fine.") for at in range(100)]
    made = told(Findings([*many, long]))
    assert len(made) == 1 + MOST
    assert len(made[0]["sentence"]) == MOST_LETTERS
    assert made[0]["change"] == {
        "advice": "Lower it.",
        "setting": "cap",
        "line": "cap=8192",
        "value": "8192",
        "now": "16384",
    }
    assert json.loads(json.dumps(made)) == made


def test_3_a_page_is_told_what_follows_and_the_query_within_bounds() -> None:
    after = [Finding("alarm", "failed", f"Rank {rank} failed after it.") for rank in range(1, 20)]
    query = """select * from failures
        where rank = 0"""
    cause = Finding("alarm", "failed", "Rank 0 raised.", folded=tuple(after), evidence_sql=query)
    long = Finding("alarm", "hang", "Rank 1 waits.", evidence_sql=f"select {'1, ' * MOST_SQL} 1")
    fine = Finding("fine", "peak", "Fine.", evidence_sql="select 1")
    first, second, third = told(Findings([cause, long, fine]))
    assert first["folded"] == [*(one.sentence for one in after[:MOST_FOLDED]), "And 9 more."]
    assert first["sql"] == "select * from failures\nwhere rank = 0"
    assert (first["failure"], second["failure"]) == (True, False)
    assert (second["sql"], third["sql"], second["folded"]) == ("", "", [])  # a part of a query would be wrong


@pytest.mark.usefixtures("lenient")
def test_3_a_page_is_told_the_post_mortem_of_a_run_that_has_failed(
    tmp_path: Path, planted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    failed = planting.planted(tmp_path_factory, "raises", tmp_path / "run")
    answer = Looker(str(failed)).answer({"whole": True})
    told = answer["post_mortem"]
    assert told["sentence"].startswith("Rank 1 raised ValueError in update")
    titles = [part["title"] for part in told["parts"]]
    assert "Exception" in titles
    assert all(len(part["rows"]) <= PART_ROWS and len(part["text"]) <= PART_TEXT for part in told["parts"])
    assert json.loads(json.dumps(answer)) == answer
    assert answer["findings"][0]["folded"][0].startswith("Rank 0 failed")
    with Run(failed) as run:
        assert set(run.sql(answer["findings"][0]["sql"])["rank"]) == {1}
    assert Looker(str(planted)).answer({"whole": True})["post_mortem"] is None  # it has an alarm, and ended well

    def broken(run: Run) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(looking, "post_mortem", broken)
    answer = Looker(str(failed)).answer({"whole": True})
    assert answer["post_mortem"] is None
    assert answer["failed"] == ["post_mortem: ValueError: no such thing"]
    assert answer["findings"][0]["failure"]


# ---- in a panel


def test_3_a_panel_says_the_alarm_in_its_state_snapshot_and_copy_and_no_process_stays(
    planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[dict[str, Any]] = []
    children: list[Any] = []
    begun = Aside._begun

    def seen(aside: Aside) -> Any:
        children.append(begun(aside))
        return children[-1]

    monkeypatch.setattr(Aside, "_begun", seen)  # a process that has ended is forgotten, however late we look
    with Panel(planted) as panel:
        panel.send_to(lambda head, buffers: heads.append(json.loads(json.dumps(head))))
        until(lambda: [head for head in heads if (head.get("state") or {}).get("verdict", {}).get("findings")])
        assert children
        assert os.getpid() not in [child.pid for child in children]
        worst = panel.state["verdict"]["findings"][0]
        assert (worst["kind"], worst["sentence"], worst["where"]["step"]) == ("alarm", SENTENCE, 9)
        assert panel.config()["topics"][worst["topic"]] == "metrics"
        head, _ = panel.pump.snapshot()
        assert head["state"]["verdict"]["findings"][0]["sentence"] == SENTENCE
        assert f"▲ Alarm: {SENTENCE}" in " ".join(panel._copy()["text/plain"].split())
        # Of a run that has ended nothing is kept in memory.
        until(lambda: panel._verdict._aside.process, lambda process: process is None)
    for child in children:
        child.wait(PATIENCE_S)
    assert heads[-1]["state"].get("live") is False


def test_3_a_healthy_run_has_no_alarm_and_all_was_looked_for(tmp_path: Path) -> None:
    directory = One(1.0, 3).run(tmp_path / "run")
    with Panel(directory) as panel:
        panel.send_to(lambda head, buffers: None)
        told_now = until(lambda: panel.state["verdict"], lambda told: told["findings"] is not None)
        assert told_now["whole"]
        assert told_now["findings"]
        assert not [one for one in told_now["findings"] if one["kind"] == "alarm"]


# ---- when it can't be told


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(3)",
        "print('no json')",
        "print('{}')",
        "import sys; sys.stdin.readline(); print(flush=True)",
        "import os, time; os.close(1); time.sleep(600)",
    ],
    ids=["ends", "says nonsense", "says too little", "says nothing", "says no more and stays"],
)
def test_3_a_verdict_that_fails_says_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr("probe.views.panel.verdict.LEAST_S", 0.01)
    monkeypatch.setattr("probe.views.panel.aside.END_S", 0.5)
    verdict = Verdict(str(tmp_path), [sys.executable, "-c", code])
    with caplog.at_level(logging.WARNING, "probe.views.panel"):
        verdict.start()
        verdict._thread.join(PATIENCE_S)
        assert not verdict._thread.is_alive()  # after a few tries it gives up
        verdict.stop()
    assert verdict.told == SILENT
    assert len(caplog.records) == 1
    assert verdict._aside.process is None


def test_3_closing_waits_for_no_look(tmp_path: Path) -> None:
    verdict = Verdict(str(tmp_path), [sys.executable, "-c", "import time; time.sleep(600)"])
    verdict.start()
    process = until(lambda: verdict._aside.process, lambda begun: begun is not None)
    verdict.stop()
    assert process.wait(PATIENCE_S) != 0
    assert verdict.told == SILENT


# ---- the copy


def test_the_copy_says_the_worst_finding_its_change_and_how_many_more() -> None:
    change = {"advice": "Pack <b>them</b>.", "line": "packed=True"}
    findings = [{"kind": "tuning", "sentence": "Padding fills 30 %.", "change": change}] * 3
    overview = static_bundle.Overview("run", "facts", "hint", [], findings=findings)
    lines = static_bundle.text(overview).splitlines()
    assert lines[2:5] == ["◐ Worth a change: Padding fills 30 %.", "→ Pack <b>them</b>. packed=True", "2 more."]
    assert "Pack &lt;b&gt;them&lt;/b&gt;." in static_bundle.svg(overview)
    assert static_bundle.verdict(static_bundle.Overview("run", "facts", "hint", [])) == []
