"""One Chromium for the tests of a file, and screenshots, as for the other tests in a browser."""

from __future__ import annotations

from tests.browser.conftest import chrome, shots

__all__ = ["chrome", "shots"]
