"""Scopes as rows of the live table, and what one says about another: the rules of ``probe/runs/views.sql`` (``spans``),
row by row.

A scope's row is written when it ends, so that scopes inside come first, and what is true of them may be known only
later: then their rows are given once more. Rows may come in any order; the end is the same.
"""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from probe.live.tables import Words

#: Scopes, and cuts of batches, that are remembered; and of the cuts of one scope the newest.
REMEMBERED: Final = 8192
CUTS: Final = 64

#: Process and number of a scope; and process, number of the scope that cut it, and index of a micro-batch.
Key = tuple[int, int]
Slot = tuple[int, int, int]


class Cut(NamedTuple):
    """A scope has cut a batch, and one of its micro-batches has this many tokens, in so many slots of a rectangle (−1
    where there is none)."""

    at: float
    batch: int
    tokens: int
    slots: int


@dataclass(slots=True, kw_only=True)
class Span:
    """A scope: a row of the live table, with its columns; texts are codes. ``parent`` is 0 where the process itself is
    around it, −1 where that isn't known.

    Attributes:
        home: The scope that cut its batch, where that is known; in no column.
    """

    step: int
    rank: int
    process: int
    role: int
    phase: int
    kind: int
    name: int
    micro_batch: int
    scope: int
    parent: int
    begin: float
    end: float
    peak: float = math.nan
    reserved_peak: float = math.nan
    at_begin: float = math.nan
    at_end: float = math.nan
    peak_kind: int = -1
    level: int = -1
    batch: int = -1
    tokens: int = -1
    slots: int = -1
    maker: int = 0
    home: int | None = None

    @property
    def key(self) -> Key:
        return self.process, self.scope

    @property
    def around(self) -> Key:
        """The scope that it lies in."""
        return self.process, self.parent

    @property
    def is_outermost(self) -> bool:
        """Whether the process itself is around it."""
        return self.parent == 0


class Nesting:
    """Remembers the newest scopes and cuts.

    Args:
        words: The texts that the rows' numbers stand for.
    """

    def __init__(self, words: Words) -> None:
        self.spans: dict[Key, Span] = {}
        self.cuts: dict[Slot, list[Cut]] = {}
        self.better = False  # a peak is known of which more is known than "at most"
        self._inside: dict[Key, tuple[float, float]] = {}  # largest peak of the scopes in it: known well, any
        self._children: dict[Key, list[Key]] = {}
        self._waiting: dict[Key, list[Key]] = {}  # by the scope that must be known first: micro-batches
        self._runs: dict[Slot, list[tuple[float, Key]]] = {}  # by where the batch was cut
        self._newest: dict[int, float] = {}  # by process: when the newest micro-batch began
        self._paths: dict[tuple[int, str], list[Key]] = {}  # scopes of calls, by the path of the scope around
        self._changed: dict[Key, None] = {}
        self._at_most, self._step, self._micro, self._phase, self._inner = (
            words.code(one) for one in ("at_most", "step", "micro_batch", "phase", "inner")
        )

    def changed(self) -> list[Span]:
        """The scopes that are new or have changed since the last call; they may change again with the next one."""
        found = [self.spans[key] for key in self._changed]
        self._changed.clear()
        self._forget()
        return found

    def _forget(self) -> None:
        if len(self.spans) > REMEMBERED:
            ended = (key for key, span in self.spans.items() if not math.isnan(span.end))
            for key in list(itertools.islice(ended, len(self.spans) - REMEMBERED)):
                del self.spans[key]
        maps: list[dict[Any, Any]] = [self.cuts, self._inside, self._children, self._waiting, self._runs, self._paths]
        for known in maps:
            while len(known) > REMEMBERED:
                del known[next(iter(known))]

    # ------------------------------------------------------------------------------------------- what comes in

    def add(self, span: Span) -> None:
        """A scope has begun or ended."""
        key = span.key
        old = self.spans.pop(key, None)
        if old is not None:
            self._leave_home(old)
        self.spans[key] = span
        self._changed[key] = None
        if old is None and span.parent >= 0 and not span.is_outermost:
            self._children.setdefault(span.around, []).append(key)
        self._settle(span)
        self._tell_outside(span)
        if old is None:
            self._known(span)

    def add_call(self, span: Span, path: str, around: str) -> None:
        """A scope has ended of which only paths tell where it lies: its own, and that of the scope around it."""
        self.add(span)
        for key in self._paths.pop((span.process, path), ()):
            child = self.spans.get(key)
            if child is not None and child.begin >= span.begin:
                self._adopt(child, span)
        if around:
            self.await_path(span, around)

    def await_path(self, span: Span, around: str) -> None:
        """The scope around it, which has that path, isn't known yet."""
        self._paths.setdefault((span.process, around), []).append(span.key)

    def add_cut(self, slot: Slot, cut: Cut) -> None:
        """A batch was cut by the scope of ``slot``."""
        cuts = self.cuts.setdefault(slot, [])
        bisect.insort(cuts, cut)
        del cuts[:-CUTS]
        if cut.at <= self._newest.get(slot[0], -math.inf):  # late: it may be of one that has begun
            for span in list(self.spans.values()):
                if span.process == slot[0] and span.micro_batch == slot[2] and span.kind == self._micro:
                    self._find_home(span)

    def restore(self, span: Span) -> None:
        """A scope whose row has been given, as it stands there; those inside come first."""
        told = (span.level, span.maker, span.batch, span.tokens, span.slots)
        self.add(span)
        span.level, span.maker, span.batch, span.tokens, span.slots = told
        self._changed.clear()

    # ---------------------------------------------------------------------------------------- what follows from it

    def _settle(self, span: Span) -> None:
        span.level = self._level(span)
        span.maker = self._maker(span)
        if span.kind == self._micro and span.micro_batch >= 0:
            self._newest[span.process] = max(self._newest.get(span.process, -math.inf), span.begin)
            self._find_home(span)

    def _level(self, span: Span) -> int:
        if span.kind in (self._step, self._micro):
            return int(span.kind)
        if span.phase < 0:
            return self._inner
        outer = self.spans.get(span.around)
        if span.is_outermost:
            found = True
        elif outer is None:
            found = span.kind == self._phase
        else:
            found = outer.kind == self._step or outer.phase < 0
        return self._phase if found else self._inner

    def _maker(self, span: Span) -> int:
        if math.isnan(span.peak) or (self.better and span.peak_kind == self._at_most):
            return 0
        return int(span.peak > self._inside.get(span.key, (-math.inf, -math.inf))[0 if self.better else 1])

    def _tell_outside(self, span: Span) -> None:
        """Its peak, to the scope around it."""
        well = span.peak_kind != self._at_most
        if math.isnan(span.peak) or (span.is_outermost and (self.better or not well)):
            return
        around = span.around
        known, any_ = self._inside.get(around, (-math.inf, -math.inf))
        self._inside[around] = (max(known, span.peak) if well else known, max(any_, span.peak))
        if well and not self.better:
            self.better = True
            changed = list(self.spans.values())
        else:
            changed = [one for one in (self.spans.get(around),) if one is not None]
        for one in changed:
            self._set(one, maker=self._maker(one))

    def _known(self, span: Span) -> None:
        """It is new: what its children are, and what waits for it, can be told."""
        own = span.key
        for key in self._children.get(own, ()):
            child = self.spans.get(key)
            if child is not None:
                self._set(child, level=self._level(child))
        for key in self._waiting.pop(own, ()):
            run = self.spans.get(key)
            if run is not None:
                self._find_home(run)

    def _adopt(self, child: Span, outer: Span) -> None:
        self._set(child, parent=outer.scope)
        self._children.setdefault(outer.key, []).append(child.key)
        self._set(child, level=self._level(child))
        waiting = self._waiting.pop((child.process, -1 - child.scope), [])
        for run in (child, *(self.spans[key] for key in waiting if key in self.spans)):
            if run.kind == self._micro:
                self._find_home(run)

    def _set(self, span: Span, **columns: int) -> None:
        for name, value in columns.items():
            if getattr(span, name) != value:
                setattr(span, name, value)
                self._changed[span.key] = None

    # -------------------------------------------------------------------------------------- whose batch it was

    def _find_home(self, run: Span) -> None:
        """Outward to the first scope that had cut a batch with such a micro-batch before it began."""
        self._leave_home(run)
        at = run
        while at.parent >= 0:
            cuts = self.cuts.get((run.process, at.parent, run.micro_batch))
            if cuts and cuts[0].at <= run.begin:
                self._enter_home(run, at.parent)
                return
            outer = None if at.is_outermost else self.spans.get(at.around)
            if outer is None:
                if not at.is_outermost:
                    self._waiting.setdefault(at.around, []).append(run.key)
                break
            at = outer
        else:  # a call whose surroundings aren't known yet
            self._waiting.setdefault((at.process, -1 - at.scope), []).append(run.key)
        self._set(run, batch=-1, tokens=-1, slots=-1)

    def _leave_home(self, run: Span) -> None:
        if run.home is not None:
            runs = self._runs.get((run.process, run.home, run.micro_batch), [])
            place = bisect.bisect_left(runs, (run.begin, run.key))
            if place < len(runs) and runs[place][1] == run.key:
                del runs[place]
                self._tell_batches((run.process, run.home, run.micro_batch), place)
            run.home = None

    def _enter_home(self, run: Span, home: int) -> None:
        run.home = home
        slot = (run.process, home, run.micro_batch)
        runs = self._runs.setdefault(slot, [])
        place = bisect.bisect_left(runs, (run.begin, run.key))
        runs.insert(place, (run.begin, run.key))
        self._tell_batches(slot, place)
        del runs[: -2 * CUTS]

    def _tell_batches(self, slot: Slot, place: int) -> None:
        """Of the runs from ``place`` on: those that begin later depend on which have begun before."""
        for _, key in self._runs[slot][place:]:
            run = self.spans.get(key)
            if run is not None:
                self._tell_batch(run, slot)

    def _tell_batch(self, run: Span, slot: Slot) -> None:
        cuts, runs = self.cuts.get(slot, []), self._runs[slot]
        newest = bisect.bisect_right(cuts, run.begin, key=lambda one: one.at) - 1
        if newest < 0:  # forgotten meanwhile: what was told stays
            return
        cut = cuts[newest]
        sure = newest == 0
        if not sure:
            before = cuts[newest - 1]
            first = bisect.bisect_left(runs, before.at, key=lambda one: one[0])
            sure = first < len(runs) and runs[first][0] < cut.at
        same = sure or cuts[newest - 1].tokens == cut.tokens
        batch, slots = (cut.batch, cut.slots) if sure else (-1, -1)
        self._set(run, batch=batch, tokens=cut.tokens if same else -1, slots=slots)
