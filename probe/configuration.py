"""A trainer's configuration, whatever its shape, opened one level at a time."""

from __future__ import annotations

import argparse
import dataclasses
import types
from collections.abc import Mapping
from typing import Any


def opened(config: Any) -> Any:
    """One level of ``config`` as a mapping or a list where it is something like one; else itself.

    Understands OmegaConf, dataclasses, namespaces and other objects with attributes, ``to_dict`` and ``model_dump``
    (HuggingFace, pydantic).

    >>> opened(types.SimpleNamespace(lr=1e-6)), opened("text")
    ({'lr': 1e-06}, 'text')
    """
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
