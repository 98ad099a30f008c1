"""What tests of the commands share."""

from __future__ import annotations

import pytest


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """``probe doctor`` without the checks of the environment, which are tested by themselves."""
    monkeypatch.setattr("probe.cli.doctor.environment", lambda _: iter(()))
    monkeypatch.setattr("probe.cli.doctor.frameworks", lambda: iter(()))
    monkeypatch.setattr("probe.cli.doctor.hooks", lambda: iter(()))
