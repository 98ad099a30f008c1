"""The samples of the run that a panel shows, its what-ifs and the lanes of its replicas, from a process of its own that
is begun by the first question.

Nothing is read, and nothing sent, before somebody opens the view. The reading is done in another process
(:mod:`probe.views.panel.browsing`), as the panel's may be the one that trains; it ends when nobody has asked for long.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from probe.analysis.step_samples import ONLY, SORTS
from probe.views.panel.aside import END_S, Aside

#: Seconds without a question after which the process ends.
IDLE_S: Final = 60.0

#: Questions that may wait; a page asks again for what was not answered.
WAITING: Final = 32

#: Letters of a search, and of a name.
MOST_SEARCH: Final = 200
MOST_NAME: Final = 10_000

#: Settings of one what-if.
MOST_CHANGES: Final = 16

_MOST: Final = 2**40


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST


def _is_key(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and all(map(_is_whole, value[1:]))


def _is_where(value: Any) -> bool:
    names = isinstance(value, list) and len(value) == 2
    return names and all(one is None or (isinstance(one, str) and len(one) <= MOST_NAME) for one in value)


def _are_changes(value: Any) -> bool:
    """Settings by name; which there are, and what they may be, is said by who answers."""
    if not isinstance(value, dict) or len(value) > MOST_CHANGES:
        return False
    texts = [*value, *(one for one in value.values() if isinstance(one, str))]
    kinds = (bool, int, str)
    return all(len(one) <= MOST_NAME for one in texts) and all(isinstance(one, kinds) for one in value.values())


#: What a page may say, and of which kind it must be.
_FIELDS: Final[dict[str, Callable[[Any], bool]]] = {
    "of": lambda one: isinstance(one, str) and one in _NEEDED,
    "step": _is_whole,
    "from": lambda one: _is_whole(one) and one >= 0,
    "count": lambda one: _is_whole(one) and one >= 0,
    "sort": lambda one: isinstance(one, str) and one in SORTS,
    "only": lambda one: isinstance(one, str) and one in ONLY,
    "search": lambda one: isinstance(one, str) and len(one) <= MOST_SEARCH,
    "group": lambda one: one is None or (isinstance(one, str) and len(one) <= MOST_NAME),
    "micro_batch": lambda one: one is None or _is_whole(one),
    "phase": lambda one: isinstance(one, str) and len(one) <= MOST_NAME,
    "process": lambda one: isinstance(one, str) and len(one) <= MOST_NAME,
    "anew": lambda one: isinstance(one, bool),
    "key": _is_key,
    "where": _is_where,
    "changes": _are_changes,
    "steps": lambda one: _is_whole(one) and one >= 1,
}

#: What each kind of question has to say.
_NEEDED: Final[dict[str, set[str]]] = {
    "rows": {"of", "step"},
    "tokens": {"of", "step", "key"},
    "batches": {"of", "step"},
    "lanes": {"of", "step"},
    "funnel": {"of", "step"},
    "what_if": {"of", "step", "where", "changes"},
}


def question_of(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a page asks, where it can be asked; None where it can't be understood."""
    found = {name: content[name] for name in _FIELDS if name in content}
    said = all(_FIELDS[name](value) for name, value in found.items())
    return found if said and "of" in found and _NEEDED[found["of"]] <= found.keys() else None


class Samples:
    """Answers questions about samples, what-ifs and lanes.

    Args:
        path: Path or URL of the run directory.
        idle_s: Seconds without a question after which the process ends.
        command: What answers as :mod:`probe.views.panel.browsing` does; None is that.
    """

    def __init__(self, path: str, idle_s: float = IDLE_S, command: Sequence[str] | None = None) -> None:
        command = command or [sys.executable, "-P", "-m", "probe.views.panel.browsing", path]
        self.aside = Aside(command, "reads the run")
        self._idle_s = idle_s
        self._asking = threading.Lock()
        self._beginning = threading.Lock()
        self._waiting: queue.Queue[tuple[dict[str, Any], Callable[[dict[str, Any]], None]] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._used = 0.0
        self._closed = False

    def ask(self, content: Mapping[str, Any], attempt: int | None) -> dict[str, Any]:
        """Ask, and wait for the answer. By any thread.

        Args:
            content: What a page sends.
            attempt: The attempt that is shown; None shows each step of the newest that has it.

        Returns:
            The answer, with the question's number; ``refused`` says why there is none.
        """
        question = question_of(content)
        refusal = "what was asked can't be understood"
        answer = self._answer(question | {"attempt": attempt}) if question else {"refused": refusal}
        return {"v": 1, "t": "b", "id": content.get("id"), "q": content.get("q"), "answer": answer}

    def submit(
        self, content: Mapping[str, Any], attempt: int | None, deliver: Callable[[dict[str, Any]], None]
    ) -> None:
        """Ask without waiting: the answer is given to ``deliver``, by another thread."""
        if self._closed:
            return
        self._begin()
        if self._waiting.qsize() < WAITING:
            self._waiting.put(({**content, "attempt": attempt}, deliver))

    def close(self) -> None:
        """End it, also while something is asked. Safe to call twice."""
        with self._beginning:
            self._closed = True
        self.aside.close()
        self._waiting.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(END_S)
        with self._asking:
            self.aside.end()

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        with self._asking:
            self._used = time.monotonic()
            self._begin()  # it ends the process when nobody asks any more
            try:
                return self.aside.ask(question)
            except (OSError, ValueError) as error:
                self.aside.end()
                return {"refused": f"{type(error).__name__}: {error}"}

    def _begin(self) -> None:
        with self._beginning:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="probe-panel-samples", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            try:
                one = self._waiting.get(timeout=self._idle_s)
            except queue.Empty:
                with self._asking:
                    if time.monotonic() - self._used >= self._idle_s:
                        self.aside.end()
                continue
            if one is not None and not self._closed:
                content, deliver = one
                deliver(self.ask(content, content["attempt"]))
