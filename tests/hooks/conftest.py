"""A listener to all points of these tests."""

from __future__ import annotations

import pytest

from probe.hooks import subscribe
from tests.hooks.diary import Diary


@pytest.fixture
def diary():
    listener = Diary()
    with subscribe(listener, "test.*", "scope"):
        yield listener
