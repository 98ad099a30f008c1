"""13: the collective that a rank waits in, from PyTorch's flight recorder."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from probe import hooks
from probe.analysis.verdict import hanging
from probe.hooks import phase
from probe.records import Process
from probe.runs import collectives
from probe.runs.collectives import waited_in
from probe.runs.now_file import NowFile
from probe.runs.reader import Run
from probe.runs.watchdog import Watchdog
from probe.session import start
from tests.ranks import PATIENCE_S, run_ranks
from tests.waiting import until

STEPS = 3
MINUTES = 60 * 1_000_000_000


def _train(rank: int, store: Path, root: Path) -> None:
    """Both sum in each step; in the last one rank 1 is elsewhere until the watchdog of rank 0 has told where it is."""
    os.environ["PROBE_OVERDUE_S"] = "0.5"
    patience = timedelta(seconds=PATIENCE_S)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=patience)
    pair = dist.new_group([0, 1], timeout=patience, group_desc="the pair")
    assert waited_in() is None
    with start("collectives", run_dir=root / "run", rank=rank, world_size=2, device="cpu") as session:
        for step in range(STEPS):
            with session.step(step), phase("update"):
                dist.all_reduce(torch.zeros(4), group=pair)
        with session.step(STEPS):
            if rank == 1:
                with phase("reward"):
                    _look(root / "run", root / "found.json")
            with phase("update"):
                dist.all_reduce(torch.zeros(8, 3), group=pair)
    dist.destroy_process_group()


def _look(place: Path, found: Path) -> None:
    with Run(place) as run:
        where = "select * from stacks where rank = 0 and phase = 'update'"
        seen = until(lambda: run.refresh().sql(where), lambda frame: len(frame) > 0)
        (hang,) = hanging.hang(run, time.time_ns() + 20 * MINUTES)
    names = [name for name in seen.columns if name.startswith("collective")]
    told = {name: seen[name].tolist()[0] for name in [*names, "open_ns"]}
    found.write_text(json.dumps({**told, "sentence": hang.sentence, "why": hang.why}))


@pytest.mark.multiprocess
def test_13_a_hang_quotes_the_collective_that_a_rank_waits_in(tmp_path: Path) -> None:
    run_ranks(_train, (tmp_path / "store", tmp_path), 2)
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    assert found["collective"] == "gloo:all_reduce"
    assert found["collective_group"] == "the pair"
    assert found["collective_number"] == STEPS + 1
    assert found["collective_sizes"] == "8x3"
    assert 0 < found["collective_ns"] <= found["open_ns"] + 60 * 10**9
    assert found["sentence"].startswith("Rank 1 is elsewhere, in reward · step 3, and rank 0 has waited for it")
    assert f"in gloo:all_reduce, collective {STEPS + 1} of the pair (8x3)." in found["why"]


def entry(name: str, created_ns: int, **changed: Any) -> dict[str, Any]:
    """A record as PyTorch 2.13 tells it."""
    told = {
        "profiling_name": name,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 7,
        "is_p2p": False,
        "input_sizes": [[8, 3], []],
        "time_created_ns": created_ns,
        "state": "started",
        "retired": False,
    }
    return told | changed


def recorder(monkeypatch: pytest.MonkeyPatch, **told: list[dict[str, Any]] | None) -> None:
    """A process group whose records are those, by function; of NCCL there is none without a GPU."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    each = {name: partial(_dumped, entries) for name, entries in told.items()}
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(**each))


def _dumped(entries: list[dict[str, Any]], **asked: bool) -> bytes:
    assert asked == {"includeCollectives": True, "onlyActive": True}
    return json.dumps({"entries": entries}).encode()


def test_13_the_oldest_that_has_not_ended_is_the_one_that_is_waited_in(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    nccl = [
        entry("nccl:all_gather", now - 9 * 10**9, state="completed"),
        entry("nccl:broadcast", now - 8 * 10**9, retired=True),
        entry("nccl:all_reduce", now - 5 * 10**9, process_group=["2", "undefined"]),
        entry("nccl:all_reduce", now - 4 * 10**9),
    ]
    gloo = [entry("gloo:send", now - 3 * 10**9, is_p2p=True)]
    recorder(monkeypatch, _dump_nccl_trace_json=nccl, _dump_fr_trace_json=gloo)
    found = waited_in()
    assert found is not None
    assert found[:4] == ("nccl:all_reduce", "2", 7, "8x3, scalar")
    assert 5 * 10**9 <= found.open_ns < 3600 * 10**9
    recorder(monkeypatch, _dump_fr_trace_json=gloo)
    found = waited_in()
    assert found is not None
    assert (found.name, found.number) == ("gloo:send", None)


@pytest.mark.parametrize("told", [{}, {"_dump_fr_trace_json": []}])
def test_13_nothing_is_told_where_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]) -> None:
    assert waited_in() is None  # no process group
    recorder(monkeypatch, **told)
    assert waited_in() is None


def test_13_a_recorder_that_fails_costs_the_collective_and_not_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_OVERDUE_S", "10")
    recorder(monkeypatch, _dump_fr_trace_json=[{"time_created_ns": 5, "input_sizes": 3}])
    with pytest.raises(TypeError):
        collectives.waited_in()
    page = NowFile(tmp_path / "rank-00000.now", Process(process="rank-00000"))
    scope = hooks.Scope("phase", "update", page.at, step=1)
    page.entered(scope, threading.get_ident(), time.monotonic_ns() - 20 * 10**9)
    told = Watchdog(page).look()
    page.close()
    assert told is not None
    assert told[0].seen
    assert told[0].collective == ""
