"""Item 3 of the verdict in ``probe tail`` and ``probe doctor``: what is wrong is said first, also of a live run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from probe.analysis.verdict import Change, Finding, Findings
from probe.cli import main
from probe.views.terminal.following import Following
from probe.views.terminal.verdict import ALL_IS_WELL, LOOKING, NO_STEP, Verdict, verdict_lines
from probe.views.terminal.view import view
from tests.sample_run import sample_rows, write_run
from tests.waiting import until
from tests.zoo.planting import planted

NASTY = "\x1b[2J\x1b]0;owned\x07"

#: A rank that trains until it is killed, in the phase of its last step.
RANK = """
import sys, time
import probe
from probe.testing import FakeDevice
light = {"recorders": ["memory"], "device": FakeDevice()}  # which needn't import torch
with probe.start("p", run_dir=sys.argv[1], rank=0, world_size=1, **light) as session:
    for step in range(31):
        with session.step(step), probe.phase("update"):
            if step == 30:
                print("in the last step", flush=True)
                time.sleep(3600)
            time.sleep(0.02)
        if step == 4:
            print("five steps", flush=True)
"""

#: One that an exception ends, whose message steers a terminal.
RAISES = """
import sys
import probe
from probe.testing import FakeDevice
light = {"recorders": ["memory"], "device": FakeDevice()}  # which needn't import torch
with probe.start("p", run_dir=sys.argv[1], rank=0, world_size=1, **light) as session:
    for step in range(4):
        with session.step(step), probe.phase("update"):
            if step == 3:
                raise ValueError(sys.argv[2])
"""


@pytest.fixture(scope="module")
def nan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted(tmp_path_factory, "nan", tmp_path_factory.mktemp("nan") / "run")


def picture(run: Following, verdict: Verdict) -> str:
    console = Console(width=110, record=True, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    console.print(view(run, verdict=verdict))
    console.file.close()
    return console.export_text()


def test_3_the_picture_begins_with_the_worst_finding(nan: Path) -> None:
    run, verdict = Following(str(nan)), Verdict(str(nan))
    run.look()
    assert picture(run, verdict).splitlines()[0].strip() == LOOKING
    verdict.look()
    first = picture(run, verdict).splitlines()[0]
    assert first.startswith("▲ Alarm: NaN went into actor/pg_loss (update · micro-batch 1 · step 9 · rank 1)")


def test_3_lines_begin_with_it_and_json_has_the_whole_finding(nan: Path, capsys) -> None:
    assert main(["tail", str(nan), "--once"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("▲ Alarm: NaN went into actor/pg_loss")
    assert main(["tail", str(nan), "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    alarms = [one for one in told if one["type"] == "finding"]
    assert told[1] == alarms[0]
    assert len(alarms) == len({json.dumps(one, sort_keys=True) for one in alarms})  # each once
    assert (alarms[0]["name"], alarms[0]["where"]["rank"], alarms[0]["kind"]) == ("nan", 1, "alarm")
    assert "evidence_sql" in alarms[0]
    assert main(["tail", str(nan), "--json", "--new"]) == 0
    assert [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()] == ["run", "run"]


def test_3_what_a_sentence_quotes_steers_no_terminal(tmp_path: Path, capsys) -> None:
    command = [sys.executable, "-c", RAISES, str(tmp_path / "run"), NASTY]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
    for options in (["tail", "--once"], ["tail"], ["doctor"]):
        main([options[0], str(tmp_path / "run"), *options[1:]])
        out = capsys.readouterr().out
        assert "raised ValueError" in out
        assert "\x1b" not in out
        assert "\x07" not in out
    run, verdict = Following(str(tmp_path / "run")), Verdict(str(tmp_path / "run"))
    until(run.look, lambda _: run.over)
    verdict.look()
    told = picture(run, verdict)
    assert told.startswith("▲ Failed: Rank 0 raised ValueError in update")
    assert "\\x1b[2J" in told


@pytest.mark.slow
@pytest.mark.multiprocess
def test_3_an_alarm_is_a_line_as_soon_as_it_is_found(tmp_path: Path) -> None:
    rank = subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    try:
        assert rank.stdout.readline() == "five steps\n"
        command = [sys.executable, "-m", "probe", "tail", str(tmp_path / "run"), "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
            for line in tail.stdout:
                told = json.loads(line)
                assert told["type"] != "finding"
                if told["type"] == "step" and told["step"] > 20:
                    break
            assert rank.stdout.readline() == "in the last step\n"
            rank.send_signal(signal.SIGKILL)
            rank.wait()
            told = [json.loads(line) for line in tail.stdout]
        assert tail.wait() == 1
    finally:
        rank.kill()
        rank.wait()
        rank.stdout.close()
    (alarm,) = [one for one in told if one["type"] == "finding"]
    assert (alarm["name"], alarm["where"]["rank"], alarm["where"]["phase"]) == ("killed", 0, "update")
    assert told[-1]["state"] == "killed"


def test_3_no_judgement_without_enough_data() -> None:
    fine = Findings([Finding("fine", "peak", "The largest peak was 9.2 GiB.")])
    assert verdict_lines(None, "r", whole=False, begun=True) == [(LOOKING, "dim")]
    assert verdict_lines(fine, "r", whole=False, begun=True) == [(LOOKING, "dim")]
    assert verdict_lines(fine, "r", whole=True, begun=False) == [(NO_STEP, "dim")]
    assert verdict_lines(fine, "r", whole=True, begun=True) == [(f"✓ {ALL_IS_WELL}", "green")]


def test_3_the_change_and_how_many_more_follow() -> None:
    cap = Change("Lower the cap.", "max_token_len", 8192)
    found = Findings([Finding("tuning", "padding", "Padding fills 30 %."), Finding("alarm", "a", "It is.", change=cap)])
    assert [text for text, _ in verdict_lines(found, "runs/first", whole=True, begun=True)] == [
        "▲ Alarm: It is.",
        "  → Lower the cap.  max_token_len=8192",
        "  and 1 more: probe findings runs/first",
    ]


def test_3_a_run_that_cannot_be_read_for_findings_is_followed_all_the_same(tmp_path: Path) -> None:
    verdict = Verdict(str(tmp_path / "nowhere"))
    verdict.look()
    assert (verdict.found, verdict.news()) == (None, [])


def test_3_doctor_says_the_alarms_first_and_is_not_content(nan: Path, capsys) -> None:
    assert main(["doctor", str(nan)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("error")
    assert "NaN went into actor/pg_loss" in lines[0]
    assert "no errors" not in lines[-1]
    assert main(["doctor", str(nan), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert (told["checks"][0]["name"], told["checks"][0]["level"]) == ("finding: nan", "error")


def test_3_doctor_without_an_alarm_says_so(tmp_path: Path, capsys) -> None:
    quiet = {rank: [row for row in rows if type(row).__name__ == "Memory"] for rank, rows in sample_rows(2, 3).items()}
    path = write_run(tmp_path / "run", quiet)
    main(["doctor", str(path)])
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("ok")
    assert "run, findings: no alarm" in first
