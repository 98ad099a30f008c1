"""A run directory as live tables: what is there when it is opened, and then what is new at each look.

It reads files only, so the run may be live or finished, written by this process or by others, here or behind a URL.
A look costs what is new, however long the run has been going.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from probe.dashboards.columns import LIVE
from probe.errors import InputError
from probe.guard import attempt
from probe.live import history, opening, thinning
from probe.live.completeness import Standing, quiet_since, standing_of
from probe.live.intake import Intake
from probe.live.tables import ROWS, SKETCH_ROWS, LiveTable, Words
from probe.live.thinning import Block
from probe.records import Process, place_of_process, who
from probe.runs import liveness
from probe.runs.files import RunFiles, damage
from probe.runs.follower import Follower
from probe.runs.now import now
from probe.runs.outcome import Outcome, outcome
from probe.runs.snapshot import Snapshot
from probe.runs.visibility import Shown
from probe.text import SOURCES

#: Rows of one table in one update; more are thinned to their extremes, and counted.
UPDATE_ROWS: Final = 2000

#: Seconds without a row after which a run that isn't finished is quiet. With memory recorded a row comes each half
#: second.
QUIET_S: Final = 10.0

#: Processes that aren't waited for and are named.
NAMED: Final = 8

#: Seconds without a row after which the processes are asked for, and seconds between two times.
ASK_S: Final = 2.0


class Feed:
    """Follows one run.

    Args:
        path: A run directory or the URL of one.
        rows: Rows that each live table keeps.
        update_rows: Of each table in one update.
        attempt: The one that is shown; None is what the newest has not hidden of each.
        sketched: Whether there are sketches, which only a page asks for.

    Attributes:
        files: The files of the run.
        info: What run.json says.
        words: The texts of the tables.
        tables: By name, bounded; also those of row types that a recorder brought, once there is a row.
        sketches: The same, much smaller; empty where none are made.
        attempt: The one that is shown; None is what the newest has not hidden of each.
        rebuilt: How often all was read anew, because a new attempt hid what was shown.
        repeated: Which steps were recorded more than once, as a sentence; "" where none were.
        attempts: Number, first and last step of each attempt as all was read last, where there are several.
        coalesced: Rows of updates that went beyond the budget; their extremes stayed.
        left_out: Rows of a large run that were not read when it was opened.

    Raises:
        RunNotFoundError: There is nothing.
        RunError: It isn't a run.
        SchemaVersionError: A newer probe wrote it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rows: int = ROWS,
        update_rows: int = UPDATE_ROWS,
        attempt: int | None = None,
        sketched: bool = True,
    ) -> None:
        self.files = RunFiles(path)
        self.path = self.files.location
        self.local = self.files.local
        self.info = self.files.info()
        self.words = Words()
        self.tables: dict[str, LiveTable] = {}
        self.sketches: dict[str, LiveTable] = {}
        self.rebuilt = 0
        self.repeated = ""
        self.attempts: list[tuple[int, int, int]] = []
        self.coalesced = 0
        self.left_out = 0
        self.attempt = attempt
        self._shown = Shown()
        self._rows = rows
        self._sketched = sketched
        self._update_rows = update_rows
        self._make_tables()
        self._intake = Intake(self.words, self.tables, self.info.wall_ns)
        self._follower: Follower | None = None
        self._asked_at = -math.inf
        self._alive = ""
        self._finished = False
        self._whole: Snapshot | None = None  # all rows at rest, once somebody has asked for them
        self._states_at = -math.inf
        self._known_states: Mapping[str, str] = {}

    def _make_tables(self) -> None:
        self.tables.update({name: LiveTable(name, self._rows) for name in LIVE})
        if self._sketched:
            self.sketches.update({name: LiveTable(name, min(SKETCH_ROWS, self._rows)) for name in LIVE})

    @property
    def opened(self) -> bool:
        """Whether what was there has been read."""
        return self._follower is not None

    @property
    def step(self) -> int | None:
        """The newest step, None before the first."""
        return None if self._intake.step < 0 else self._intake.step

    @property
    def lost(self) -> int:
        """Rows that the run's writers had to drop, as they told."""
        return self._intake.lost

    @property
    def rows_read(self) -> int:
        """Rows of the run's files that were read one by one. The tables have more of some and fewer of others."""
        return self._intake.rows

    @property
    def world_size(self) -> int:
        """How many ranks the run has, as they told; 0 when nobody has."""
        return self._intake.world_size

    @property
    def bad_lines(self) -> int:
        """Lines that are no rows, of those that were read one by one."""
        return 0 if self._follower is None else self._follower.bad_lines

    @property
    def damage(self) -> str:
        """Which damaged files are left out and what helps, as a sentence; "" where none are."""
        return damage(self.files.damaged)

    @property
    def started_s(self) -> float | None:
        """Wall-clock time of second 0, seconds since the epoch; None when it isn't known yet."""
        start = self._intake.clocks.start_ns
        return start / 1e9 if start else None

    @property
    def memory(self) -> str:
        """What memory means in this run where that isn't the memory of a device; "" where it is, or isn't known."""
        devices = {process.device for process in self._intake.writers.values() if process.device}
        return SOURCES["process_rss"] if devices == {"cpu"} else ""

    @property
    def newest_at(self) -> float | None:
        """Wall-clock time of the newest row that was read, by the clock of its host; None before the first."""
        start = self.started_s
        return None if start is None or math.isnan(self._intake.newest) else start + self._intake.newest

    def open(self) -> None:
        """Read what is there. A large run is not read row by row: see :mod:`probe.live.opening`.

        Raises:
            RunError: The files can't be read.
        """
        if self._follower is not None:
            return
        if self.attempt is None and not opening.is_large(self.files):
            self._follower = Follower(self.files)
            self._poll(None)
        else:
            self._load()

    def _load(self) -> None:
        loaded = attempt(self._loaded, self._loaded_without_damaged)
        self._follower, self.left_out, self._shown = loaded.follower, loaded.left_out, loaded.shown
        self.repeated, self.attempts = loaded.repeated, loaded.attempts
        self._store(loaded.blocks)

    def _loaded(self) -> opening.Loaded:
        return opening.load(self.files, self._intake, self.words, self._rows, self.attempt)

    def _loaded_without_damaged(self, error: Exception) -> opening.Loaded:
        """After an error of DuckDB's or pyarrow's: where it is for a damaged file, that one is left out now."""
        if not self.files.examine():
            raise error
        self._forget()
        return self._loaded()

    def show(self, attempt: int | None) -> None:
        """Show another attempt from now on.

        Args:
            attempt: Out of :attr:`attempts`, alone and whole; None is what the newest has not hidden of each.

        Raises:
            InputError: There is no such attempt; what is shown stays as it was.
            RunError: The files can't be read.
        """
        known = [number for number, _, _ in self.attempts]
        if attempt is not None and attempt not in known:
            raise InputError(
                f"attempt: got {attempt!r}, expected None or one of {', '.join(map(str, known)) or 'none'}"
            )
        self.attempt = attempt
        self._rebuild()

    def _rebuild(self) -> dict[str, Block]:
        """Read all anew: another attempt hides what was shown, or was chosen, or a rank is known now."""
        self.rebuilt += 1
        self._forget()
        self._load()
        return {}

    def _forget(self) -> None:
        self._whole = None
        self.tables.clear()
        self.sketches.clear()
        self._make_tables()
        self._intake = Intake(self.words, self.tables, self.info.wall_ns)

    def update(self) -> dict[str, Block]:
        """The rows that came since the last look, by table; tables without any are left out. They are in
        :attr:`tables` too.

        Raises:
            RunError: The files can't be read. Nothing is lost: the next look finds the rows.
        """
        if self._follower is None:
            self.open()
            return {}
        return self._poll(self._update_rows)

    def histories(self, wishes: Sequence[history.Wish]) -> list[history.History]:
        """What all complete steps of the run say, also those that the tables had to forget.

        Args:
            wishes: What is asked for.

        Returns:
            An answer for each, in their order.

        Raises:
            RunError: The files can't be read.
        """
        until = self.complete_step
        if until is None:
            return [history.missing(one) for one in wishes]
        declared = {name: table.declared for name, table in self.tables.items()}
        whole, start_ns = self._at_rest(), self._intake.clocks.start_ns
        return [history.read(whole, one, declared, self.words, until, start_ns) for one in wishes]

    def rows_of(self, step: int) -> dict[str, Block]:
        """All rows of one step, also where the tables had to forget it; they don't take them in.

        Args:
            step: Its number.

        Returns:
            Rows by table; tables without any are left out.

        Raises:
            RunError: The files can't be read.
        """
        return opening.rows_of_step(self._at_rest(), self._intake, self.words, step)

    def _at_rest(self) -> Snapshot:
        whole = self._whole or Snapshot(self.files, self.attempt)
        whole.refresh()
        self._whole = whole
        return whole

    def activity(self) -> dict[str, Any]:
        """Whether somebody still writes, as far as it can be told without inventing anything.

        Returns:
            "newest_at": wall-clock time of the newest row, seconds since the epoch, by the clock of the host that wrote
            it; None while somebody writes, and before the first row. "writers": "" then; else what :func:`writers` says
            of the newest process of every rank, or "ended" where they are gone and have closed their files.
        """
        newest = self.newest_at
        if newest is None:
            return {"newest_at": None, "writers": ""}
        silent_s = time.time() - newest
        told = self._writers() if silent_s >= min(ASK_S, QUIET_S) else "running"
        if told != "gone" and silent_s < QUIET_S:
            return {"newest_at": None, "writers": ""}
        return {"newest_at": round(newest, 1), "writers": told}

    def _writers(self) -> str:
        now = time.monotonic()
        if now - self._asked_at >= ASK_S:
            self._asked_at = now
            self._alive = writers(self._intake.writers.values())
            if self._alive == "gone" and self.finished():  # after the question: who ends closes its file first
                self._alive = "ended"
        return self._alive

    def outcome(self) -> Outcome | None:
        """How the run has ended, as its processes say; None where that isn't known or it goes on.

        Raises:
            RunError: The store doesn't answer.
        """
        return outcome(now(self.files, self.attempt))

    def finished(self) -> bool:
        """Whether every process that wrote has ended properly: what they wrote has been rolled over."""
        segments, parts = self.files.look()
        self._finished = bool(parts) and not segments
        return self._finished

    # --------------------------------------------------------------------------------------- the complete step

    @property
    def complete_step(self) -> int | None:
        """The step that views follow: see :attr:`standing`. The newest one where no process tells when a step ends."""
        return self.standing.step if self._intake.completeness.has_steps else self.step

    @property
    def standing(self) -> Standing:
        """The last step that has ended on all processes that are alive in it, and who isn't waited for."""
        states = {} if self._finished else self._states()
        return standing_of(self._intake.completeness, self._now_s(), states, finished=self._finished)

    def missing(self) -> list[dict[str, Any]]:
        """Who isn't waited for though others go on.

        Returns:
            Dicts with "name" ("rank 3", or the process's name), "since" (seconds since the epoch) and "why" ("ended",
            "gone" or "silent"), at most :data:`NAMED` of them.
        """
        start = self.started_s or 0.0
        return [
            {
                "name": who(one.rank, one.process),
                "since": round(start + one.since_s, 1),
                "why": one.why,
            }
            for one in self.standing.missing[:NAMED]
        ]

    def _now_s(self) -> float:
        start = self.started_s
        return math.nan if start is None else time.time() - start

    def _states(self) -> Mapping[str, str]:
        """What is known of the processes of which nothing was heard lately, by name."""
        now = time.monotonic()
        if now - self._states_at >= ASK_S:
            self._states_at = now
            quiet = {one.name for one in quiet_since(self._intake.completeness, self._now_s() - ASK_S)}
            asked = [one for one in self._intake.writers.values() if one.process in quiet]
            states = {one.process: liveness.state_of(one) for one in asked}
            self._known_states = states | dict.fromkeys(self._closed(asked), "ended")
        return self._known_states

    def _closed(self, processes: Sequence[Process]) -> list[str]:
        """Those of ``processes`` that have closed their files, as names tell; in another store it isn't asked."""
        if not processes or not self.local:
            return []
        writing = {one.place for one in self.files.look()[0]}
        return [one.process for one in processes if place_of_process(one.process) not in writing]

    def _poll(self, budget: int | None) -> dict[str, Block]:
        if self._follower is None:
            return {}
        came_s = math.nan if budget is None else self._now_s()
        rows = self._follower.poll()
        if self._shown.hides_more(rows) or self._intake.renames(rows):
            return self._rebuild()
        blocks = self._intake.read(self._shown.of(rows), came_s)
        if budget is not None:
            blocks = {name: self._within(name, block, budget) for name, block in blocks.items()}
        self._store(blocks)
        return blocks

    def _within(self, name: str, block: Block, budget: int) -> Block:
        """``block`` cut down to about ``budget`` rows; what went is counted."""
        if len(next(iter(block.values()))) <= budget:
            return block
        block, gone = thinning.reduced(self._intake.table(name).thinning, block, budget)
        self.coalesced += gone
        return block

    def _store(self, blocks: dict[str, Block]) -> None:
        for name, block in blocks.items():
            made = [(self.tables, self._rows)]
            made += [(self.sketches, min(SKETCH_ROWS, self._rows))] if self._sketched else []
            for tables, limit in made:
                if name not in tables:  # of a row type that nobody declared
                    tables[name] = LiveTable(name, limit, self._intake.table(name))
                tables[name].append(block)


def writers(processes: Iterable[Process]) -> str:
    """Whether ``processes`` live: "running" (at least one), "gone" (none does, and all were of this host), else
    "unknown": those of other hosts can't be asked.
    """
    told = {liveness.state_of(one) for one in processes}
    return "running" if "running" in told else "gone" if told == {"gone"} else "unknown"
