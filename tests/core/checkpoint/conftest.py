"""Fixtures of the tests of checkpoints."""

from __future__ import annotations

import pytest

from probe.core.checkpoint import get_rng_state, load_rng_state


@pytest.fixture
def same_random_state():
    state = get_rng_state()
    yield
    load_rng_state(state)
