"""A run as data sets of a real, local Ray: `probe.lake`. Runs where Ray is installed: `make test-transfer-queue`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import probe
from probe.errors import UnknownNameError
from probe.records import MicroBatch, Process
from probe.runs.compaction import compact
from probe.runs.layout import create_run

pytest.importorskip("ray", reason="ray lives in an environment of its own: `make test-transfer-queue`")

# Ray Data warns about options of its own that it sets itself.
pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")]

RANKS = 1024
STEPS = 3
IMBALANCE = "select step, max(t) / avg(t) as imbalance, sum(t) as tokens from ({}) group by step order by step"
BY_RANK = "select step, rank, sum(tokens) as t from micro_batches where step is not null group by all"


def write_rank(directory: Path, rank: int, draw: random.Random, attempt: int = 1, first_step: int = 0) -> None:
    """A segment of one rank; every eighth learns its rank after it has begun to write, under a name."""
    late = rank % 8 == 7
    name = f"worker-{rank}" if late else f"rank-{rank:05d}"
    place = f"process-{name}" if late else name
    number = "" if attempt == 1 else f".{attempt}"
    who = {"process": name, "attempt": attempt, "rank": None if late else rank}
    start = attempt * 10**12
    rows: list[object] = [Process(**who, time_ns=start, wall_ns=start, pid=rank, host="one", world_size=RANKS)]
    for step in range(first_step, STEPS):
        for index in range(2):
            lengths = [draw.randrange(1, 2048) for _ in range(3)]
            row = MicroBatch(
                **who, time_ns=start + step * 1000 + index, step=step, micro_batch=index, batch_id=step,
                micro_batches=2, sequences=3, lengths=lengths, tokens=sum(lengths), source="test",
            )  # fmt: skip
            rows.append(row)
    if late:
        known = {**who, "rank": rank}
        rows.append(Process(**known, time_ns=start, wall_ns=start, pid=rank, host="one", world_size=RANKS, revision=1))
    lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    (directory / f"{place}{number}.jsonl").write_bytes(lines)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> probe.Run:
    """1,024 ranks: three quarters compacted to Parquet, the rest as it was written, and a restart at step 2."""
    draw = random.Random(7)
    directory = create_run("lake", run_dir=tmp_path_factory.mktemp("lake") / "run")
    for rank in range(RANKS * 3 // 4):
        write_rank(directory, rank, draw)
    compact(str(directory), force=True)
    for rank in range(RANKS * 3 // 4, RANKS):
        write_rank(directory, rank, draw)
    for rank in range(0, RANKS, 64):
        write_rank(directory, rank, draw, attempt=2, first_step=2)
    return probe.open(directory)


@pytest.fixture(scope="module")
def lake(run: probe.Run) -> Iterator[probe.runs.lake.Lake]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield probe.lake(run)
    ray.shutdown()


def test_7_the_token_balance_of_1024_ranks_is_duckdbs(run, lake):
    expected = run.sql(IMBALANCE.format(BY_RANK))
    assert len(expected) == STEPS
    by_rank = lake["micro_batches"].groupby(["step", "rank"]).sum("tokens").to_pandas()
    assert len(by_rank) == 2 * RANKS + RANKS // 64  # of step 2 the second attempt alone
    steps = by_rank.groupby("step")["sum(tokens)"]
    assert (steps.max() / steps.mean()).tolist() == expected["imbalance"].tolist()
    assert steps.sum().tolist() == expected["tokens"].tolist()


def test_7_the_rows_are_those_of_the_run(run, lake):
    asked = ["step", "rank", "micro_batch", "tokens", "wall_ns"]
    found = lake.table("micro_batches", asked).to_pandas()[asked].sort_values(asked).reset_index(drop=True)
    wanted = run.table("micro_batches")[asked].sort_values(asked).reset_index(drop=True)
    assert found.astype("int64").equals(wanted.astype("int64"))
    assert lake["padding"].count() == 0
    assert set(lake) == set(run.tables)


def test_7_one_attempt_alone(run, lake):
    assert probe.lake(run, attempt=1)["micro_batches"].count() == len(run.attempt(1).table("micro_batches"))


@pytest.mark.parametrize(("table", "columns", "says"), [("microbatches", None, "table"), ("memory", ["x"], "column")])
def test_7_an_unknown_name_is_refused(lake, table, columns, says):
    with pytest.raises(UnknownNameError, match=says):
        lake.table(table, columns)
