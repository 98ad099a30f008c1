"""verl under observation, for the tests that call its functions in their own process; and what TRL's tests leave.

What is started with a framework isn't imported without it; ``lean.py`` is for processes that train alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import probe
from probe import frameworks
from probe.adapters.attachment import Attachment, attach
from probe.session import Session
from tests.frameworks.verl_installed import imported

collect_ignore = ["lean.py", "verl_alike.py", "verl_cpu", "verl_cuts.py", "verl_exchanges.py"]


@pytest.fixture
def without_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its configurations are here; verl asks for its models where it finds the package."""
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delenv("PROBE_RUN_DIR", raising=False)


@pytest.fixture
def attached(without_trl: None) -> Iterator[Attachment]:
    """verl, imported and under observation."""
    imported()
    (made,) = attach("verl")
    yield made
    made.detach()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with probe.start("verl", run_dir=tmp_path / "run") as opened:
        yield opened


@pytest.fixture
def taken_off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No framework is observed after the test, whatever it attached."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("PROBE_RUN_DIR", raising=False)
    yield
    for one in frameworks.attached():
        one.detach()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model and the data that verl trains, for the tests that can import what stands in `verl_cpu`."""
    from tiny import make

    directory = tmp_path_factory.mktemp("tiny")
    make(directory)
    return directory
