"""Metric names as a backend can take them: a mapping under which two names never become one."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping

#: Told of a collision: the metric's name, the name that it would have got, and the one that it got.
OnCollision = Callable[[str, str, str], None]


class NameMap:
    """Gives each metric its name in one backend, the same one each time.

    A name is cleaned by the backend's rule. Where the result is taken by another metric, or where one would
    be a directory of the other (``a`` beside ``a/b``), a number is put behind the part that collides.

    Args:
        clean: The backend's rule, from any string to a legal name.
        on_collision: Is told once of each collision.
        known: Metric to backend name, from an earlier process of the same run.
        taken: Further names that the backend holds already, taken to be their own metrics'.
        directories: Whether ``a`` can't stand beside ``a/b``, as where names become paths.

    Attributes:
        changed: Metric to backend name, only those that differ.

    >>> names = NameMap(mlflow_name)
    >>> names("acc@5"), names("acc_at_5"), names("loss"), names("loss/actor")
    ('acc_at_5', 'acc_at_5_2', 'loss', 'loss_2/actor')
    >>> names.changed
    {'acc@5': 'acc_at_5', 'acc_at_5': 'acc_at_5_2', 'loss/actor': 'loss_2/actor'}
    """

    def __init__(
        self,
        clean: Callable[[str], str],
        on_collision: OnCollision | None = None,
        known: Mapping[str, str] | None = None,
        taken: Iterable[str] = (),
        directories: bool = True,
    ) -> None:
        self._clean = clean
        self._on_collision = on_collision
        self._names: dict[str, str] = {}
        self._used: set[str] = set()
        self._paths = directories
        self._directories: set[str] = set()
        self.changed: dict[str, str] = {}
        for name, mapped in (known or {}).items():
            self._keep(name, mapped)
        for name in taken:
            if name not in self._used:
                self._keep(name, name)

    def __call__(self, name: str) -> str:
        """The backend's name of the metric ``name``."""
        mapped = self._names.get(name)
        if mapped is None:
            wanted = self._clean(name)
            mapped = self._free(wanted)
            self._keep(name, mapped)
            if mapped != wanted and self._on_collision is not None:
                self._on_collision(name, wanted, mapped)
        return mapped

    def _keep(self, name: str, mapped: str) -> None:
        self._names[name] = mapped
        self._used.add(mapped)
        if self._paths:
            self._directories.update(_directories(mapped))
        if mapped != name:
            self.changed[name] = mapped

    def _free(self, wanted: str) -> str:
        segments = wanted.split("/")
        for place in range(len(segments) - 1 if self._paths else 0):
            segments[place] = self._directory(segments[:place], segments[place])
        head = "/".join(segments)
        for number in itertools.count(2):
            if head not in self._used and head not in self._directories:
                return head
            head = "/".join([*segments[:-1], f"{segments[-1]}_{number}"])
        raise AssertionError  # count() doesn't end

    def _directory(self, parents: list[str], segment: str) -> str:
        free = segment
        for number in itertools.count(2):
            if "/".join([*parents, free]) not in self._used:
                return free
            free = f"{segment}_{number}"
        raise AssertionError  # count() doesn't end


def _directories(name: str) -> list[str]:
    segments = name.split("/")
    return ["/".join(segments[:end]) for end in range(1, len(segments))]


_MLFLOW_LENGTH = 250
_MLFLOW_ILLEGAL = re.compile(r"[^\w./ :-]" if os.name != "nt" else r"[^\w./ -]")


def mlflow_name(name: str) -> str:
    """The rule of MLflow: letters, digits, ``_./:-`` and space; a relative path of at most 250 characters.

    ``@`` becomes ``_at_`` and ``%`` becomes ``_pct``, any other character that's illegal ``_``. Empty
    segments go, ``.`` and ``..`` become ``_`` and ``__``; what is too long ends in a checksum of the whole.

    >>> mlflow_name("memory/reserved(GiB)"), mlflow_name("clip%"), mlflow_name("//a//..//b/"), mlflow_name("")
    ('memory/reserved_GiB_', 'clip_pct', 'a/__/b', '_')
    """
    clean = _MLFLOW_ILLEGAL.sub("_", name.replace("@", "_at_").replace("%", "_pct"))
    segments = [segment for segment in clean.split("/") if segment]
    clean = "/".join("_" * len(segment) if segment in {".", ".."} else segment for segment in segments) or "_"
    if clean.startswith(".."):  # refused as if it led out of the directory, whatever follows
        clean = f"__{clean[2:]}"
    if len(clean) > _MLFLOW_LENGTH:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        clean = f"{clean[: _MLFLOW_LENGTH - 16].rstrip('/')}_{digest}"
    return clean


_SWANLAB_LENGTH = 255
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def swanlab_name(name: str) -> str:
    """The rule of SwanLab: no blank, ``.`` or ``/`` at the ends, no control characters, at most 255 characters.

    >>> swanlab_name("//a/b//"), swanlab_name("a\\tb"), swanlab_name("...")
    ('a/b', 'a_b', '_')
    """
    clean = _CONTROLS.sub("_", name.strip(" \t\n\r./")) or "_"
    if len(clean) > _SWANLAB_LENGTH:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        clean = f"{clean[: _SWANLAB_LENGTH - 9]}_{digest}"
    return clean
