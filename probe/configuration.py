"""A trainer's configuration, whatever its shape, opened one level at a time."""

from __future__ import annotations

import argparse
import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from probe.guard import attempt

#: Nothing that people write by hand is as deep.
DEEPEST: Final = 40

#: An object that stands in several places is shown in each where it is as small, and in the first alone where it isn't.
_SMALL: Final = 64


#: Of a longer place a reference has the end.
_LONGEST_PLACE: Final = 60


class Plain:
    """Makes dicts and lists of a configuration of any shape, in a size that grows with the objects in it.

    Objects that point back, and larger ones that several share, stand in one place; in others is a reference, such as
    ``"→ actor/model"``. One is for one configuration.

    Args:
        leaf: Makes something plain of what is neither a mapping, a list, a tuple, nor an object that can be opened.
    """

    def __init__(self, leaf: Callable[[Any], Any]) -> None:
        self._leaf = leaf
        self._places: dict[int, str] = {}  # of what is being made, and of what is
        self._made: dict[int, tuple[Any, int]] = {}
        self._known: list[Any] = []  # an object that is gone would lend its id to another

    def __call__(self, config: Any) -> Any:
        """
        >>> ring = {"lr": 1e-6}
        >>> ring["self"] = ring
        >>> Plain(str)({"actor": ring})
        {'actor': {'lr': '1e-06', 'self': '→ actor'}}
        """
        return self._of(config, "", 0)[0]

    def _of(self, value: Any, place: str, depth: int) -> tuple[Any, int]:
        """What it is made, and how many values that has."""
        if value is None or isinstance(value, bool | int | float | str | type):
            return self._leaf(value), 1
        key = id(value)
        if key in self._places:
            made = self._made.get(key)
            return made if made is not None and made[1] <= _SMALL else (_reference(self._places[key]), 1)
        if depth >= DEEPEST:
            return "…", 1
        self._known.append(value)
        self._places[key] = place or "the whole configuration"
        made = self._made[key] = self._opened(value, place, depth)
        return made

    def _opened(self, value: Any, place: str, depth: int) -> tuple[Any, int]:
        inside, why_not = attempt(lambda: (opened(value), ""), lambda error: (None, type(error).__name__))
        if why_not:
            return f"<{type(value).__name__}: it can't be opened: {why_not}>", 1
        if isinstance(inside, Mapping):
            made, size = self._several(((str(name), one) for name, one in inside.items()), place, depth)
            return made, size
        if isinstance(inside, list | tuple):
            made, size = self._several(((str(number), one) for number, one in enumerate(inside)), place, depth)
            return list(made.values()), size
        return (self._leaf(value), 1) if inside is value else self._of(inside, place, depth + 1)

    def _several(self, items: Iterable[tuple[str, Any]], place: str, depth: int) -> tuple[dict[str, Any], int]:
        made, size = {}, 1
        for name, one in items:
            made[name], more = self._of(one, f"{place}/{name}" if place else name, depth + 1)
            size += more
        return made, size


def _reference(place: str) -> str:
    """
    >>> _reference("actor/model"), _reference("/".join(["others/0"] * 9 + ["model"]))
    ('→ actor/model', '→ …/others/0/model')
    """
    return f"→ {place}" if len(place) <= _LONGEST_PLACE else f"→ …/{'/'.join(place.split('/')[-3:])}"


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

    made = partial(OmegaConf.to_container, config, throw_on_missing=False)
    # An interpolation that leads nowhere is shown as it is written.
    return attempt(lambda: made(resolve=True), lambda _: made(resolve=False))
