"""B of "true in every view": who writes. A process without a rank is none of the ranks, in no table and in no view."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from probe import dashboards
from probe.analysis import memory, steps, token_balance
from probe.core.seqlen_balancing import rearrange_micro_batches
from probe.dashboards import frames, quantities
from probe.errors import InputError
from probe.exporting.perfetto import export_perfetto
from probe.hooks import phase
from probe.live.feed import Feed
from probe.opened import Run
from probe.runs.compaction import compact
from probe.runs.layout import Segment, place_of_name
from probe.runs.processes import rank_and_size
from probe.session import current_session, start
from tests.tracking.test_tracking_notes import custom_scalars

TIMEOUT_S = 300


def wait_until(met: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    end = time.monotonic() + timeout_s
    while not met():
        assert time.monotonic() < end
        time.sleep(0.02)


def python(code: str, **environ: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": os.getcwd(), **environ}
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def member(directory: Path, options: str = "") -> str:
    """A process of the job, which has recorded one step and waits to be told to end."""
    return f"""if True:
        import sys, time
        from probe.session import start
        from probe.hooks import phase
        from probe.testing import FakeDevice
        light = {{"recorders": ["memory"], "device": FakeDevice()}}  # which needn't import torch
        session = start("b", run_dir={str(directory)!r}, **light{options})
        with session.step(0), phase("update"):
            time.sleep(0.01)
        session.flush()
        print("on", flush=True)
        sys.stdin.readline()
        session.close()
    """


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver and two ranks of one job, as three processes. Nobody changes it."""
    directory = tmp_path_factory.mktemp("job") / "run"
    processes = [
        python(member(directory, ", role='driver'")),
        *(python(member(directory), RANK=str(rank), WORLD_SIZE="2") for rank in range(2)),
    ]
    for one in processes:
        assert one.stdout is not None
        assert one.stdout.readline() == b"on\n"
    for one in processes:
        one.communicate(b"\n", timeout=TIMEOUT_S)
    return directory


def test_b_a_driver_is_none_of_the_ranks(job: Path) -> None:
    with Run(job) as run:
        assert (run.ranks, run.missing_ranks, run.attempts) == ([0, 1], [], [1])
        assert run.written_by == "2 ranks and 1 other process"
        known = run.processes.set_index("process")
        assert sorted(known.index) == ["driver", "rank-00000", "rank-00001"]
        assert known["role"]["driver"] == "driver"
        assert known["rank"].isna().to_dict() == {"driver": True, "rank-00000": False, "rank-00001": False}
        shown = run.sql("select distinct who(rank, process) as who from memory order by who")["who"]
        assert shown.tolist() == ["driver", "rank 0", "rank 1"]
        assert set(steps.timeline(run, 0)["who"]) == {"driver", "rank 0", "rank 1"}
        assert set(memory.ranks(run)["label"].str.removesuffix(" (largest peak)")) == {"driver", "rank 0", "rank 1"}
        lanes = dashboards.panel("step_timeline").frame(run)["who"]
        assert set(lanes) == {"driver", "rank 0", "rank 1"}
        (one,) = steps.times(run).to_dict("records")
        assert one["processes"] == 3


def test_b_live_tables_and_a_trace_show_a_driver_by_its_name(job: Path, tmp_path: Path) -> None:
    feed = Feed(job)
    feed.open()
    for table in ("spans", "memory", "scalars"):
        columns = feed.tables[table].columns()
        shown = {feed.words.texts[code] for code in columns["who"].tolist()}
        assert shown == {"driver", "rank 0", "rank 1"}
    assert export_perfetto(job, tmp_path / "trace").ranks == 3
    assert b"driver: " in (tmp_path / "trace").read_bytes()


def test_b_a_driver_says_nothing_about_imbalance(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks with equal tokens and a driver that cuts all of them: the ranks are even."""
    monkeypatch.setenv("PROBE_ATTEMPT", "1")

    def cut(tokens: int) -> None:
        with current_session().step(0), phase("update"):  # type: ignore[union-attr]
            mask = torch.ones(tokens // 8, 8, dtype=torch.int64)
            batch = TensorDict({"input_ids": mask, "attention_mask": mask}, batch_size=[tokens // 8])
            rearrange_micro_batches(batch, max_token_len=64)

    for rank, tokens in ((0, 64), (1, 64), (None, 128)):
        with start("b", run_dir=directory, rank=rank, world_size=2, name="driver"):
            cut(tokens)
    with Run(directory) as run:
        (even,) = token_balance.imbalance(run).to_dict("records")
        assert even["rank_imbalance_ratio"] == 1
        heat = token_balance.heat(run)
        assert heat.groupby("who")["tokens"].sum().to_dict() == {"rank 0": 64, "rank 1": 64, "driver": 128}


@pytest.mark.parametrize("compacted", [False, True])
def test_b_a_rank_that_is_known_late_names_earlier_rows(
    directory: Path, monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    session = start("b", run_dir=directory, name="worker")
    with session.step(0), phase("update"):
        pass
    session.flush()
    feed = Feed(directory)
    feed.open()
    assert set(feed.tables["spans"].columns()["rank"]) == {-1}
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    wait_until(lambda: session.rank == 3, TIMEOUT_S)
    with session.step(1):
        pass
    session.flush()
    feed.update()
    assert feed.rebuilt == 1
    assert set(feed.tables["spans"].columns()["rank"]) == {3}
    session.close()
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    if compacted:
        with start("b", run_dir=directory, name="another") as other, other.step(0):
            pass
        assert compact(directory, force=True).rows
    with Run(directory) as run:
        assert run.ranks == [3]
        (one,) = run.processes[run.processes["process"] == "worker"].to_dict("records")
        assert (one["rank"], one["world_size"], one["name"], one["process"]) == (3, 8, "worker", "worker")
        for table in ("memory", "calls", "scalars"):
            frame = run.table(table)
            assert set(frame[frame["process"] == "worker"]["rank"]) == {3}
        missed = run.sql("select * from memory where process = 'worker' and rank is distinct from 3")
        assert missed.empty
        assert {row.rank for row in run.new_rows() if row.step == 1} == {3}


def test_b_a_late_rank_that_somebody_has_is_an_incident(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = python(member(directory, ", rank=3, world_size=8"))
    assert other.stdout is not None
    assert other.stdout.readline() == b"on\n"
    session = start("b", run_dir=directory, name="worker")
    monkeypatch.setenv("RANK", "3")
    wait_until(lambda: session.rank == 3, TIMEOUT_S)
    session.close()
    other.communicate(b"\n", timeout=TIMEOUT_S)
    with Run(directory) as run:
        (told,) = run.incidents["message"]
        assert told.startswith(f"process {other.pid} on ")
        assert "records as rank 3 of this attempt, too" in told


def test_b_a_process_group_tells_the_rank_late(directory: Path, tmp_path: Path) -> None:
    session = start("b", run_dir=directory)
    assert session.rank is None
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        wait_until(lambda: session.rank == 0, TIMEOUT_S)
    finally:
        torch.distributed.destroy_process_group()
        session.close()
    with Run(directory) as run:
        assert run.ranks == [0]


def test_b_a_lone_process_goes_by_its_name_and_tracks(directory: Path) -> None:
    with start("b", run_dir=directory, track="file", name="my training") as session:
        assert session.tracking is not None
        with session.step(0):
            session.log({"loss": 1.0}, 0)
        assert repr(session) == f"Session({str(directory)!r}, my-training, open)"
    with Run(directory) as run:
        assert (run.ranks, run.missing_ranks, run.written_by) == ([], [], "1 process")
        assert run.processes["name"].tolist() == ["my training"]
    assert (directory / "metrics.jsonl").exists()


@pytest.mark.thorough  # test_editions.py has the titles, test_published_backends.py TensorBoard's layout
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_b_the_charts_of_a_backend_say_who_tracks(directory: Path) -> None:
    with start("b", run_dir=directory, track="tensorboard", name="my training", publish=True) as session:
        with session.step(0):
            session.log({"loss": 1.0}, 0)
        assert session.tracking is not None
        place = session.tracking.locations["tensorboard"]
    layout, _ = custom_scalars(place)
    titles = [chart["title"] for category in layout["category"] for chart in category["chart"]]
    assert "What probe costs, my-training (ms)" in titles
    assert not [title for title in titles if "rank 0" in title]


def test_b_of_the_ranks_only_rank_0_tracks(directory: Path) -> None:
    with start("b", run_dir=directory, track="file", rank=1, world_size=2) as session:
        assert session.tracking is None
    with start("b", run_dir=directory, name="driver") as session:
        assert session.tracking is None  # nobody gave it anything


def test_b_files_are_named_by_process_and_those_of_names_by_number(directory: Path) -> None:
    one = python(member(directory, ", name='rollout'"))
    two = python(member(directory, ", name='rollout'"))
    for process in (one, two):
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
    assert sorted(path.name for path in directory.glob("*.jsonl")) == [
        "process-rollout-2.jsonl",
        "process-rollout.jsonl",
    ]
    for process in (one, two):
        process.communicate(b"\n", timeout=TIMEOUT_S)
    with Run(directory) as run:
        assert run.attempts == [1]
        assert sorted(run.processes["process"]) == ["rollout", "rollout-2"]
        assert run.incidents.empty
    assert (directory / "parts" / Segment("rollout-2", 0).part("memory")).exists()


def test_b_a_name_never_stands_for_a_rank_or_another_file() -> None:
    assert place_of_name("rank-00000") == "rank_00000"
    for name in ("../x", "a/b", "metrics", "run", "", "  ", "rank0", "é" * 200):
        segment = Segment(place_of_name(name), 0)
        assert segment.rank is None
        assert segment.name.startswith("process-")
        assert "/" not in segment.name
        assert len(segment.name) < 100


def test_b_a_new_launch_of_a_name_is_another_attempt(directory: Path) -> None:
    for _ in range(2):
        with start("b", run_dir=directory, name="notebook") as session, session.step(0):
            pass
    with Run(directory) as run:
        assert run.attempts == [1, 2]
        assert run.sql("select count(*) as n from scalars where step = 0 group by key limit 1")["n"][0] == 1


@pytest.mark.parametrize(("name", "role"), [("", None), (None, " ")])
def test_b_a_name_is_a_text(directory: Path, name: str | None, role: str | None) -> None:
    with pytest.raises(InputError, match="expected a text"):
        start("b", run_dir=directory, name=name, role=role)
    assert current_session() is None


def test_b_a_rank_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match=r"RANK: got 'x' in the environment"):
        rank_and_size({"RANK": "x"})


# ------------------------------------------------------------------------------------------------------------ forks


def roll_out() -> None:
    with phase("generate"):
        time.sleep(0.001)


def test_b_a_forked_child_has_a_session_of_its_own(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")  # which the child inherits, and isn't
    with start("b", run_dir=directory) as session:
        with session.step(4), phase("update"):
            child = multiprocessing.get_context("fork").Process(target=roll_out, name="sampler")
            child.start()
            child.join(TIMEOUT_S)
            assert child.exitcode == 0
        assert not session.closed
    with Run(directory) as run:
        assert run.attempts == [1]
        assert sorted(run.processes["process"]) == ["rank-0-sampler", "rank-00000"]
        rows = run.memory.groupby("process")
        assert set(rows["phase"].get_group("rank-0-sampler").dropna()) == {"generate"}
        assert rows["step"].get_group("rank-0-sampler").isna().all()  # of its parent's step it knows nothing
        assert "generate" not in set(rows["phase"].get_group("rank-00000").dropna())
        assert run.incidents.empty


def test_b_a_child_that_records_nothing_leaves_nothing(directory: Path) -> None:
    with start("b", run_dir=directory, name="parent"):
        child = multiprocessing.get_context("fork").Process(target=time.monotonic)
        child.start()
        child.join(TIMEOUT_S)
    assert [path.name for path in (directory / "attempts" / "1").glob("process-*")] == ["process-parent.json"]


def start_again(directory: Path) -> None:
    assert current_session() is None
    with start("b", run_dir=directory, name="own") as session, session.step(0):
        pass


def test_b_a_forked_child_may_begin_a_session_itself(directory: Path, tmp_path: Path) -> None:
    with start("b", run_dir=directory):
        child = multiprocessing.get_context("fork").Process(target=start_again, args=(tmp_path / "other",))
        child.start()
        child.join(TIMEOUT_S)
        assert child.exitcode == 0
    with Run(tmp_path / "other") as run:
        assert run.processes["process"].tolist() == ["own"]


class Prompts(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        with phase("tokenise"):
            return index


def test_b_a_loaders_workers_go_by_their_number(directory: Path) -> None:
    with start("b", run_dir=directory, name="trainer"):
        loader = torch.utils.data.DataLoader(Prompts(), num_workers=2, multiprocessing_context="fork")
        for _ in range(2):  # two epochs: workers are forked anew for each
            assert sorted(int(one) for one in loader) == [0, 1, 2, 3]
    with Run(directory) as run:
        assert run.attempts == [1]
        known = run.processes[run.processes["role"] == "loader"]
        assert set(known["name"]) == {"trainer loader 0", "trainer loader 1"}
        counts = run.sql(
            """select who(rank, process) as who, count(*) as n from calls where point = 'scope.phase' group by who"""
        )
        assert dict(zip(counts["who"], counts["n"], strict=True)) == {"trainer-loader-0": 4, "trainer-loader-1": 4}


# ------------------------------------------------------------------------------------------------------- every view


def test_b_each_quantity_of_a_run_with_a_driver_is_told(job: Path) -> None:
    """A process without a rank neither breaks a quantity nor stands for a rank in one."""
    with Run(job) as run:
        for spec in quantities.quantities().values():
            assert {"step", "value"} <= set(frames.series(run, {**spec, "x": "step"}).columns)
        for board in dashboards.dashboards():
            for panel in board.panels:
                panel.frame(run)
