"""Tell of modules as they are imported, and of those that are there already. Nothing of a framework.

A finder at the front of ``sys.meta_path`` asks the others for the module and puts itself between it and its loader, for
the one moment in which the module is executed: the module has its own loader while it runs and after it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from probe.guard import Guard

_log = logging.getLogger("probe.adapters")

#: What is called with a module that has been imported.
Told = Callable[[ModuleType], None]


def when_imported(name: str, told: Told) -> None:
    """Call ``told`` with the module ``name``: now where it is imported already, else as soon as it is.

    A module that is being imported at this moment (which asks for its own package in a circle, or loads plugins) is
    told of at the next import of anything after it is complete. What ``told`` raises is logged and reaches nobody.

    Args:
        name: The module's full name.
        told: What is called, once.
    """
    module = sys.modules.get(name)
    if module is None:
        _FINDER.wanted.setdefault(name, []).append(told)
        _watch()
    elif _is_being_imported(module):
        _FINDER.unfinished.append((module, told))
        _watch()
    else:
        _tell(told, module)


def forget(told: Told) -> None:
    """Don't call ``told`` any more; the finder goes when nobody waits for a module."""
    for name, waiting in list(_FINDER.wanted.items()):
        left = [one for one in waiting if one != told]
        if left:
            _FINDER.wanted[name] = left
        else:
            del _FINDER.wanted[name]
    _FINDER.unfinished = [pair for pair in _FINDER.unfinished if pair[1] != told]
    if not _FINDER.wanted and not _FINDER.unfinished and _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)


def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
    """What the finder says of ``name``, for a finder that was asked before this one stood beside it.

    Args:
        name: The module's full name.
        path: As finders get it.
        target: As finders get it.
    """
    return _FINDER.find_spec(name, path, target)


class _Finder:
    """Finds what the finders after it find, and tells of it."""

    def __init__(self) -> None:
        self.wanted: dict[str, list[Told]] = {}
        self.unfinished: list[tuple[ModuleType, Told]] = []

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The spec of ``name`` where somebody waits for it; None leaves it to the other finders."""
        if self.unfinished:
            self._tell_of_finished()
        if name not in self.wanted:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec, self)
                return spec
        return None

    def _tell_of_finished(self) -> None:
        still = []
        unfinished, self.unfinished = self.unfinished, []
        for module, told in unfinished:
            if _is_being_imported(module):
                still.append((module, told))
            else:
                _tell(told, module)
        self.unfinished += still

    def executed(self, module: ModuleType) -> None:
        """The module has been executed: tell those who wait for it."""
        for told in self.wanted.pop(module.__name__, ()):
            _tell(told, module)


class _Loader:
    """Stands for a module's loader until the module has been executed."""

    def __init__(self, spec: Any, finder: _Finder) -> None:
        self._spec = spec
        self._loader = spec.loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> ModuleType | None:
        """As the module's own loader makes it."""
        create = getattr(self._loader, "create_module", None)
        made: ModuleType | None = None if create is None else create(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module with its own loader, and tell of it."""
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._finder.executed(module)


_FINDER: Final = _Finder()


def _watch() -> None:
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _tell(told: Told, module: ModuleType) -> None:
    failed = f"probe couldn't look at {module.__name__}; it is imported as it is"
    with Guard(module.__name__, failed, kind="adapter", log=_log):
        told(module)
