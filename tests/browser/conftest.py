"""One JupyterLab and one Chromium for all tests that need them; each test has a notebook of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import jupyter

HERE = Path(__file__).parent

#: Where screenshots are kept, to be looked at.
SHOTS = "PROBE_SCREENSHOTS"

#: Steps of a training that only the test ends, so that none is done before the test has looked.
ENDLESS = 10**9


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """URL and notebook directory of a JupyterLab."""
    root = notebooks(tmp_path_factory.mktemp("notebooks"))
    with jupyter.jupyter(root, tmp_path_factory.mktemp("jupyter")) as url:
        yield url, root


@pytest.fixture(scope="module")
def chrome(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page that stays open, so that the pages beside it need neither a start nor JupyterLab's code anew."""
    with jupyter.browser(chromium, tmp_path_factory.mktemp("profile")) as page:
        yield page


def notebooks(root: Path) -> Path:
    """A directory for notebooks, with the stand-in for a trainer beside them."""
    shutil.copy(HERE / "training.py", root / "training.py")
    return root


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """A directory for screenshots: ``PROBE_SCREENSHOTS``, or one that goes with the test."""
    given = os.environ.get(SHOTS)
    place = Path(given) if given else tmp_path / "screenshots"
    place.mkdir(parents=True, exist_ok=True)
    return place
