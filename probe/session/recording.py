"""The recording side of a session: recorders hear of events, and one writer thread keeps their rows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from probe import recorders
from probe.devices import Device
from probe.failing import Failing
from probe.frameworks import attached
from probe.guard import Guard, attempt
from probe.hooks import Scope, Subscription, current_scope, follow, silenced, subscribe
from probe.oom_snapshots import Entered, Left, Snapshots
from probe.own_cost import Budget
from probe.recorders.recorder import Recorder, Rows
from probe.records import Incident, Memory, Process, Row
from probe.runs.attempts import Joined
from probe.runs.ending import told_ns
from probe.runs.processes import local_rank, node, part_in_ray
from probe.runs.row_types import bring
from probe.runs.writer import RunWriter
from probe.sampled import what_is_kept
from probe.session.listening import Listening, Thinned
from probe.text import percent

_log = logging.getLogger("probe.session")

#: Between two times that a session tells what its budget left out, seconds.
TELL_S: Final = 10.0


class Recording:
    """Recorders, the writer of their rows, and what is told of failures.

    What a recorder, a backend or probe itself raises stays here: it is logged, becomes an incident, and training goes
    on.

    Args:
        directory: The run directory.
        recorders: Instances that are told of what happens.
        process: The row about this process.
        on_rows: Called in the writer's thread with the rows of each round.
        before_round: Called in the writer's thread before each round.
        place: Of this process in its attempt; None takes one.
        late: Asks for rank and world size while no rank is known; None where nothing is to be asked.
        parquet_at_close: As of :class:`~probe.runs.writer.RunWriter`.
        budget: Thins rows at inner points; None thins nothing.
        device: The device whose memory a failure tells.
        save_failed_batch: Whether the micro-batch of a failure is kept in a file.
        oom_snapshot: Whether the device's memory is kept in a file where it runs out.

    Attributes:
        directory: The run directory.
        process: The row about this process, with what is known of it by now.
        budget: As given, or of the user who took the session over.
        recorders: As given; :meth:`record_with` changes them.
        late: As given.
        writer: Writes the rows. Its first round may come before it stands here.
        failing: Tells of exceptions.
        listening: What is between the hooks and each recorder.
        step: The step that the process is in; None outside of any.
    """

    def __init__(
        self,
        directory: Path,
        recorders: Sequence[Recorder],
        process: Process,
        *,
        on_rows: Callable[[list[Row]], None],
        before_round: Callable[[], None],
        place: Joined | None,
        late: Callable[[], tuple[int | None, int | None]] | None,
        parquet_at_close: bool,
        budget: Budget | None,
        device: Device | None,
        save_failed_batch: bool,
        oom_snapshot: bool,
    ) -> None:
        self.directory = directory
        self.process = process
        self.budget = budget
        self.recorders = recorders
        self.step: int | None = None
        self._asked: dict[tuple[int, str], Guard] = {}  # by a recorder's id, and a method's name
        self._isolated: dict[str, Guard] = {}  # by what is done
        self.late = late
        self._told_left_out: dict[tuple[str, str], int] = {}
        self._told_adapters: tuple[tuple[str, int], ...] = ()
        self._tell_at = time.monotonic() + TELL_S
        self._heard_ns: int | None = None  # what the driver said up to then is known; None before the first look
        self._subscriptions: list[Subscription] = []
        snapshots = Snapshots(device, directory, lambda: process.process) if oom_snapshot and device else None
        self.failing = Failing(
            self._put_failure,
            directory,
            device,
            lambda: process.process,
            save_batch=save_failed_batch,
            snapshots=snapshots,
        )
        self._on_rows = on_rows
        self.writer = RunWriter(
            directory,
            rank=process.rank,
            process=process,
            on_rows=self._see,
            tick=self._sample,
            tick_scope=self.sample_scope,
            place=place,
            parquet_at_close=parquet_at_close,
            before_round=before_round,
        )
        self.failing.install()
        self._follow()
        self._listen()

    @property
    def begun(self) -> bool:
        """Whether the writer stands here: its first round may come before."""
        return hasattr(self, "writer")

    @property
    def switched_off(self) -> set[tuple[int, str]]:
        """What is asked of a recorder no more, as it failed: its id, and a method's name."""
        return {asked for asked, guard in self._asked.copy().items() if guard.off}

    # -------------------------------------------------------------------------------------- on the training thread

    def _listen(self) -> None:
        self.listening = [self._between(recorder) for recorder in self.recorders]
        self._subscriptions = [subscribe(one, *one.recorder.points) for one in self.listening]

    def _between(self, recorder: Recorder) -> Listening:
        thinnable = recorder.rows and all(kind.sampled for kind in recorder.rows)
        if self.budget is None or not thinnable:
            return Listening(recorder, self.writer.add_rows, self.incident)
        measured = any(Memory in one.rows for one in self.recorders)
        return Thinned(recorder, self.writer.add_rows, self.incident, self.budget, scopes=measured)

    def _follow(self) -> None:
        """Each change of scope is written through, so that a process that is killed was seen where it was."""
        now, where = self.writer.now, current_scope()
        entered: Entered | None = None if now is None else now.entered
        left: Left | None = None if now is None else now.left
        if self.failing.snapshots is not None:
            entered, left = self.failing.snapshots.following(entered, left)
        follow(
            entered=entered,
            left=left,
            raised=self.failing.raised,
            abandoned=self.failing.abandoned,
        )
        if now is not None and where.parent is not None:  # a forked child begins to record inside its first scope
            now.entered(where, threading.get_ident(), time.monotonic_ns())

    def unsubscribe(self) -> None:
        """No recorder hears of anything more."""
        for subscription in self._subscriptions:
            subscription.close()

    def stop(self) -> None:
        """The hooks come off, and recorders end; the writer goes on."""
        follow()
        self.failing.close()
        self.unsubscribe()
        for recorder in self.recorders:
            self.isolated("close", recorder.close)
        if self.budget is not None:
            self.tell_left_out(self.budget)

    def keep_of_failures(self, device: Device, *, batch: bool, snapshot: bool) -> None:
        """What is kept from now on where something fails.

        Args:
            device: Whose memory a snapshot has.
            batch: Whether the micro-batch is kept.
            snapshot: Whether the device's memory is, where it runs out.
        """
        self.failing.save_batch = batch
        if snapshot:
            self.failing.snapshots = Snapshots(device, self.directory, lambda: self.process.process)
            self._follow()

    def _put_failure(self, rows: Rows, where: Scope, time_ns: int, wait: bool) -> None:
        put = self.writer.put_through if wait else self.writer.add_rows
        put(rows, where, time_ns)

    def record_with(self, recorders: Sequence[Recorder]) -> None:
        """These recorders hear from now on, in the place of those before.

        Args:
            recorders: Those that are there already go on.
        """
        self.unsubscribe()
        for recorder in self.recorders:
            if recorder not in recorders:
                self.isolated("close", recorder.close)
        self.recorders = recorders
        self.tell(tables=bring(kind for recorder in recorders for kind in recorder.rows))
        self._listen()

    def tell(self, **facts: Any) -> None:
        """Add facts to the row about this process, behind what was recorded so far.

        Args:
            **facts: Its fields.
        """
        self.writer.mark(partial(self.writer.tell, **facts))

    def write_rows(self, rows: Rows, scope: Scope, time_ns: int) -> None:
        """Hand rows to the writer.

        Args:
            rows: None writes nothing.
            scope: Where they happened.
            time_ns: When, monotonic.
        """
        if rows is not None:
            self.writer.add_rows(rows, scope, time_ns)

    def incident(
        self,
        kind: str,
        where: str,
        message: str,
        error: BaseException | None,
        count: int = 1,
        off: bool = False,
    ) -> None:
        """Write the row of something that went wrong with the observing.

        Args:
            kind: What failed, such as ``"listener"`` or ``"backend"``.
            where: Its place: a hook point, or a function.
            message: What a reader is told.
            error: The exception; None without one.
            count: How often it has happened.
            off: Whether what failed is switched off now.
        """
        row = Incident(
            kind=kind,
            where=where,
            message=message,
            traceback=_traceback(error),
            count=count,
            switched_off=off,
        )
        self.write_rows(row, current_scope(), time.monotonic_ns())

    # -------------------------------------------------------------------------------------- in the writer's thread

    def _see(self, rows: list[Row]) -> None:
        self.failing.see(rows)
        self._on_rows(rows)

    def _sample(self) -> list[Any]:
        with silenced():
            samples = [self.ask(one, "sample", one.sample) for one in self.recorders]
        return [rows for rows in samples if rows is not None]

    def sample_scope(self) -> Scope:
        """Where a sample is taken: in the process, in whatever step that is."""
        where = Scope("process", "process", step=self.step)
        where.id = 0
        return where

    def learn_rank(self, late: Callable[[], tuple[int | None, int | None]]) -> None:
        """Ask for the rank while it isn't known: a process group is made, or ``RANK`` set, after many a process has
        begun to record.

        Args:
            late: Gives rank and world size, None for what isn't known.
        """
        if self.process.rank is None:
            rank, world_size = late()
            if rank is not None:
                known = {} if world_size is None else {"world_size": world_size}
                self.writer.tell(rank=rank, local_rank=local_rank(), node=node(), **known)

    def tell_adapters(self) -> None:
        """Write into the process's row which frameworks are observed, for `probe doctor` and whoever reads it."""
        if not self.begun:
            return
        there = [one for one in attached() if one.imported]
        revisions = tuple((one.framework, one.revision) for one in there)
        if revisions == self._told_adapters:
            return
        self._told_adapters = revisions
        said = "; ".join(one.summary() for one in there)
        if said != self.process.adapters:
            self.writer.tell(adapters=said)

    def hear_of_the_end(self) -> None:
        """Ray ends its workers without asking: they make Parquet of their rows when the driver says that it ends."""
        if not self.begun or part_in_ray() != "worker":
            return
        if self._heard_ns is None:  # an end before this process began isn't for it; one before its first look is
            self._heard_ns = self.writer.place.taken_ns()
        told = told_ns(self.directory, self.process.attempt)
        if told > self._heard_ns:
            self._heard_ns = told
            self.writer.seal()

    def tell_left_out(self, budget: Budget) -> None:
        """Write what was left out since the last time, by table and point, and what probe costs without it.

        Args:
            budget: Which left it out.
        """
        self._tell_at = time.monotonic() + TELL_S
        for (table, where), count in budget.left_out.copy().items():
            new = count - self._told_left_out.get((table, where), 0)
            if not new:
                continue
            self._told_left_out[table, where] = count
            message = f"rows of {table} left out to keep probe's cost under {percent(budget.ratio)} of the steps' time"
            if budget.thins:
                message += f"; without them it is still {percent(budget.spent_ratio)}"
            self.incident("budget", f"{table}: {where}", message, None, count=new)

    def tell_left_out_at_times(self) -> None:
        """The same, once in :data:`TELL_S`; nothing without a budget."""
        if self.budget is not None and time.monotonic() > self._tell_at:
            self.tell_left_out(self.budget)

    def ask(self, recorder: Recorder, what: str, action: Callable[[], Any]) -> Any:
        """What one recorder gives; one that fails isn't asked for that again, which is told once. The others go on.

        Args:
            recorder: Which.
            what: The name of its method.
            action: Calls it.
        """
        if not self.begun:  # the writer's first round may come before we have it: what fails then the next one tells
            return attempt(action, _nothing)
        guard = self._asked.get((id(recorder), what))
        if guard is None:
            name = f"{type(recorder).__name__}.{what}"
            guard = Guard(name, f"recorder {name} failed and is switched off", tell=self.incident, most=1, log=_log)
            self._asked[id(recorder), what] = guard
        return guard.call(action)

    def isolated(self, what: str, action: Any) -> Any:
        """Do something that must not fail: an exception becomes an incident, and the first of its name is logged.

        Args:
            what: Its name.
            action: Without arguments; what it returns is returned, None where it fails.
        """
        guard = self._isolated.get(what)
        if guard is None:
            failed = f"probe failed in {what}; the run goes on"
            guard = self._isolated[what] = Guard(what, failed, tell=self.incident, most=None, log=_log)
        return guard.call(action)


def load_recorders(
    asked: Sequence[str | Recorder] | None, device: Device, peaks: str, samples: str | None = None
) -> list[Recorder]:
    """The recorders that were asked for.

    Args:
        asked: Names out of ``recorders.RECORDERS`` or instances; None takes all.
        device: Whose memory is watched.
        peaks: As of :func:`probe.session.starting.start`.
        samples: Likewise.

    Raises:
        UnknownNameError: There is no such recorder, or ``samples`` is another word.
    """
    options: dict[str, dict[str, Any]] = {"memory": {"device": device, "peaks": peaks}}
    options["samples"] = {"text": what_is_kept(samples)}
    names = list(recorders.RECORDERS) if asked is None else asked
    return [recorders.load(one)(**options.get(one, {})) if isinstance(one, str) else one for one in names]


def _nothing(error: Exception) -> None:
    """What a recorder gives that fails before anything can be told."""


def _traceback(error: BaseException | None) -> str | None:
    import traceback

    return None if error is None else "".join(traceback.format_exception(error))
