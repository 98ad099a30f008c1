"""What tests of the commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.tailing import ended
from tests.sample_run import sample_rows


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """``probe doctor`` without the checks of the environment, which are tested by themselves."""
    monkeypatch.setattr("probe.cli.doctor.environment", lambda _: iter(()))
    monkeypatch.setattr("probe.cli.doctor.frameworks", lambda: iter(()))
    monkeypatch.setattr("probe.cli.doctor.hooks", lambda: iter(()))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has ended."""
    return ended(tmp_path / "arithmetic" / "grpo-small", sample_rows(4, 12))
