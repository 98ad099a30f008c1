"""Where the YAML files of the dashboards are, and how they are read."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import yaml

from probe.errors import InputError, MissingKeyError

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def source(name: str) -> Traversable | Path:
    """The file ``<name>.yaml``: packed into an installed wheel, else in the source tree beside the package.

    Args:
        name: Of the file, without its ending.

    Returns:
        The file.

    Raises:
        MissingKeyError: It is in neither place.
    """
    packed = resources.files("probe") / "_dashboards" / f"{name}.yaml"
    if packed.is_file():
        return packed
    beside = Path(__file__).resolve().parents[2] / "dashboards" / f"{name}.yaml"
    if beside.is_file():
        return beside
    raise MissingKeyError(f"dashboard {name!r}: neither {packed} nor {beside} is there; install probe-rl again")


def text(name: str) -> str:
    """What the file ``<name>.yaml`` holds."""
    return source(name).read_text(encoding="utf-8")


def loaded(content: str, where: str) -> Any:
    """The YAML ``content`` as plain values.

    Args:
        content: Of the file.
        where: It stands, for messages.

    Returns:
        What it says.

    Raises:
        InputError: It isn't YAML.
    """
    try:
        return yaml.load(content, Loader=_LOADER)  # noqa: S506  (the safe one, in C where PyYAML was built with it)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: not YAML: {error}") from error
