"""A trainer's configuration, whatever its shape, as the flat parameters that backends show."""

from __future__ import annotations

import argparse
import dataclasses
import json
import types
from collections.abc import Mapping
from typing import Any

_DEPTH = 20


def plain(config: Any, _depth: int = 0) -> Any:
    """``config`` as dicts, lists and scalars.

    Understands mappings, OmegaConf, dataclasses, namespaces and other objects with attributes, ``to_dict``
    and ``model_dump`` (HuggingFace, pydantic). What it doesn't know becomes its string.

    >>> plain({"lr": 1e-6, "betas": (0.9, 0.95), "path": __import__("pathlib").PurePosixPath("a/b")})
    {'lr': 1e-06, 'betas': [0.9, 0.95], 'path': 'a/b'}
    """
    if config is None or isinstance(config, bool | int | float | str):
        return config
    if _depth >= _DEPTH:
        return str(config)
    config = _opened(config)
    if isinstance(config, Mapping):
        return {str(key): plain(value, _depth + 1) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [plain(value, _depth + 1) for value in config]
    if isinstance(config, set | frozenset):
        return sorted(str(value) for value in config)
    return str(config)


def _opened(config: Any) -> Any:
    """One level of ``config`` as a mapping or a list where it is something like one."""
    if type(config).__module__.partition(".")[0] == "omegaconf":
        return _omegaconf(config)
    if isinstance(config, Mapping | list | tuple | set | frozenset | type):
        return config
    if dataclasses.is_dataclass(config):
        return {field.name: getattr(config, field.name, None) for field in dataclasses.fields(config)}
    for name in ("model_dump", "to_dict"):
        method = getattr(config, name, None)
        if callable(method):
            return method()
    return _attributes(config)


def _attributes(config: Any) -> Any:
    """The attributes of a namespace, or of an object that has no text of its own; else the object."""
    kind = type(config)
    is_namespace = isinstance(config, argparse.Namespace | types.SimpleNamespace)
    if is_namespace or (getattr(kind, "__repr__", None) is object.__repr__ and hasattr(config, "__dict__")):
        return {key: value for key, value in vars(config).items() if not key.startswith("_")}
    return config


def _omegaconf(config: Any) -> Any:
    from omegaconf import OmegaConf

    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    except Exception:  # an interpolation that leads nowhere; show it as it is written
        return OmegaConf.to_container(config, resolve=False, throw_on_missing=False)


def flatten(config: Any) -> dict[str, bool | int | float | str | None]:
    """The scalars of ``config`` by their paths, parts joined by ``/``. Lists are one value, as JSON.

    >>> flatten({"actor": {"lr": 1e-6, "betas": [0.9, 0.95]}, "seed": 1})
    {'actor/lr': 1e-06, 'actor/betas': '[0.9, 0.95]', 'seed': 1}
    >>> flatten(None), flatten(3)
    ({}, {'config': 3})
    """
    if config is None:
        return {}
    tree = plain(config)
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
