"""A run directory and writers in it, closed when the test ends."""

from __future__ import annotations

import os
import time

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
