"""A run directory and writers in it, closed when the test ends, and places where it can be copied to."""

from __future__ import annotations

import os
import time
import uuid

import fsspec
import pytest

from probe.hooks import current_scope
from probe.records import Process
from probe.runs.layout import create_run
from probe.runs.writer import RunWriter


@pytest.fixture
def directory(tmp_path):
    return create_run("project", "experiment", root=tmp_path / "runs")


@pytest.fixture
def process():
    """Makes the Process row of a rank."""

    def make(world_size=1, **fields):
        now = time.monotonic_ns()
        return Process(time_ns=now, wall_ns=time.time_ns(), pid=os.getpid(), world_size=world_size, **fields)

    return make


@pytest.fixture
def writer(directory, process):
    """Opens writers; ``put`` of one takes rows alone."""
    opened = []

    def make(rank=0, *, into=None, world_size=1, **options):
        one = RunWriter(into or directory, rank=rank, process=process(world_size), **options)
        opened.append(one)
        return one

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def put():
    """Puts items into a writer, in the scope that the test is in."""

    def do(writer, *items):
        for item in items:
            writer.add_rows(item, current_scope(), time.monotonic_ns())

    return do


@pytest.fixture
def server(monkeypatch):
    """An S3 server that only the environment tells of, as it is where people read their runs."""
    moto_server, s3fs = pytest.importorskip("moto.server"), pytest.importorskip("s3fs")
    one = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    one.start()
    host, port = one.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    one.store = s3fs.S3FileSystem()
    one.bucket = f"runs-{uuid.uuid4().hex}"  # moto keeps one set of buckets for all its servers
    one.url = f"s3://{one.bucket}/project/experiment"
    one.store.mkdir(one.bucket)
    yield one
    s3fs.S3FileSystem.close_session(one.store.loop, one.store.s3)
    s3fs.S3FileSystem.clear_instance_cache()
    one.stop()


@pytest.fixture
def memory():
    """The URL of a place in memory."""
    name = uuid.uuid4().hex
    yield f"memory://{name}/run"
    fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


@pytest.fixture
def url(request, tmp_path):
    if request.param == "file":
        return (tmp_path / "copy").as_uri()
    return request.getfixturevalue("memory") if request.param == "memory" else request.getfixturevalue("server").url
