"""A Jupyter server with the plugin as the wheel installs it, in directories of its own."""

from __future__ import annotations

import contextlib
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.browser.jupyter import jupyter

ROOT = Path(__file__).parent.parent.parent


def shared_data() -> dict[str, str]:
    """What the wheel puts beside the packages, as pyproject.toml says: source and place below the environment."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    shared: dict[str, str] = settings["shared-data"]
    return shared


def install(place: Path) -> None:
    """Put the plugin's files where a server that is started with ``place`` finds them."""
    homes = {"share/jupyter": place / "data", "etc/jupyter": place / "config"}
    for source, target in shared_data().items():
        (home,) = [path for prefix, path in homes.items() if target.startswith(prefix)]
        below = home / target.split("/", 2)[2]
        below.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, below, dirs_exist_ok=True)
        else:
            shutil.copy(ROOT / source, below)


@contextlib.contextmanager
def server(
    root: Path,
    place: Path,
    app: str = "jupyterlab",
    settings: dict[str, Any] | None = None,
    port: int | None = None,
    **how: Any,
) -> Iterator[str]:
    """A Jupyter server with the plugin, as :func:`tests.browser.jupyter.jupyter` makes it. Gives its URL."""
    install(place)
    notify = {"@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False}}
    with jupyter(root, place, app, {**notify, **(settings or {})}, port, **how) as url:
        yield url
