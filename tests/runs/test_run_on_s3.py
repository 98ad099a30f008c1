"""A run on a real S3 server on loopback reads as it does from the disk, also while it grows."""

from __future__ import annotations

import collections

import pandas as pd
import pytest

from probe.errors import RunError, RunNotFoundError
from probe.records import Memory, MicroBatch, Padding, Scalar
from probe.runs import compaction_files, liveness
from probe.runs.compaction import compact
from probe.runs.layout import PARTS_NAME
from probe.runs.reader import NAMES, Run

pytest.importorskip("moto.server")
s3fs = pytest.importorskip("s3fs")

# botocore's HTTP sessions are closed by a finalizer of s3fs when the interpreter ends, not before.
pytestmark = [
    pytest.mark.slow,  # a server
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:Unclosed:ResourceWarning"),
]


@pytest.fixture
def upload(server, directory):
    """Sends the run as it is now; what isn't there any more is deleted, as a mirror does."""

    def do():
        here = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
        for name in here:
            server.store.call_s3(
                "put_object",
                Bucket=server.bucket,
                Key=f"project/experiment/{name}",
                Body=(directory / name).read_bytes(),
            )
        prefix = f"{server.bucket}/project/experiment/"
        server.store.invalidate_cache()
        for path in server.store.find(prefix):
            if path.removeprefix(prefix) not in here:
                server.store.rm_file(path)

    return do


def fill(writer, put, ranks=2, steps=3):
    for rank in range(ranks):
        one = writer(rank, world_size=ranks)
        for step in range(steps):
            put(one, Scalar(key="loss", value=1 / (step + 1)), Scalar(key="nan", value=float("nan")))
            put(one, MicroBatch(batch_id=step, micro_batches=1, sequences=2, lengths=[3, step], tokens=3 + step))
            put(one, Memory(edge="leave", device="cpu", allocated_bytes=step << 30))
            sizes = {"tokens": 3 - step, "bytes": 8 * (3 - step), "rectangle_tokens": 6, "valid_tokens": 3 + step}
            put(one, Padding(batch_id=step, source="test", field="input_ids", cause="longest_row", **sizes))
        assert one.flush()
        yield one


def assert_equal(directory, url):
    with Run(directory) as local, Run(url) as remote:
        assert remote.path == url.rstrip("/")
        assert remote.info == local.info
        assert remote.ranks == local.ranks
        assert remote.missing_ranks == local.missing_ranks == []
        assert remote.bad_lines == local.bad_lines == 0
        for name in NAMES:
            pd.testing.assert_frame_equal(remote.table(name), local.table(name))
        query = "select rank, count(*) as n, sum(tokens) as tokens from padding group by rank order by rank"
        pd.testing.assert_frame_equal(remote.sql(query), local.sql(query))
        assert list(map(repr, remote.new_rows())) == list(map(repr, local.new_rows()))
        assert len(remote.scalars) > 0


def test_a_run_on_s3_reads_as_it_does_from_the_disk(server, directory, writer, put, upload):
    writers = list(fill(writer, put))
    upload()
    assert_equal(directory, server.url)  # JSONL alone
    writers[0].close()  # rolls over into Parquet, while the other stays JSONL
    assert list((directory / PARTS_NAME).glob("*.parquet"))
    upload()
    assert_equal(directory, server.url)
    assert_equal(directory, f"{server.url}/")
    writers[1].close()
    upload()
    assert_equal(directory, server.url)


def test_a_growing_run_on_s3_is_followed(server, directory, writer, put, upload):
    one = next(fill(writer, put, ranks=1))
    upload()
    with Run(server.url) as run:
        assert len(run.scalars) == 6
        seen = [row.value for row in run.new_rows() if isinstance(row, Scalar) and row.key == "loss"]
        put(one, Scalar(key="loss", value=7.0))
        assert one.flush()
        upload()
        assert len(run.scalars) == 6  # one moment until it is refreshed
        assert len(run.refresh().scalars) == 7
        seen += [row.value for row in run.new_rows() if isinstance(row, Scalar) and row.key == "loss"]
        one.close()
        upload()
        assert len(run.refresh().scalars) == 7
        assert run.new_rows() == []
        assert seen == [1.0, 0.5, 1 / 3, 7.0]


def test_what_is_no_run_on_s3(server, directory, writer, put, upload):
    for url in (f"s3://{server.bucket}/none", "s3://no-such-bucket-here/run"):
        with pytest.raises(RunNotFoundError, match="there is nothing at 's3://"):
            Run(url)
    list(fill(writer, put, ranks=1))
    upload()
    with pytest.raises(RunError, match="isn't a run"):
        Run(f"s3://{server.bucket}/project")


def test_a_server_that_goes_away_is_a_run_error(server, directory, writer, put, upload):
    for one in fill(writer, put):
        one.close()
    upload()
    with Run(server.url) as run:
        assert len(run.scalars) > 0
        server.stop()
        assert len(run.scalars) > 0  # what was read is kept
        for act in (lambda: run.memory, run.refresh, run.new_rows, lambda: run.memory, lambda: Run(server.url)):
            with pytest.raises(RunError, match=server.url):
                act()


@pytest.fixture
def requests(monkeypatch):
    """Counts what is asked of the server, by kind of request."""
    counted = collections.Counter()
    call = s3fs.S3FileSystem._call_s3

    async def counting(self, method, *args, **options):
        counted[method if isinstance(method, str) else method.__name__] += 1
        return await call(self, method, *args, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counting)
    return counted


def sent(server, directory, upload, writer, put, ranks):
    for one in fill(writer, put, ranks=ranks):
        one.close()
    upload()


def test_what_opening_a_run_on_s3_asks_for(server, directory, writer, put, upload, requests):
    """One listing of each folder, one small object for each process, and of the rest only what a query reads."""
    ranks = 6
    sent(server, directory, upload, writer, put, ranks)
    requests.clear()
    with Run(server.url) as run:
        assert requests == {"get_object": 1}  # run.json
        run.refresh()
        assert requests["get_object"] == 1 + ranks
        assert requests["list_objects_v2"] <= 3
        assert set(requests) <= {"get_object", "list_objects_v2"}
        requests.clear()
        assert run.sql("select sum(tokens) as t from padding")["t"][0] > 0
        assert requests["get_object"] + requests["head_object"] <= 4 * ranks  # the footer and the column, of each file
        requests.clear()
        run.refresh()
        assert sum(requests.values()) <= 3  # nothing is read again


def test_a_run_is_compacted_on_s3_as_on_the_disk(server, directory, writer, put, upload, requests):
    ranks = 4
    sent(server, directory, upload, writer, put, ranks)
    before = len(server.store.find(server.url))
    requests.clear()
    done = compact(server.url)
    assert (done.left, done.segments) == ({}, ranks)
    assert done.parts_after < done.parts_before < before
    assert requests["get_object"] < 4 * done.parts_before
    assert_equal(directory, server.url)
    requests.clear()
    with Run(server.url) as run:
        run.refresh()
        assert run.sql("select count(*) as n from padding")["n"][0] > 0
        assert sum(requests.values()) < 16  # however many ranks there were
    assert compact(server.url).rows == 0
    directory_again = compact(directory)
    assert directory_again.rows == done.rows
    assert_equal(directory, server.url)


def test_lines_on_s3_need_to_be_old_and_given_up(server, directory, writer, put, upload, monkeypatch):
    closed, open_one = list(fill(writer, put, ranks=2))
    closed.close()
    upload()
    name = "rank-00001.jsonl"
    assert set(compact(server.url).left) == {name}
    assert set(compact(server.url, force=True).left) == {name}  # it came just now
    monkeypatch.setattr(liveness, "QUIET_S", 0.0)
    assert "force=True" in compact(server.url).left[name]
    before = Run(server.url).scalars
    assert compact(server.url, force=True).left == {}
    pd.testing.assert_frame_equal(Run(server.url).scalars, before)
    assert not server.store.exists(f"{server.url}/{name}")
    open_one.close()


def test_two_compactions_on_s3_at_once(server, directory, writer, put, upload, monkeypatch):
    sent(server, directory, upload, writer, put, 2)
    publish = compaction_files.RemoteFolder.publish

    def late(folder, manifest):
        monkeypatch.setattr(compaction_files.RemoteFolder, "publish", publish)
        assert compact(server.url).rows  # somebody else is faster
        publish(folder, manifest)

    monkeypatch.setattr(compaction_files.RemoteFolder, "publish", late)
    with pytest.raises(RunError, match="another process compacted it meanwhile"):
        compact(server.url)
    assert_equal(directory, server.url)
