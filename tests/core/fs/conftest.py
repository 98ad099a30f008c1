"""Fixtures of the tests of copies: a store in memory, and what is told of the cache."""

from __future__ import annotations

import fsspec
import pytest

from probe import hooks


@pytest.fixture
def memory():
    """The file system behind memory://, emptied before and after."""
    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


class Told(hooks.Listener):
    def __init__(self):
        self.values = []

    def fire(self, event):
        self.values.append(dict(event.values))

    @property
    def reasons(self):
        return [one["reason"] for one in self.values]


@pytest.fixture
def told():
    listener = Told()
    with hooks.subscribe(listener, "fs.cached"):
        yield listener
