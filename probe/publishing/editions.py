"""What the publisher makes of a run, time after time: numbers of new steps, figures, tables, words."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from probe.analysis.verdict.watch import Watch
from probe.guard import Guard, attempt
from probe.publishing import across_ranks, lengths, pictures, summary
from probe.publishing.messages import Arranged, Described, Done, Message, Numbers, Shown, Steps, Tagged, Trouble, encode
from probe.publishing.system import System
from probe.runs.files import RunFiles
from probe.runs.now import now
from probe.runs.outcome import outcome
from probe.runs.reader import Run
from probe.sql import Sql, literal, sql
from probe.tracking.backends.mlflow import END_TAG, NO_END

if TYPE_CHECKING:
    from probe.analysis.verdict import Findings

_log = logging.getLogger("probe.publishing")

#: Steps whose numbers are worked out at once; a run that was going for long before has many.
STEPS_AT_ONCE: Final = 500


class Editions:
    """Makes them of one run, and says them.

    Each part is made on its own: one that can't be is told once, and the others are there. What is the same as the
    last time isn't said again.

    Args:
        run: The run, read anew each time.
        say: Is called with each message.
        said: Steps whose numbers are in the backends already, as [first, last] pairs.
        names: Of these numbers.
        partly: Of other steps what the backends have: steps whose numbers, and pairs of name and step of histograms.
        host: The host of this process.
        pid: Of the process on this host that tracks, whose own numbers the backends have; None where nobody says: then
            rank 0's, and those of processes without a rank.
        folder: Where the training was started.
    """

    def __init__(
        self,
        run: Run,
        say: Callable[[Message], None],
        *,
        said: Iterable[Sequence[int]] = (),
        names: Iterable[str] = (),
        partly: tuple[Iterable[int], Iterable[Sequence[Any]]] = ((), ()),
        host: str = "",
        pid: int | None = None,
        folder: Path | None = None,
    ) -> None:
        self._run = run
        self._watch: Watch | None = None
        self._found: Findings | None = None
        self._say = say
        self._steps = Steps(said)
        self._numbered = set(partly[0])
        self._shown = {(str(name), int(step)) for name, step in partly[1]}
        self._host, self._pid = host, pid
        self._system = System(host)
        self._folder = folder
        self._margins = pictures.margins()
        self._names = set(names)  # of the numbers that were said, by whomever
        self._named: set[str] = set()  # those that were told
        self._digests: dict[str, bytes] = {}
        self._troubles: set[tuple[str, str]] = set()
        self._parts: dict[str, Guard] = {}

    def settled(self) -> bool:
        """Whether all ranks have ended every step that one of them has ended."""
        run = self._run.refresh()
        return across_ranks.ended(run) == across_ranks.ended(run, final=True)

    def numbers(self, *, final: bool = False) -> None:
        """Say the numbers of the steps that all ranks have ended since; the last time, of all that there are."""
        self._try("numbers", self._numbers, final)

    def _numbers(self, final: bool) -> None:
        run = self._run.refresh()
        steps = [step for step in across_ranks.ended(run, final=final) if step not in self._steps]
        for begin in range(0, len(steps), STEPS_AT_ONCE):
            chunk = steps[begin : begin + STEPS_AT_ONCE]
            self._try("numbers across ranks", self._say_numbers, chunk, newest=chunk[-1] == steps[-1])
            self._try("lengths of sequences", self._say_lengths, chunk)
            for step in chunk:
                self._steps.add(step)
        if steps:
            self._done(final=False)

    def verdict(self) -> None:
        """Say what is wrong, as far as it is time to look: labels, and the description where the worst is another."""
        self._try("verdict", self._verdict)

    def _verdict(self, *, whole: bool | None = None) -> None:
        if self._watch is None:
            self._watch = Watch(Run(self._run.path, self._run.shown_attempt))  # which it alone refreshes
        known = self._found
        if whole or self._watch.pause_s == 0:
            self._found = self._watch.look(whole=whole)
        if self._found is None or self._found is known:
            return
        self._fresh("verdict", Tagged({**summary.verdict_tags(self._found), END_TAG: self._end()}))
        if whole is None and known is not None and self._worst(known) != self._worst(self._found):
            self._describe(final=False)

    def _end(self) -> str:
        """How the run has ended, as its processes say."""
        told = outcome(now(RunFiles(self._run.path), self._run.shown_attempt))
        return NO_END if told is None else told.word

    @staticmethod
    def _worst(found: Findings) -> tuple[str, str] | None:
        return None if not found else (found[0].kind, found[0].name)

    def _describe(self, *, final: bool) -> None:
        text = summary.markdown(self._run.refresh(), final=final, found=self._found)
        self._fresh("summary", Described(text))

    def pictures(self, *, final: bool = False) -> None:
        """Say how the run stands: figures, tables, words, labels and the arrangement of charts."""
        self._try("pictures", self._pictures, final)
        self._done(final=final)

    def _done(self, *, final: bool) -> None:
        names, self._named = sorted(self._names - self._named), set(self._names)
        self._say(Done(final=final, steps=self._steps.ranges(), names=names))

    def _pictures(self, final: bool) -> None:
        run = self._run.refresh()
        self._try("labels", lambda: self._fresh("tags", Tagged(summary.tags(run, self._folder))))
        self._try(
            "charts", lambda: self._fresh("charts", Arranged(pictures.charts(self._logged(run), who=self._who(run))))
        )
        self._try("verdict", lambda: self._verdict(whole=True))
        self._try("summary", lambda: self._describe(final=final))
        step = self._newest(run)
        for name, panel in pictures.panels():
            self._try(name, self._say_panel, name, panel, step)

    def _say_numbers(self, steps: list[int], newest: bool) -> None:
        found = across_ranks.numbers(self._run, steps, self._margins)
        if newest and steps:
            found[steps[-1]].update(self._system.numbers(self._run))
        for step, values in found.items():
            if values:
                self._names.update(values)
            if values and step not in self._numbered:
                self._say(Numbers.from_floats(step, values))

    def _say_lengths(self, steps: list[int]) -> None:
        for step, name, histogram in lengths.histograms(self._run, steps):
            if (name, step) not in self._shown:
                self._say(Shown(name, step, histogram.plain(), newest=False))

    def _say_panel(self, name: str, panel: Any, step: int) -> None:
        for one, medium in pictures.draw(name, panel, self._run).items():
            self._fresh(one, Shown(one, step, medium.plain()), medium.plain())

    def _fresh(self, name: str, message: Message, content: Any = None) -> None:
        """Say it, unless its content is what was said under that name the last time."""
        digest = hashlib.sha256(repr(content).encode() if content else encode(message)).digest()
        if self._digests.get(name) != digest:
            self._say(message)
            self._digests[name] = digest

    def _logged(self, run: Run) -> list[str]:
        """The metrics that the backends have: what the process logged that tracks, and what is said here."""
        frame = run.sql(sql("select distinct key from scalars where {ours} order by key", ours=self._tracks(run)))
        return [*frame["key"], *sorted(self._names)]

    def _who(self, run: Run) -> str:
        """What the process is shown as that tracks: its rank, where it is known by now."""
        query = "select who(rank, process) as who from processes where {ours} order by rank nulls last"
        found = run.sql(sql(query, ours=self._tracks(run)))
        return str(found["who"][0]) if len(found) else "rank 0"

    def _tracks(self, run: Run) -> Sql:
        """The SQL condition for rows of the process that tracks: the newest of its number, one may have had several
        sessions.
        """
        processes = run.processes
        own = processes[(processes["pid"] == self._pid) & (processes["host"] == self._host)]
        if own.empty:
            return Sql("coalesce(rank, 0) = 0")
        return sql("process = {process}", process=literal(str(own.sort_values("wall_ns")["process"].iloc[-1])))

    def _newest(self, run: Run) -> int:
        steps = across_ranks.ended(run, final=True)
        return steps[-1] if steps else 0

    def _try(self, what: str, make: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        gone = None
        with self._part(what):  # one that can't be made must not take the others with it
            try:
                make(*args, **kwargs)
            except BrokenPipeError as error:  # nobody listens any more
                gone = error
        if gone is not None:
            raise gone

    def _part(self, what: str) -> Guard:
        if what not in self._parts:
            failed = f"{what} can't be made"
            self._parts[what] = Guard(what, failed, tell=self._tell, most=None, log=_log, level=logging.DEBUG)
        return self._parts[what]

    def _tell(self, kind: str, what: str, message: str, error: BaseException | None, *_: object) -> None:
        del kind
        told = attempt(lambda: repr(error), lambda _: message)
        if (what, told) not in self._troubles:
            self._troubles.add((what, told))
            trace = "" if error is None else "".join(traceback.format_exception(error))
            with contextlib.suppress(BrokenPipeError):  # nobody listens any more, as whatever is said next finds
                self._say(Trouble(what, told, trace))
