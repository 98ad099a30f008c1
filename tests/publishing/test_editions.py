"""What the publisher says of a run, edition after edition."""

from __future__ import annotations

import json
import math
import os
import platform
import socket
import subprocess
import time
from pathlib import Path

import pytest

from probe.figures import panel as picture
from probe.figures import theme
from probe.hooks import Scope
from probe.publishing import editions, pictures, summary
from probe.publishing.editions import Editions
from probe.publishing.messages import Arranged, Described, Done, Numbers, Shown, Tagged, Trouble
from probe.publishing.system import System
from probe.records import Incident, Process, Reduction
from probe.runs.lines import encode
from probe.runs.now_file import NowFile
from probe.runs.reader import Run
from probe.session import start
from probe.tracking.media import Figure, Table, medium_of
from tests.live.live_run import append
from tests.publishing.publishing_rows import cut, ended, run_of, took
from tests.sample_run import WALL_NS, clock, open_run, process, sample_rows
from tests.waiting import until


class Heard(list):
    """What was said."""

    def of(self, kind):
        return [one for one in self if isinstance(one, kind)]

    def media(self):
        return {one.name: medium_of(one.medium) for one in self.of(Shown)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with open_run(tmp_path_factory.mktemp("run"), sample_rows(2, 4)) as opened:
        yield opened


@pytest.fixture(scope="module")
def heard(run):
    heard = Heard()
    made = Editions(run, heard.append)
    made.numbers()
    made.pictures()
    return heard


@pytest.fixture
def no_panels(monkeypatch) -> None:
    """Editions without figures and tables: to draw all of them takes seconds."""
    monkeypatch.setattr(pictures, "panels", list)


def test_every_panel_is_a_figure_and_a_table(heard) -> None:
    media = heard.media()
    assert heard.of(Trouble) == []
    for name, panel in pictures.panels():
        figure, table = media[name], media[f"{name}_table"]
        assert isinstance(figure, Figure)
        assert json.loads(figure.spec)["layout"]["title"]["text"] == panel.title
        assert isinstance(table, Table)
        assert table.columns == panel.columns
    assert {name.split("/")[1] for name, _ in pictures.panels()} == {
        "overview",
        "memory",
        "token_balance",
        "padding_tax",
        "reductions",
    }


def test_every_step_has_its_numbers_and_lengths_once(heard) -> None:
    assert [one.step for one in heard.of(Numbers)] == [0, 1, 2, 3]
    for one in heard.of(Numbers):
        assert {"probe/across_ranks/step_time_s_largest", "probe/across_ranks/rank_imbalance_ratio"} <= set(one.values)
    wanted = "probe/token_balance/sequence_tokens/"
    lengths = [(one.name, one.step) for one in heard.of(Shown) if one.name.startswith(wanted)]
    assert len(lengths) == len(set(lengths)) == 2 * 4  # phases, steps
    done = heard.of(Done)
    assert (done[-1].final, done[-1].steps) == (False, [(0, 3)])
    assert set().union(*(one.names for one in done)) == set().union(*(one.values for one in heard.of(Numbers)))
    assert sum(len(one.names) for one in done) == len(set().union(*(one.names for one in done)))  # each once


def test_charts_are_of_what_is_logged(heard) -> None:
    (arranged,) = heard.of(Arranged)
    logged = {key for one in heard.of(Numbers) for key in one.values} | {
        f"probe/cost/{name}_ms" for name in ("hooks", "writer_cpu", "overhead", "step")
    }
    for category, charts in arranged.charts.items():
        for title, chart in charts.items():
            assert set(chart["keys"]) <= logged, (category, title)
            assert chart["kind"] == "line" or len(chart["keys"]) == 3
    assert arranged.charts["Overview"]["Time of a step across ranks (s)"]["keys"] == [
        f"probe/across_ranks/step_time_s_{word}" for word in ("smallest", "mean", "largest")
    ]
    assert "Time of a phase across ranks (s): update_actor" in arranged.charts["Overview"]


def test_b_charts_say_whose_numbers_they_show(tmp_path: Path, no_panels) -> None:
    with start("b", run_dir=tmp_path / "run", name="driver") as session, session.step(0):
        session.log({"loss": 1.0}, 0)
    with Run(tmp_path / "run") as run:
        heard = Heard()
        Editions(run, heard.append, host=platform.node(), pid=os.getpid()).pictures()
        (arranged,) = heard.of(Arranged)
    titles = [title for board in arranged.charts.values() for title in board]
    assert "What probe costs, driver (ms)" in titles
    assert not [title for title in titles if "rank 0" in title or "{" in title]


def test_b_of_several_ranks_the_charts_are_those_of_the_one_that_tracks(run, no_panels) -> None:
    for rank in (0, 1):
        heard = Heard()
        Editions(run, heard.append, host="node-0", pid=100 + rank).pictures()
        (arranged,) = heard.of(Arranged)
        assert f"What probe costs, rank {rank} (ms)" in arranged.charts["Overview"]


@pytest.mark.slow
def test_the_same_isn_t_said_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = pictures.panels()[::4]  # to draw all of them three times takes long
    monkeypatch.setattr(pictures, "panels", lambda: some)
    heard = Heard()
    run = open_run(tmp_path, sample_rows(1, 4))
    made = Editions(run, heard.append)
    made.numbers()
    made.pictures()
    before = len(heard)
    made.numbers()
    made.pictures()
    made.numbers(final=True)
    again = Heard(heard[before:])
    assert again.of(Numbers) == again.of(Described) == again.of(Tagged) == again.of(Arranged) == again.of(Trouble) == []
    assert len(again.of(Done)) == 1
    # A sum of floats may come out anew in its last digit, as the database adds in the order that it likes.
    assert len(again.of(Shown)) < len(heard.of(Shown)) / 4
    made.pictures(final=True)
    assert len(heard.of(Described)) == 2  # "So far" has become "The whole run"
    assert isinstance(heard[-1], Done)
    assert (heard[-1].final, heard[-1].steps) == (True, [(0, 3)])


def test_the_next_process_goes_on_where_the_last_one_was(run) -> None:
    heard = Heard()
    made = Editions(run, heard.append, said=[[0, 1], [3, 3]])
    made.numbers()
    assert [one.step for one in heard.of(Numbers)] == [2]
    (done,) = heard.of(Done)
    assert done == Done(final=False, steps=[(0, 3)], names=sorted(heard.of(Numbers)[0].values))


def test_charts_of_numbers_that_were_said_before_stay(run, monkeypatch) -> None:
    """Also where nothing is new: after a restart of the training, or in an edition of a publisher that is left alone.
    What is arranged last is what the backends show.
    """
    monkeypatch.setattr(Editions, "_say_panel", lambda *_: None)
    first, then = Heard(), Heard()
    before = Editions(run, first.append)
    before.numbers()
    before.pictures()
    done = first.of(Done)
    names = {name for one in done for name in one.names}
    after = Editions(run, then.append, said=done[-1].steps, names=names)
    after.numbers(final=True)
    after.pictures(final=True)
    assert then.of(Numbers) == []
    assert then.of(Arranged) == first.of(Arranged)
    assert {name for one in then.of(Done) for name in one.names} == names  # for the next one


def test_new_rows_make_new_numbers(tmp_path: Path) -> None:
    heard = Heard()
    with run_of(tmp_path, {rank: [took(rank, 0, 1.0), *ended(rank, 0, 1)] for rank in range(2)}) as run:
        made = Editions(run, heard.append)
        made.numbers()
        with (tmp_path / "rank-00000.jsonl").open("ab") as file:
            file.writelines(encode(row) for row in [took(0, 1, 2.0), *ended(0, 1, 2)])
        assert not made.settled()  # rank 1 is still at it
        made.numbers()
        assert [one.step for one in heard.of(Numbers)] == [0]
        made.numbers(final=True)
        assert [one.step for one in heard.of(Numbers)] == [0, 1]
        assert heard.of(Numbers)[-1].values["probe/across_ranks/step_time_s_largest"] == 2.0


@pytest.mark.slow
def test_a_long_run_is_caught_up_with_in_pieces(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(editions, "STEPS_AT_ONCE", 3)
    heard = Heard()
    with run_of(
        tmp_path, {0: [row for step in range(8) for row in (cut(0, step, [4]), *ended(0, step, step + 1))]}
    ) as run:
        Editions(run, heard.append).numbers()
    assert [one.step for one in heard.of(Numbers)] == list(range(8))
    system = [one.step for one in heard.of(Numbers) if "system/cpu_utilization_percentage" in one.values]
    assert system == [7]  # what the machine does now is told of the newest step alone


@pytest.mark.slow
@pytest.mark.usefixtures("lenient")
def test_one_panel_that_fails_takes_no_other_with_it(run, monkeypatch) -> None:
    some = pictures.panels()[:3]
    names = [name for name, _ in some]
    real = pictures.draw

    def draw(name, panel, of):
        if name == names[0]:
            raise ValueError("this panel is broken")
        return real(name, panel, of)

    monkeypatch.setattr(pictures, "draw", draw)
    monkeypatch.setattr(pictures, "panels", lambda: some)
    heard = Heard()
    made = Editions(run, heard.append)
    made.pictures()
    made.pictures()
    (trouble,) = heard.of(Trouble)  # told once
    assert trouble.what == names[0]
    assert "this panel is broken" in trouble.message
    assert "Traceback" in trouble.traceback
    assert set(names[1:]) <= set(heard.media())


def test_nobody_listens_any_more(run) -> None:
    def gone(message):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Editions(run, gone).pictures()


@pytest.mark.slow
def test_an_empty_run_says_so_in_words(tmp_path: Path) -> None:
    heard = Heard()
    with run_of(tmp_path, {0: []}) as run:
        made = Editions(run, heard.append)
        made.numbers(final=True)
        made.pictures(final=True)
    assert heard.of(Trouble) == []
    assert heard.of(Shown) == heard.of(Numbers) == []
    (described,) = heard.of(Described)
    assert "no step is complete" in described.markdown


# ------------------------------------------------------------------------------------------------- words and labels


def test_the_summary_says_what_was_found(run) -> None:
    said = summary.markdown(run, final=True)
    assert said.startswith("**probe found ")
    assert "The whole run, up to step 3; 2 ranks." in said.splitlines()[0]
    assert "over the cap" in said  # the story's loose micro-batch
    assert "| Rank imbalance | " in said
    assert said.index("### Alarms") < said.index("### In order")


def test_a_rank_that_wrote_nothing_is_named(tmp_path: Path) -> None:
    with run_of(tmp_path, {0: ended(0, 0, 1)}, world_size=3) as run:
        assert "3 ranks, of which nothing came from 1, 2" in summary.markdown(run, final=False)


def test_what_a_user_wrote_doesn_t_break_the_summary(tmp_path: Path) -> None:
    trouble = Incident(kind="backend", where="a|b", message="line one\nline two | three", count=2)
    with run_of(tmp_path, {0: [trouble, *ended(0, 0, 1)]}) as run:
        said = summary.markdown(run, final=True)
    assert not any(line.startswith("line two") for line in said.splitlines())


def test_3_the_end_of_the_run_is_a_label_that_is_renewed(tmp_path: Path) -> None:
    heard = Heard()
    with subprocess.Popen(["/bin/true"]) as gone:
        pass
    with run_of(tmp_path, {0: ended(0, 0, 3)}) as run:
        told = {"process": "rank-00000", "rank": 0, "host": socket.gethostname(), "wall_ns": time.time_ns()}
        file = NowFile(tmp_path / "rank-00000.now", Process(pid=os.getpid(), **told))
        scope = Scope("step", "step", file.at, step=3)
        file.entered(scope, file.thread, time.monotonic_ns())
        made = Editions(run, heard.append)
        made._verdict(whole=True)
        file.tell(Process(pid=gone.pid, **told))
        made._verdict(whole=True)
        file.close()
    assert [one.tags["probe.end"] for one in heard.of(Tagged)] == ["none", "killed"]


def test_3_the_verdict_is_said_in_labels_and_renewed_when_it_changes(tmp_path: Path, no_panels) -> None:
    heard = Heard()
    with run_of(tmp_path, {0: ended(0, 0, 3)}) as run:
        made = Editions(run, heard.append)
        made.pictures()
        (before,) = [one.tags for one in heard.of(Tagged) if "probe.verdict" in one.tags]
        assert before["probe.verdict"] != "alarm"
        stamp = {"rank": 0, "step": 2, "time_ns": clock(0) + 10**9}
        nan = {"key": "pg_loss", "reducer": "mean", "chosen_by": "name", "value": math.nan}
        append(tmp_path, [Reduction(count=4, nan_count=1, nan_at=2, **nan, **stamp)])
        heard.clear()

        def asked() -> list:
            made.verdict()  # it looks when it is due
            return heard.of(Tagged)

        until(asked)
    (tagged,) = heard.of(Tagged)
    assert (tagged.tags["probe.verdict"], tagged.tags["probe.finding"]) == ("alarm", "nan")
    assert tagged.tags["probe.sentence"].startswith("NaN went into pg_loss")
    assert "NaN went into pg_loss" in heard.of(Described)[0].markdown
    assert heard.of(Trouble) == []


def test_labels_are_what_is_known(run, tmp_path: Path) -> None:
    tags = summary.tags(run, tmp_path)
    assert tags["project"] == "arithmetic"
    assert tags["experiment"] == "grpo-small"
    assert tags["world_size"] == "2"
    assert tags["device"] == "Made-up 80 GB"
    assert tags["torch_version"] == "2.13.0"
    assert "git_commit" not in tags  # no repository there
    assert all(tags.values())


def test_the_commit_is_the_one_checked_out(tmp_path: Path) -> None:
    import shutil
    import subprocess

    if shutil.which("git") is None:
        pytest.skip("no git")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert summary.commit(tmp_path) == ""
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert summary.commit(tmp_path) == head
    assert summary.commit(tmp_path / "nowhere") == ""


# ------------------------------------------------------------------------------------------------------ the machine


def test_accelerators_are_called_as_mlflow_calls_them(tmp_path: Path) -> None:
    gib = 1024**3
    with open_run(tmp_path, sample_rows(1, 1)) as run:
        found = System("node-0").numbers(run)
    used = int(18 * gib * 1.12 + 2 * gib)
    assert found["system/gpu_0_memory_usage_megabytes"] == used / 1e6
    assert found["system/gpu_0_memory_usage_percentage"] == pytest.approx(100 * used / (80 * gib))
    assert 0 <= found["system/cpu_utilization_percentage"] <= 100
    assert 0 < found["system/system_memory_usage_percentage"] <= 100
    assert found["system/system_memory_usage_megabytes"] > 1


def test_mlflow_s_own_names() -> None:
    monitors = pytest.importorskip("mlflow.system_metrics.metrics.cpu_monitor")
    monitor = monitors.CPUMonitor()
    monitor.collect_metrics()
    ours = {key.removeprefix("system/") for key in System("here").numbers(_Nothing())}
    assert set(monitor.aggregate_metrics()) == ours


class _Nothing:
    """A run without rows."""

    def sql(self, query, parameters=None):
        import pandas as pd

        return pd.DataFrame()


def test_other_hosts_have_their_names_and_nothing_is_guessed(tmp_path: Path) -> None:
    rows = sample_rows(3, 1)
    hosts = {0: "node-0", 1: "node 1", 2: "node 1"}
    told = {
        rank: Process(rank=rank, time_ns=clock(rank), wall_ns=WALL_NS, host=hosts[rank], device="cuda:0", world_size=3)
        for rank in rows
    }
    with open_run(tmp_path / "shared", rows, processes=told) as run:
        found = System("node-0").numbers(run)
        # Two ranks of node 1 call their device cuda:0; whether that's one device, nobody knows.
        assert {key for key in found if "gpu" in key} == {
            "system/gpu_0_memory_usage_megabytes",
            "system/gpu_0_memory_usage_percentage",
        }
        assert "system/node-0/gpu_0_memory_usage_megabytes" in System("elsewhere").numbers(run)
    with open_run(tmp_path / "cpu", sample_rows(1, 1, accelerator=False)) as run:
        assert not [key for key in System(platform.node()).numbers(run) if "gpu" in key]


def test_a_sample_is_told_once(run) -> None:
    system = System("node-0")
    first, second = system.numbers(run), system.numbers(run)
    assert not [key for key in second if "gpu" in key]
    assert set(second) <= {*first}


@pytest.mark.slow
def test_nothing_to_draw_is_nothing_said(tmp_path: Path) -> None:
    with run_of(tmp_path, {0: ended(0, 0, 1)}) as run:
        for name, panel in pictures.panels():
            made = pictures.draw(name, panel, run)
            assert (name in made) is (theme.why(picture.draw(panel, run)) is None)
        assert isinstance(run, Run)
    assert process(0).rank == 0
