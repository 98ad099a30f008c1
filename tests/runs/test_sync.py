"""A copy of a run in a store reads as the run does, while it is written, compacted, killed and gone on with."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import pandas as pd
import pytest

import probe
from probe.errors import InputError, RunError
from probe.opened import Run
from probe.runs import sync as module
from probe.runs.compaction import compact
from probe.runs.layout import PARTS_NAME, Segment, complete_run, create_run
from probe.runs.pieces import Piece, cover, pack, piece_of, unpack
from probe.runs.sync import Sent, Sync, alike, follow
from tests.runs.copies import FILE, S3, S3_TOO, assert_equal, names, numbers, values

# botocore's HTTP sessions are closed by a finalizer of s3fs when the interpreter ends, not before.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:Unclosed:ResourceWarning")


@pytest.mark.parametrize("url", ["memory", FILE, S3], indirect=True)
def test_7_a_copy_reads_as_the_run_at_each_pass(directory, writer, put, url):
    one, other, sync = writer(0, world_size=2), writer(1, world_size=2), Sync(directory, url)
    for begin in (0, 10, 20):
        numbers(one, put, begin, begin + 10)
        numbers(other, put, begin, begin + 5)
        assert sync.once().files > 0
        assert_equal(directory, url)
    one.close()  # Parquet, while the other stays lines
    assert (directory / PARTS_NAME / "scalars-rank00000-0.parquet").exists()
    sync.once()
    assert_equal(directory, url)
    assert [piece_of(name) for name in names(url) if "rank-00000" in name] == []
    other.close()
    sync.once()
    assert_equal(directory, url)
    assert compact(directory).rows > 0
    sync.once()
    assert_equal(directory, url)
    assert {Path(name).name for name in names(url)} == {
        path.name for path in (*directory.glob("*.json"), *(directory / PARTS_NAME).iterdir())
    }


def test_7_each_row_is_sent_once(directory, writer, put, memory):
    one = writer(0)
    numbers(one, put, 0, 500)
    first = Sync(directory, memory).once()
    assert Sync(directory, memory).once() == Sent()
    numbers(one, put, 500, 510)
    second = Sync(directory, memory).once()
    assert second.files == 1
    assert second.bytes < first.bytes / 4
    pieces = sorted(filter(None, map(piece_of, names(memory))))
    assert [piece.begin for piece in pieces] == [0, pieces[0].end]
    content = fsspec.filesystem("memory").cat_file(f"{memory.removeprefix('memory:/')}/{pieces[1].name}")
    assert unpack(content, pieces[1]).count(b"\n") == 10
    one.close()
    third = Sync(directory, memory).once()
    assert third.files == len(list(directory.glob("parts/*.parquet")))
    assert third.removed == 2
    assert Sync(directory, memory).once() == Sent()


def test_7_a_line_that_is_being_written_waits(directory, writer, put, memory):
    one = writer(0)
    numbers(one, put, 0, 3)
    with (directory / "rank-00000.jsonl").open("ab") as file:  # as a kill in the middle of a write leaves it
        file.write(b'{"table":"scalars","key":"torn"')
    Sync(directory, memory).once()
    with Run(memory) as run:
        assert run.bad_lines == 0
        assert values(run) == [0.0, 1.0, 2.0]


def test_7_pieces_become_fewer_and_no_byte_is_sent_often(directory, writer, put, memory, monkeypatch):
    monkeypatch.setattr(module, "SMALL_BYTES", 1)
    one, sync, most, sent = writer(0), Sync(directory, memory), 0, 0
    with Run(memory if sync.once().files else "") as run:
        got = []
        for step in range(200):
            numbers(one, put, step, step + 1)
            sent += sync.once().files
            most = max(most, len(list(filter(None, map(piece_of, names(memory))))))
            got += values(run)
        assert got == list(range(200))
    assert most < 3 * module.TOGETHER
    assert 200 <= sent < 200 * (1 + 2 / module.TOGETHER)
    assert_equal(directory, memory)


def test_7_which_pieces_become_one():
    def of(*sizes):
        ends = list(itertools.accumulate(sizes, initial=0))
        return [Piece(None, begin, end) for begin, end in itertools.pairwise(ends)]

    large = 2**20
    assert alike(of(*[large] * 7)) == 0
    assert alike(of(*[large] * 8)) == 8
    assert alike(of(8 * large, *[large] * 7)) == 0
    assert alike(of(8 * large, *[large] * 8)) == 8
    assert alike(of(8 * large, *[1] * 9)) == 9
    assert alike([]) == 0


def test_7_what_a_piece_covers_and_what_it_doesn_t():
    whole = b"".join(b"%d\n" % number for number in range(1000))
    piece = Piece(Segment.of_rank(0), 0, len(whole))
    assert unpack(pack(whole), piece) == whole
    for damaged in (pack(whole)[:-5], b"", pack(whole)[:50] + b"xx" + pack(whole)[52:], pack(whole[:100])):
        with pytest.raises(OSError, match=r"rank-00000.jsonl.0-3890.gz is damaged"):
            unpack(damaged, piece)
    assert cover([Piece(None, 5, 9)]) == []
    for name in ("rank-00000.jsonl.5-5.gz", "rank-00000.jsonl.9-5.gz", "rank-00000.jsonl.gz", "x.jsonl.0-5.gz"):
        assert piece_of(name) is None


def test_7_a_place_that_holds_another_run_is_left_as_it_is(directory, writer, put, memory, tmp_path):
    one = writer(0)
    numbers(one, put, 0, 5)
    Sync(directory, memory).once()
    other = create_run("project", "other", root=tmp_path / "runs")
    another = writer(0, into=other)
    numbers(another, put, 100, 200)
    before = fsspec.filesystem("memory").find(memory.removeprefix("memory:/"), detail=True)
    with pytest.raises(RunError, match=r"holds another run: its rank-00000.jsonl begins with other rows"):
        Sync(other, memory).once()
    one.close()
    Sync(directory, memory).once()
    with pytest.raises(RunError, match=r"holds another run: its rank-00000.jsonl is Parquet already"):
        Sync(other, memory).once()
    another.close()
    with pytest.raises(RunError, match=r"holds another run: its .*parquet has \d+ bytes, and ours has \d+"):
        Sync(other, memory).once()
    assert before
    assert_equal(directory, memory)


def test_7_directories_of_two_machines_become_one_copy(tmp_path, writer, put, memory):
    """Ranks 0 and 1 don't see each other's files; one of them compacts."""
    nodes = [create_run("project", "experiment", root=tmp_path / str(node)) for node in range(2)]
    writers = [writer(rank, into=node, world_size=2) for rank, node in enumerate(nodes)]
    syncs = [Sync(node, memory) for node in nodes]
    for step in range(3):
        for rank, one in enumerate(writers):
            numbers(one, put, 10 * step + rank, 10 * step + rank + 1)
            syncs[rank].once()
            syncs[rank]._there.forget()
    for one in writers:
        one.close()
    assert compact(nodes[0]).rows == 0  # one segment's parts are as few files as there can be
    for sync in syncs:
        sync.once()
    with Run(memory) as run:
        assert run.ranks == [0, 1]
        assert run.missing_ranks == []
        assert sorted(run.scalars["value"]) == [0, 1, 10, 11, 20, 21]


def test_7_what_becomes_known_of_a_run_later_is_sent(directory, writer, put, memory):
    numbers(writer(0), put, 0, 3)
    sync = Sync(directory, memory)
    sync.once()
    assert Run(memory).info.config is None
    complete_run(directory, "project", {"lr": 0.1})
    assert sync.once().files == 1
    assert Run(memory).info.config == {"lr": 0.1}
    assert Sync(directory, memory).once() == Sent()


def test_7_a_copy_that_was_compacted_there_is_told(directory, writer, put, memory):
    for rank in range(2):
        numbers(writer(rank, world_size=2), put, 0, 3)
    Sync(directory, memory).once()
    for one in list(directory.glob("*.jsonl")):
        assert one.stat().st_size
    first, second = writer(2), writer(3)
    first.close()
    second.close()
    Sync(directory, memory).once()
    assert compact(memory).rows > 0
    assert compact(directory).rows > 0
    with pytest.raises(RunError, match="was compacted there, or another machine"):
        Sync(directory, memory).once()
    with Run(memory) as run:
        assert len(run.scalars) == 6
    assert all("in pieces" in why or "copy of an open file" in why for why in compact(memory).left.values())


def test_7_secrets_of_a_url_are_told_to_nobody(directory, tmp_path):
    sync = Sync(directory, f"file://me:hunter2@host{tmp_path}/copy?token=abcdef")
    assert "hunter2" not in sync.shown
    assert "abcdef" not in sync.shown
    with pytest.raises(InputError, match=r"'nothing://\[redacted\]@host/run' can't be opened") as caught:
        Sync(directory, "nothing://me:hunter2@host/run")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InputError, match="expected a run directory of this machine"):
        Sync("memory://somewhere/run", "memory://else/run")


@pytest.mark.slow
def test_7_a_bucket_that_isn_t_there_is_an_error(directory, writer, put, server):
    numbers(writer(0), put, 0, 3)
    sync = Sync(directory, "s3://no-such-bucket-here/run")
    with pytest.raises(RunError, match="s3://no-such-bucket-here/run can't be used: FileNotFoundError"):
        sync.once()


def test_7_a_store_that_fails_is_tried_again(directory, writer, put, tmp_path):
    numbers(writer(0), put, 0, 3)
    copy, stop, told = tmp_path / "copy", threading.Event(), []
    copy.write_text("in the way")

    def hear(one):
        told.append(one)
        if len(told) == 3:
            copy.unlink()
        if isinstance(one, Sent):
            stop.set()

    assert follow(Sync(directory, str(copy)), stop, every_s=0.01, told=hear)
    assert [type(one) for one in told[:4]] == [RunError, RunError, RunError, Sent]
    assert_equal(directory, copy)
    copy.rename(tmp_path / "away")
    copy.write_text("in the way")
    sync = Sync(directory, str(copy))
    assert not follow(sync, stop, every_s=0.01, last_s=0.01)


FAILS = """
import os, signal, sys
import probe
from probe.testing import FakeDevice
if sys.argv[2] == "killed":
    light = {"recorders": ["memory"], "device": FakeDevice()}  # which needn't import torch
    session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1, **light)
    with session.step(3), probe.phase("update"):
        session.flush()
        os.kill(os.getpid(), signal.SIGKILL)
import torch
session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1, save_failed_batch=True)
lengths = torch.arange(1, 5)
batch = {"attention_mask": (torch.arange(8)[None] < lengths[:, None]).long(), "input_ids": torch.arange(32).view(4, 8)}
with session.step(3), probe.phase("update"):
    for index, _ in enumerate(probe.micro_batches(batch, max_token_len=4)):
        if index == 1:
            raise ValueError("in a micro-batch")
"""


@pytest.fixture
def ended(tmp_path):
    """A run that has ended as is said, in another process."""

    def end(how):
        command = [sys.executable, "-c", FAILS, str(tmp_path / "run"), how]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
        return tmp_path / "run"

    return end


@pytest.mark.parametrize("url", ["memory", FILE, S3_TOO], indirect=True)
def test_12_7_where_a_process_was_seen_last_goes_along(ended, url):
    directory = ended("killed")
    assert Sync(directory, url).once().files > 0
    with Run(directory) as here, Run(url) as there:
        told, copied = here.now(), there.now()
        assert told["copied_ns"].isna().all()
        assert copied["copied_ns"].iloc[0] > copied["heartbeat_ns"].iloc[0]
        pd.testing.assert_frame_equal(told.drop(columns="copied_ns"), copied.drop(columns="copied_ns"))
        assert copied["scope"].tolist() == ["step/update"]
        assert there.post_mortem().state == "killed"
        assert there.post_mortem().to_dict()["events"] == here.post_mortem().to_dict()["events"]
    again = Sync(directory, url).once()
    assert (again, again.pages) == (Sent(), 0)  # nothing has changed since


@pytest.mark.parametrize("url", ["memory", FILE, S3_TOO], indirect=True)
def test_12_7_the_micro_batch_of_a_failure_goes_along_and_is_replayed_from_there(ended, url):
    directory = ended("raises")
    Sync(directory, url).once()
    with Run(directory) as here, Run(url) as there:
        assert there.post_mortem().state == "failed"
        (found,) = there.failures().to_dict("records")
        assert found["batch_path"].startswith(there.path)
        (ours,) = here.failures().to_dict("records")
    ids = probe.replay(found, lambda data: data.batch["input_ids"])
    assert ids.tolist() == probe.replay(ours, lambda data: data.batch["input_ids"]).tolist()
    assert len(ids) == len(found["lengths"])
    again = Sync(directory, url).once()
    assert (again, again.pages) == (Sent(), 0)


def test_12_7_a_change_of_scope_arrives_with_the_next_pass(tmp_path, memory):
    with probe.start("p", "e", run_dir=tmp_path / "run", rank=0, world_size=1, recorders=[]) as session:
        sync = Sync(tmp_path / "run", memory)
        for name in ("generate", "update"):
            with session.step(1), probe.phase(name):
                sync.once()
                with Run(memory) as there:
                    assert there.now()["phase"].tolist() == [name]
