"""What is said of the run as a whole: its parameters, description, tags and layout. The newest of each counts.

It is kept in the run's directory until every backend has it, so that one that is away gets it when it's back, from this
process or the next. Which backend has what stands in ``<backend>.notes.json`` there.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probe.errors import InputError, InputTypeError
from probe.tracking.backends.base import NOTES, Backend
from probe.tracking.state import State, file_name

#: Charts by title, by category: ``{"kind": "line" | "margin", "keys": [...]}``.
Charts = Mapping[str, Mapping[str, Mapping[str, Any]]]


class Notes:
    """The newest of each kind, and what each backend has of them.

    Args:
        directory: The directory of the run; None keeps them for this process only.
        backends: By name.
        private: Whether the file is for its owner alone: it holds secrets of a configuration.
    """

    def __init__(self, directory: Path | None, backends: Mapping[str, Backend], *, private: bool = False) -> None:
        self._backends = backends
        self._guard = threading.Lock()
        self._kept = State(directory, "notes", private=private)
        kept = self._kept.read().items()
        self._latest: dict[str, Any] = {
            kind: one for kind, one in kept if kind in NOTES and isinstance(one, str if kind == "describe" else dict)
        }
        self._marks = {name: _marks(directory, name) for name in backends}
        self._sent: dict[str, dict[str, Any]] = {name: mark.read() for name, mark in self._marks.items()}

    def kinds(self) -> list[str]:
        """Those that an earlier process has left."""
        return list(self._latest)

    def keep(self, kind: str, content: Any) -> None:
        """Keep a new one. Tags are added to those that there are; the others are replaced."""
        with self._guard:
            before = self._latest.get(kind)
            self._latest[kind] = {**before, **content} if kind == "tag" and before else content
            latest = dict(self._latest)
        self._kept.write(latest)

    def takers(self, kind: str) -> list[str]:
        """The backends that take that kind."""
        return [name for name, backend in self._backends.items() if backend.takes(kind)]

    def send(self, name: str, kind: str) -> None:
        """Give a backend the newest of a kind, if it hasn't got it. On that backend's thread."""
        backend = self._backends[name]
        with self._guard:
            content = self._latest[kind]
        if self._sent[name].get(kind) == _digest(backend, content) and not backend.repeats_notes:
            return
        getattr(backend, kind)(content)
        self._sent[name][kind] = _digest(backend, content)
        self._marks[name].write(self._sent[name])


def unsent_notes(directory: Path, backends: Sequence[str]) -> dict[str, list[str]]:
    """The kinds that backends of a run's directory never got, by backend. Reads only."""
    kept = [kind for kind in State(directory, "notes").read() if kind in NOTES]
    found = {name: [kind for kind in kept if kind not in _marks(directory, name).read()] for name in backends}
    return {name: kinds for name, kinds in found.items() if kinds}


def _marks(directory: Path | None, name: str) -> State:
    return State(directory, f"{file_name(name)}.notes")


def _digest(backend: Backend, content: Any) -> str:
    """Of what was sent and where to: another run there, such as after a deletion, is told again."""
    return hashlib.sha256(json.dumps([backend.location, backend.run_id, content], sort_keys=True).encode()).hexdigest()[
        :32
    ]


def checked_markdown(markdown: Any) -> str:
    """The description.

    Raises:
        InputTypeError: It isn't a str.
    """
    if not isinstance(markdown, str):
        raise InputTypeError(f"markdown: got {type(markdown).__name__}, expected a str")
    return markdown


def checked_tags(tags: Any) -> dict[str, str]:
    """The tags, a copy; values that aren't texts become their ``str``.

    Raises:
        InputTypeError: It isn't a mapping, or a name isn't a non-empty str.

    >>> checked_tags({"world_size": 8, "model": "small"})
    {'world_size': '8', 'model': 'small'}
    """
    if not isinstance(tags, Mapping):
        raise InputTypeError(f"tags: got {type(tags).__name__}, expected a mapping of names to texts")
    bad = [name for name in tags if not isinstance(name, str) or not name]
    if bad:
        raise InputTypeError(f"tags: got the name {bad[0]!r}, expected a non-empty str")
    return {name: str(value) for name, value in tags.items()}


def checked_charts(charts: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """The layout, a copy.

    Raises:
        InputTypeError: It isn't category → title → chart.
        InputError: A chart is neither "line" nor "margin", has no keys, or a margin's keys don't come in threes.

    >>> checked_charts({"memory": {"peak": {"kind": "line", "keys": ("a", "b")}}})
    {'memory': {'peak': {'kind': 'line', 'keys': ['a', 'b']}}}
    """
    if not isinstance(charts, Mapping) or not all(isinstance(titles, Mapping) for titles in charts.values()):
        raise InputTypeError(
            f"charts: got {charts!r:.80}, expected a mapping of categories to mappings of titles to charts"
        )
    return {
        str(category): {str(title): _checked_chart(f"{category}/{title}", chart) for title, chart in titles.items()}
        for category, titles in charts.items()
    }


def _checked_chart(where: str, chart: Any) -> dict[str, Any]:
    if not isinstance(chart, Mapping):
        raise InputTypeError(f"charts: {where}: got {type(chart).__name__}, expected a mapping with kind and keys")
    kind, keys = chart.get("kind", "line"), chart.get("keys")
    if kind not in ("line", "margin"):
        raise InputError(f"charts: {where}: got the kind {kind!r}, expected 'line' or 'margin'")
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        raise InputTypeError(f"charts: {where}: got the keys {keys!r}, expected a list of names")
    if not keys or (kind == "margin" and len(keys) % 3):
        expected = "threes: smallest, mean, largest" if kind == "margin" else "at least one"
        raise InputError(f"charts: {where}: got {len(keys)} keys, expected {expected}")
    return {"kind": kind, "keys": list(keys)}
