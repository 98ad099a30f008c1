"""The process beside a panel that looks for findings: ``python -m probe.views.panel.looking RUN [--alone]``.

With ``--alone`` no other run is read.

Each line of its input is a JSON object: ``attempt`` (null shows each step of the newest that has it) and ``whole``
(whether to look for everything; else for what an alarm may come of, and the rest stays as it was found) and ``live``
(false where nobody writes any more). Its answer is one line: ``findings``, ``post_mortem`` (of a run that has failed,
else null), ``ledger`` (where the tokens went, see :func:`probe.views.panel.funnel.kept`, null where no samples were
recorded), ``disagreement`` (why rollout and training disagree, see :func:`probe.views.panel.disagree.kept`, else
null), ``samples`` (what a saved copy keeps of them, see :func:`probe.views.panel.browsing.kept`, else null),
``what_if`` (the batches of the last step that has ended, see :func:`probe.views.panel.what_if.told_batches`, else
null), ``long_tail`` (the lanes of the replicas of the last step that has ended, see
:func:`probe.views.panel.lanes.told`, else null), ``outlook`` (what comes with advice, see
:func:`probe.views.panel.outlook.told`, else null), ``failed`` (what couldn't be looked for, and why) and ``cpu_s``,
the seconds of CPU that it took since the last answer, at first with its start. It ends with its input.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from probe.analysis.advice import Advice, advise
from probe.analysis.advice.copying import copied
from probe.analysis.change import Change
from probe.analysis.post_mortem import PostMortem, post_mortem
from probe.analysis.post_mortem.wording import parts
from probe.analysis.verdict import facts, with_advice
from probe.analysis.verdict.finding import FAILURES, Finding, Findings
from probe.analysis.verdict.verdict import LOOKS, OFTEN, Look
from probe.analysis.verdict.watch import Watch
from probe.errors import InputError
from probe.guard import Guard
from probe.runs.reader import Run
from probe.views.panel import disagree, funnel, lanes, outlook, what_if
from probe.views.panel.browsing import kept
from probe.views.panel.places import places
from probe.views.panel.verdict import ALONE

#: Findings of each kind, and characters of a text, that a page is told.
MOST: Final = 30
MOST_LETTERS: Final = 800
#: Letters of a query: one that is longer isn't told, as a part of it would be wrong.
MOST_SQL: Final = 4000
#: What of its place.
PLACE: Final = ("step", "role", "phase", "micro_batch", "rank", "process", "token")
#: What follows from one finding, and is told with it.
MOST_FOLDED: Final = 10
#: Of each part of a post-mortem: lines or rows, letters of one, and of a text such as a traceback, whose end counts.
PART_ROWS: Final = 30
PART_LETTERS: Final = 300
PART_TEXT: Final = 6000
#: Steps from which on advice is worked out, and how many times more have to have ended before it is again.
ADVISED_STEPS: Final = 3
ADVISED_AGAIN: Final = 1.5
#: What stands beside the findings, in the order in which it is told that it couldn't be worked out.
BESIDE: Final = (
    *("post_mortem", "ledger and samples", "disagreement", "ways to answers", "advice", "outlook"),
    *("what if", "long tail"),
)

_log = logging.getLogger("probe.views.panel")


class Looker:
    """Looks at one run as often as it is asked to; what it has read of it isn't read again.

    Args:
        path: Path or URL of the run directory.
        looks: All that is looked for.
        often: Those of them that alarms may come of.
        beside: Whether earlier runs beside it may be read, for what came of their advice.
    """

    def __init__(
        self, path: str, *, looks: Sequence[Look] = LOOKS, often: Sequence[Look] = OFTEN, beside: bool = True
    ) -> None:
        self._path = path
        self._reads_others = beside
        self._looks = looks
        self._often = often
        self._run: Run | None = None
        self._watch: Watch | None = None
        self._post_mortem: dict[str, Any] | None = None
        self._ledger: dict[str, Any] | None = None
        self._disagreement: dict[str, Any] | None = None
        self._samples: dict[str, Any] | None = None
        self._places: dict[str, dict[str, Any]] = {}
        self._advice: Advice | None = None
        self._advised_steps = 0  # that had ended when it was worked out
        self._outlook: dict[str, Any] | None = None
        self._what_if: dict[str, Any] | None = None
        self._long_tail: dict[str, Any] | None = None
        self._failed: dict[str, str] = {}  # what of BESIDE couldn't be worked out, and why
        self._guards = {part: self._guard(part) for part in BESIDE}
        self._counted_s = 0.0

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What is found now.

        Raises:
            ProbeError: The run can't be read.
        """
        known = self._watch
        watch, run = self._of(asked.get("attempt"))
        whole = bool(asked.get("whole")) or watch is not known  # the first is of all
        found = watch.look(whole=whole)
        self._write_post_mortem(run, found)
        if whole:
            self._write_ledger(run)
            self._write_disagreement(run)
            self._write_places(run, found)
            self._write_advice(run, live=bool(asked.get("live")))
        if whole or self._what_if is None:  # so that it is there soon after the first step has ended
            self._write_what_if(run)
        if whole or self._long_tail is None:
            self._write_long_tail(run)
        if self._advice is not None:
            found = with_advice.advised(found, self._advice)
        spent_s = time.process_time()
        cpu_s, self._counted_s = spent_s - self._counted_s, spent_s
        failed = [*watch.failed, *(self._failed[part] for part in BESIDE if part in self._failed)]
        return {
            "findings": told(found, self._places),
            "post_mortem": self._post_mortem,
            "ledger": self._ledger,
            "disagreement": self._disagreement,
            "advice": None if self._advice is None else advised(run, self._advice),
            "samples": self._samples,
            "what_if": self._batches(),
            "long_tail": self._long_tail,
            "outlook": self._outlook,
            "failed": failed,
            "cpu_s": cpu_s,
        }

    def _guard(self, part: str) -> Guard:
        """The findings stand without it."""
        failed = f"{part} can't be worked out"
        return Guard(part, failed, kind="panel", tell=self._tell_failed, most=None, log=_log, level=logging.DEBUG)

    def _tell_failed(self, _kind: str, part: str, _message: str, error: BaseException | None, *_: object) -> None:
        self._failed[part] = f"{part}: {type(error).__name__}: {error}"

    def _beside(self, part: str) -> Guard:
        """For one more try: what failed before is said no more."""
        self._failed.pop(part, None)
        return self._guards[part]

    def _write_advice(self, run: Run, *, live: bool) -> None:
        """Which settings to change, once a run has steps to replay, and then again where it has many more or has ended:
        replaying takes as much as looking for everything.
        """
        steps = len(facts.ended(run).steps)
        again = self._advised_steps * ADVISED_AGAIN if live else self._advised_steps + 1
        if steps < max(ADVISED_STEPS, again):
            return
        self._advised_steps = steps
        with self._beside("advice"):
            try:
                self._advice = advise(run)
            except InputError:  # no micro-batches
                self._advice = None
            self._write_outlook(run, self._advice)

    def _write_outlook(self, run: Run, advice: Advice | None) -> None:
        """What comes with the advice; the advice stands without it."""
        self._outlook = None
        if advice is not None:
            with self._beside("outlook"):
                self._outlook = outlook.told(run, advice, beside=self._reads_others)

    def _write_ledger(self, run: Run) -> None:
        """Where the tokens went, and what a saved copy keeps of the samples; what was said last stays where it can't be
        worked out now.
        """
        with self._beside("ledger and samples"):
            self._ledger = funnel.kept(run)
            self._samples = kept(run)

    def _write_disagreement(self, run: Run) -> None:
        """Why rollout and training disagree; what was said last is true no more where that can't be worked out now."""
        self._disagreement = None
        with self._beside("disagreement"):
            self._disagreement = disagree.kept(run)

    def _write_places(self, run: Run, found: Findings) -> None:
        """Where findings lead among the samples; without it they lead to a step."""
        self._places = {}
        with self._beside("ways to answers"):
            self._places = places(run, found, self._disagreement)

    def _write_what_if(self, run: Run) -> None:
        """What a page needs to answer what-ifs; what was said last stays where it can't be worked out now."""
        with self._beside("what if"):
            self._what_if = what_if.kept(run)

    def _write_long_tail(self, run: Run) -> None:
        """The lanes of the replicas; what was said last stays where they can't be worked out now."""
        with self._beside("long tail"):
            self._long_tail = lanes.kept(run)

    def _batches(self) -> dict[str, Any] | None:
        """The batches that a page cuts anew, with what advice has worked out of memory."""
        told, advice = self._what_if, self._advice
        return told if told is None or advice is None else what_if.with_limits(told, advice)

    def _write_post_mortem(self, run: Run, found: Findings) -> None:
        """Of a run that something has ended."""
        self._post_mortem, guard = None, self._beside("post_mortem")
        if not any(one.name in FAILURES for one in found.alarms):
            return
        with guard:
            self._post_mortem = shown(post_mortem(run))

    def _of(self, attempt: int | None) -> tuple[Watch, Run]:
        if self._watch is None or self._run is None or self._run.shown_attempt != attempt:
            if self._run is not None:
                self._run.close()
            self._run = Run(self._path, attempt)
            self._advice, self._advised_steps, self._outlook = None, 0, None
            self._what_if, self._long_tail = None, None
            self._watch = Watch(self._run, looks=self._looks, often=self._often)
        return self._watch, self._run


def told(found: Findings, places: Mapping[str, Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
    """What a page is told of findings, worst first, as plain JSON: no rows, and not without bounds.

    Args:
        found: What was found.
        places: Where some of them lead among the samples, by name; see :func:`probe.views.panel.places.places`.

    >>> [one["sentence"] for one in told(Findings([Finding("tuning", "padding", "Padding fills 30 %.")]))]
    ['Padding fills 30 %.']
    """
    kinds = (found.of("alarm"), found.of("tuning"), found.of("fine"), found.withheld)
    ways = places or {}
    return [_plain(one, ways.get(one.name)) for each in kinds for one in each[:MOST]]


def _plain(one: Finding, place: Mapping[str, Any] | None) -> dict[str, Any]:
    where = {name: getattr(one.where, name) for name in PLACE}
    change = one.change
    return {
        "kind": one.kind,
        "name": one.name,
        "topic": one.topic,
        "sentence": _text(one.sentence),
        "why": _text(one.reasons),
        "where": where,
        "samples": None if place is None else dict(place),
        "since": one.since.step,
        "failure": one.name in FAILURES,
        "folded": _folded(one),
        "sql": _query(one),
        "change": None if change is None else _change(change),
    }


def _change(change: Change) -> dict[str, Any]:
    told: dict[str, Any] = {
        "advice": _text(change.advice),
        "setting": change.setting,
        "line": change.line,
        "value": None if change.value is None else str(change.value),
        "now": None if change.now is None else str(change.now),
    }
    if change.confidence is not None:  # it was replayed
        told["told"] = [_line(one) for one in change.beneath]  # the advice stands above it
    return told


def _line(value: str) -> str:
    """A line that isn't too long, as far in as it stands."""
    return value if len(value) <= PART_LETTERS else f"{value[: PART_LETTERS - 1]}…"


def _folded(one: Finding) -> list[str]:
    """What follows from it, a sentence each."""
    more = len(one.folded) - MOST_FOLDED
    return [
        *(_text(after.sentence) for after in one.folded[:MOST_FOLDED]),
        *([f"And {more} more."] if more > 0 else []),
    ]


def _query(one: Finding) -> str:
    """The query for the rows that show it; "" where there is none that can be told."""
    told = inspect.cleandoc(one.evidence_sql)
    return "" if one.kind in ("fine", "withheld") or len(told) > MOST_SQL else told


def _text(value: str, most: int = MOST_LETTERS) -> str:
    """A text that isn't too long, in one line."""
    value = " ".join(value.split())
    return value if len(value) <= most else f"{value[: most - 1]}…"


def advised(run: Run, found: Advice) -> dict[str, Any] | None:
    """What a page shows of advice, as plain JSON and bounded: each change as ``probe advise`` prints it, with the line
    that can be pasted, and all of them as what can be copied. None where there is none.
    """
    if not found.suggestions:
        return None
    changes = [
        {"told": [_line(one) for one in each.change.told], "line": each.change.line}
        for each in found.suggestions[:MOST]
    ]
    patch = copied(run, found)
    return {"changes": changes, "patch": patch if len(patch) <= PART_TEXT else ""}  # a part of one would be wrong


def shown(told: PostMortem) -> dict[str, Any] | None:
    """What a page shows of a post-mortem, as plain JSON and bounded; None where nothing has happened."""
    if not told.happened:
        return None
    return {
        "sentence": _text(told.sentence),
        "why": _text(told.why),
        "parts": [
            {
                "title": part.title,
                "lines": [_text(line, PART_LETTERS) for line in part.lines[:PART_ROWS]],
                "head": list(part.head),
                "rows": [[_text(cell, PART_LETTERS) for cell in row] for row in part.rows[:PART_ROWS]],
                "left_out": max(len(part.rows) - PART_ROWS, 0),
                "text": part.text if len(part.text) <= PART_TEXT else f"…{part.text[1 - PART_TEXT :]}",
                "long": part.long,
            }
            for part in parts(told)
        ],
    }


def serve(looker: Looker, lines: Any, write: Callable[[str], object]) -> None:
    """Answer each of ``lines``."""
    for line in lines:
        write(json.dumps(looker.answer(json.loads(line))) + "\n")


def main() -> None:
    """Look at the run that the command line names, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted cell is none of its business
    if hasattr(os, "nice"):
        os.nice(10)  # whoever trains on this machine goes first
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what anybody prints is no answer

        def write(line: str) -> None:
            answers.write(line)
            answers.flush()

        try:
            serve(Looker(sys.argv[1], beside=ALONE not in sys.argv[2:]), sys.stdin, write)
        except BrokenPipeError:
            os._exit(0)  # nobody reads any more, and flushing what is left would fail again


if __name__ == "__main__":
    main()
