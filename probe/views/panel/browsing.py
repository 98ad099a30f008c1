"""The process beside a panel that reads for it: ``python -m probe.views.panel.browsing RUN``.

Each line of its input is a JSON object with ``of``, ``attempt`` (null shows each step of the newest that has it) and
``step``, and its answer is one line:

=========== ================================================== ===================================================
``of``      takes                                              answer
=========== ================================================== ===================================================
``rows``    ``from`` and ``count``, a window of the lines, at  ``lines``, ``total`` (of all lines), ``answers`` (that
            most :data:`MOST_LINES`; the fields of             are among them), ``kept`` (that have a row in this
            :class:`~probe.analysis.step_samples.Wish`;        step), ``sampled`` (of the step, null where that isn't
            ``anew``, whether to read the step again; ``key``, known), ``near`` (a step with samples), ``note``,
            of an answer                                       ``place`` (of that answer's line, null where it isn't
                                                               among them)
``tokens``  ``key``: process, batch and row of an answer       ``answer``, its line; ``tokens``; ``arrays``, by name
                                                               float32 little-endian in base64; ``ids``; ``prompt``
                                                               and ``text``, null where they aren't recorded; ``cut``,
                                                               letters that they are shortened by
``batches``                                                    :func:`probe.views.panel.what_if.told_batches`
``what_if`` ``where`` (role and phase), ``changes`` by name,   :meth:`probe.views.panel.what_if.WhatIfs.answer`; it
            ``steps``: how many, up to ``step``                may take the same question several times
``lanes``                                                      :func:`probe.views.panel.lanes.told`
``funnel``                                                     :func:`probe.views.panel.funnel.told`
=========== ================================================== ===================================================

What can't be answered has ``refused``, the reason. A step is read when it is asked for, and held until another one is.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from probe.analysis.step_samples import (
    MOST_LETTERS,
    Arranged,
    StepSamples,
    Wish,
    key_of,
    near,
    searched,
    tokens_of,
)
from probe.errors import InputError, ProbeError
from probe.runs.reader import Run
from probe.views.panel import funnel, lanes
from probe.views.panel.what_if import WhatIfs

#: Lines of one answer.
MOST_LINES: Final = 200

#: Answers that a saved copy keeps, those of them for being trained on other tokens than were sampled, and those whose
#: tokens it keeps within so many letters.
KEPT_ANSWERS: Final = 24
KEPT_CHANGED: Final = 8
KEPT_BLOCKS: Final = 4
KEPT_LETTERS: Final = 96 * 1024

#: What is told of a step as it is.
_OF_STEP: Final[Mapping[str, Callable[[Run, int], dict[str, Any]]]] = {"lanes": lanes.told, "funnel": funnel.told}


class Browsing:
    """Answers what is asked about the samples of one run.

    Args:
        path: Path or URL of the run directory.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._run: Run | None = None
        self._step: StepSamples | None = None
        self._arranged: tuple[Wish, Arranged] | None = None
        self._what_if: WhatIfs | None = None

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one question; see the module."""
        try:
            run = self._of(asked.get("attempt"))
            step = asked["step"]
            if asked["of"] == "tokens":
                return told_tokens(run, self._read(run, step, anew=False), asked["key"])
            if asked["of"] == "rows":
                return self._rows(run, asked)
            if asked["of"] == "batches":
                return self._of_what_if(run).batches(step)
            if asked["of"] == "what_if":
                where = (asked["where"][0], asked["where"][1])
                return self._of_what_if(run).answer(step, where, asked["changes"], asked.get("steps", 1))
            if asked["of"] in _OF_STEP:
                return _OF_STEP[asked["of"]](run, step)
            raise InputError(f"of: got {asked['of']!r}, expected rows, tokens, batches, what_if, lanes or funnel")
        except (ProbeError, KeyError, TypeError, ValueError) as error:
            return {"refused": str(error) if isinstance(error, ProbeError) else f"{type(error).__name__}: {error}"}

    def close(self) -> None:
        """Let go of the run."""
        if self._run is not None:
            self._run.close()

    def _rows(self, run: Run, asked: Mapping[str, Any]) -> dict[str, Any]:
        found = self._read(run, asked["step"], anew=asked.get("anew") is True)
        wish = Wish(**{name: asked[name] for name in Wish.__dataclass_fields__ if name in asked})
        if self._arranged is None or self._arranged[0] != wish:
            hits = searched(run, found.step, wish.search) if wish.search and found.answers else None
            self._arranged = wish, found.arranged(wish, hits)
        begin, count = int(asked.get("from", 0)), min(int(asked.get("count", MOST_LINES)), MOST_LINES)
        near_by = None if found.answers else near(run, found.step)
        place = _place(found, self._arranged[1], asked.get("key"))
        return told_rows(found, self._arranged[1], begin, count) | {"near": near_by, "place": place}

    def _read(self, run: Run, step: int, *, anew: bool) -> StepSamples:
        if anew or self._step is None or self._step.step != step:
            self._step, self._arranged = StepSamples.read(run, int(step)), None
        return self._step

    def _of(self, attempt: int | None) -> Run:
        if self._run is None or self._run.shown_attempt != attempt:
            self.close()
            self._run, self._step, self._what_if = Run(self._path, attempt), None, None
        return self._run

    def _of_what_if(self, run: Run) -> WhatIfs:
        if self._what_if is None:
            self._what_if = WhatIfs(run)
        return self._what_if


def told_rows(found: StepSamples, arranged: Arranged, begin: int, count: int) -> dict[str, Any]:
    """A window of lines as a page is told them."""
    return {
        "step": found.step,
        "total": len(arranged.lines),
        "answers": arranged.answers,
        "kept": len(found.answers),
        "sampled": found.sampled,
        "note": arranged.note,
        "from": begin,
        "lines": [_line(found, kind, at) for kind, at in arranged.lines[begin : begin + count]],
    }


def _place(found: StepSamples, arranged: Arranged, key: Any) -> int | None:
    """Where the line of an answer stands; None where it isn't among them."""
    if key is None:
        return None
    at = next((at for at, one in enumerate(found.answers) if key_of(one) == tuple(key)), None)
    return None if at is None or ("answer", at) not in arranged.lines else arranged.lines.index(("answer", at))


def _line(found: StepSamples, kind: str, at: int) -> dict[str, Any]:
    if kind == "answer":
        one = found.answers[at]
        return {"kind": kind, "key": key_of(one), "of": found.group_of[at], **one}
    group = found.groups[at]
    members = [found.answers[number] for number in group.members]
    differences = [one["difference_largest"] for one in members if one["difference_largest"] is not None]
    return {
        "kind": kind,
        "of": at,
        "group": group.name,
        "answers": len(members),
        "reward": _mean([one["reward"] for one in members]),
        "tokens": _mean([one["response_tokens"] for one in members]),
        "difference_largest": max(differences, key=abs, default=None),
        "equal": group.equal,
        "truncated": sum(one["truncated"] is True for one in members),
        "dropped": sum(bool(one["dropped"]) for one in members),
        "failed": sum(one["has_error"] is True for one in members),
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def told_tokens(run: Run, found: StepSamples, key: Any) -> dict[str, Any]:
    """One answer and its tokens, as a page is told them.

    Raises:
        InputError: There is no such answer.
    """
    process, batch_id, row = key
    at = next((at for at, one in enumerate(found.answers) if key_of(one) == (process, batch_id, row)), None)
    tokens = None if at is None else tokens_of(run, found.step, (process, batch_id, row))
    if at is None or tokens is None:
        raise InputError(f"key: got {key!r}, expected process, batch and row of an answer of step {found.step}")
    texts = (tokens.prompt, tokens.text)
    return {
        "step": found.step,
        "answer": _line(found, "answer", at),
        "tokens": found.answers[at]["response_tokens"],
        "arrays": {name: _packed(values) for name, values in tokens.arrays.items()},
        "ids": tokens.ids,
        "prompt": texts[0] and texts[0][:MOST_LETTERS],
        "text": texts[1] and texts[1][:MOST_LETTERS],
        "cut": sum(max(len(text) - MOST_LETTERS, 0) for text in texts if text),
    }


def _packed(values: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode()


def kept(run: Run) -> dict[str, Any] | None:
    """What a saved copy keeps of the samples, without texts: the worst answers of the last step that has any, some that
    are trained on other tokens than were sampled, and the tokens of a few; None where the run has no samples.

    Returns:
        ``rows`` and ``tokens``, answers as above to the questions that a page asks.
    """
    step = near(run, 2**40)
    if step is None:
        return None
    found = StepSamples.read(run, step)
    whole = found.arranged(Wish())
    held, with_blocks = _kept_answers(found, [at for kind, at in whole.lines if kind == "answer"])
    lines = [one for one in whole.lines if (one[1] in held if one[0] == "answer" else False)]
    tokens, letters = [], 0
    for at in with_blocks:
        one = told_tokens(run, found, key_of(found.answers[at])) | {"prompt": None, "text": None, "ids": [], "cut": 0}
        letters += sum(map(len, one["arrays"].values()))
        if letters <= KEPT_LETTERS:
            tokens.append(one)
    return {"rows": told_rows(found, Arranged(lines, len(held)), 0, MOST_LINES), "tokens": tokens}


def _kept_answers(found: StepSamples, worst: list[int]) -> tuple[set[int], list[int]]:
    """The answers that a saved copy keeps, and those of them whose tokens it keeps.

    Args:
        found: All answers of the step.
        worst: All of them, the worst first.
    """
    changed = [at for at in worst if found.answers[at]["changed"]]
    # A finding leads to the first: of it the place of the first other token is known.
    changed.sort(key=lambda at: found.answers[at]["changed_at"] is None)
    first = {at for at in changed[:1] if found.answers[at]["changed_at"] is not None}
    blocks = [at for at in worst if found.answers[at]["block"]]
    blocks = sorted(blocks, key=lambda at: at not in first)[:KEPT_BLOCKS]
    held = dict.fromkeys((*blocks, *changed[:KEPT_CHANGED], *worst))
    return set([*held][:KEPT_ANSWERS]), blocks


def serve(browsing: Browsing, lines: Any, write: Callable[[str], object]) -> None:
    """Answer each of ``lines``."""
    for line in lines:
        write(json.dumps(browsing.answer(json.loads(line)), default=str) + "\n")


def main() -> None:
    """Answer about the run that the command line names, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted cell is none of its business
    if hasattr(os, "nice"):
        os.nice(5)  # whoever trains on this machine goes first
    with os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1) as answers:
        os.dup2(2, 1)  # what anybody prints is no answer
        try:
            serve(Browsing(sys.argv[1]), sys.stdin, answers.write)
        except BrokenPipeError:
            os._exit(0)  # nobody reads any more, and flushing what is left would fail again


if __name__ == "__main__":
    main()
