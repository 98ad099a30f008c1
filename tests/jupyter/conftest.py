"""One Chromium for the tests of a file, and screenshots, as for the other tests in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import shots
from tests.browser.jupyter import browser

__all__ = ["shots"]


@pytest.fixture(scope="module")
def chrome(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page that stays open, so that the pages beside it need neither a start nor JupyterLab's code anew."""
    with browser(chromium, tmp_path_factory.mktemp("profile")) as page:
        yield page
