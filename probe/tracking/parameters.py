"""A trainer's configuration, whatever its shape, as the flat parameters that backends show."""

from __future__ import annotations

import json
from typing import Any

from probe.configuration import Plain
from probe.redaction import Redact, without_secrets


def plain(config: Any) -> Any:
    """``config`` as dicts, lists and scalars.

    Understands mappings, OmegaConf, dataclasses, namespaces and other objects with attributes, ``to_dict``
    and ``model_dump`` (HuggingFace, pydantic). What it doesn't know becomes its string.

    >>> plain({"lr": 1e-6, "betas": (0.9, 0.95), "path": __import__("pathlib").PurePosixPath("a/b")})
    {'lr': 1e-06, 'betas': [0.9, 0.95], 'path': 'a/b'}
    """
    return Plain(_leaf)(config)


def _leaf(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)


def flatten(config: Any, redact: Redact = True) -> dict[str, bool | int | float | str | None]:
    """The scalars of ``config`` by their paths, parts joined by ``/``. Lists are one value, as JSON.

    Args:
        config: Of any shape.
        redact: Which texts are left out; see :mod:`probe.redaction`.

    >>> flatten({"actor": {"lr": 1e-6, "betas": [0.9, 0.95]}, "seed": 1})
    {'actor/lr': 1e-06, 'actor/betas': '[0.9, 0.95]', 'seed': 1}
    >>> flatten(None), flatten(3)
    ({}, {'config': 3})
    """
    if config is None:
        return {}
    tree = without_secrets(plain(config), redact)
    flat: dict[str, bool | int | float | str | None] = {}
    _flatten(tree if isinstance(tree, dict) else {"config": tree}, "", flat)
    return flat


def _flatten(tree: dict[str, Any], prefix: str, flat: dict[str, bool | int | float | str | None]) -> None:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            _flatten(value, f"{name}/", flat)
        else:
            flat[name] = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
