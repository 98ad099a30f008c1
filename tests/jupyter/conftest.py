"""One Chromium for the tests of a file, and screenshots, as for the other tests in a browser; and runs of a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import chrome, shots
from tests.jupyter.serving import NASTY
from tests.sample_run import sample_rows, write_run

__all__ = ["chrome", "shots"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's directory with two runs, a link out of it, and a run that lies outside."""
    top = tmp_path_factory.mktemp("top")
    home = top / "home"
    write_run(home / "runs" / "first", sample_rows(2, 6), project="shop", experiment="first")
    write_run(home / "work" / "deep" / "er" / NASTY.replace("/", "-"), sample_rows(2, 4), project=NASTY)
    write_run(top / "elsewhere" / "secret", sample_rows(1, 3), project="secret")
    (home / "runs" / "linked").symlink_to(top / "elsewhere" / "secret")
    write_run(home / "runs" / "lured", sample_rows(1, 3), project="lured")
    (home / "runs" / "lured" / "parts").symlink_to(top / "elsewhere")
    write_run(home / ".hidden" / "run", sample_rows(1, 3), project="hidden")
    write_run(top / "further" / "far", sample_rows(1, 3), project="far")
    return home
