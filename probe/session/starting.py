"""Begins a session: for the user who calls :func:`start`, or because a framework was observed."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from probe import devices
from probe._check import needs_views
from probe._io import expanded
from probe.current import CURRENT
from probe.errors import InputError, SessionError
from probe.guard import on_error
from probe.hooks import begin_at_root, is_off
from probe.own_cost import Budget
from probe.publishing.alarms import VARIABLE as ALARMS_VARIABLE
from probe.publishing.alarms import alarms_of_the_environment, wanted_alarms
from probe.publishing.publisher import interval
from probe.recorders.recorder import Recorder
from probe.records import Process
from probe.redaction import Redact, redaction
from probe.runs.attempts import take_place
from probe.runs.layout import complete_run, create_run
from probe.runs.processes import describe, rank_and_size
from probe.runs.row_types import bring
from probe.runs.upload import UPLOAD_VARIABLE, checked, from_environment
from probe.session.forks import watch_forks
from probe.session.inert import InertSession
from probe.session.recording import load_recorders
from probe.session.sending import Given, tracking_of
from probe.session.session import Session
from probe.torch_debug.waiting import begin as begin_debug_server
from probe.tracking.tracking import Tracking

_log = logging.getLogger("probe.session")


def start(
    project: str,
    experiment: str | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] = "runs",
    track: str | Sequence[str] | Tracking | None = None,
    config: Any = None,
    recorders: Sequence[str | Recorder] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    name: str | None = None,
    role: str | None = None,
    device: Any = None,
    peaks: Literal["nested", "observe"] = "nested",
    publish: bool | float | None = None,
    budget: float | None = None,
    redact: Redact = True,
    upload: str | os.PathLike[str] | None = None,
    alarms: bool | str | None = None,
    save_failed_batch: bool = False,
    oom_snapshot: bool = False,
    samples: Literal["text"] | None = None,
) -> Session:
    """Begin to record this process. Every process of a job calls it with the same project and experiment.

    A process that isn't a rank of the job, such as a driver or a rollout worker, is shown by its name. A rank that
    becomes known later, when a process group is initialised, is the rank of all that the process has recorded. A forked
    child has a session of its own as soon as it has something to record.

    Args:
        project: The first part of the run directory ``root/project/experiment``.
        experiment: The second part. Without it the directory is named by the time; then give ``run_dir`` or set
            ``PROBE_RUN_DIR`` so that all ranks agree.
        run_dir: The directory itself, used as it is.
        root: The directory that holds all runs.
        track: Backends for the metrics of each step, such as ``"console,tensorboard"`` or a :class:`Tracking`. Of the
            ranks only rank 0 tracks, so that all of them may ask for it. None means the run directory alone.
        config: The trainer's configuration, any shape; kept with the run and sent to the backends as parameters.
        recorders: Names out of ``recorders.RECORDERS`` or instances; None takes all.
        rank: The process's number in the job; None asks torch.distributed, then the environment (``RANK``), now and
            as long as neither knows.
        world_size: How many ranks the job has; None asks torch.distributed, then the environment (``WORLD_SIZE``).
        name: What the process is shown as while it has no rank, such as "driver"; None is the Ray actor's, the child
            process's or the script's name, or "notebook".
        role: What it does in the job, such as "trainer", "driver", "rollout" or "reward".
        device: The device whose memory is watched; None detects one.
        peaks: ``"nested"`` gives every scope its exact peak (device counters are reset at scope ends, and what others
            read of them is folded back); ``"observe"`` never touches the counters.
        publish: Whether the dashboards are kept up to date in the backends, by a process beside rank 0 that reads the
            run directory: figures, tables, numbers over all ranks, what was found. None means where a backend can show
            pictures. A number says how old figures may get, in seconds (30).
        budget: The share of the steps' time that probe may cost, such as 0.01. Where it costs more, rows of sampled
            tables are left out at inner points (observed calls, and watched functions inside a phase), which is told;
            steps, phases, micro-batches, padding, reductions and metrics never are. None leaves nothing out.
        redact: Whether secrets of ``config`` (keys, tokens, passwords, URLs that carry one) are left out of run.json
            and of what backends get; see :mod:`probe.redaction`. A list of names adds these. False keeps all, in a
            run.json that its owner alone can read. A :class:`Tracking` of one's own has its own ``redact``.
        upload: Where a process beside the training copies the run to while it is written, such as
            ``"s3://bucket/runs/project/experiment"``, so that others open it there; see :mod:`probe.runs.sync`. All
            processes of a job may give the same. A store that fails is tried again, and is an incident. None asks the
            environment (``PROBE_UPLOAD``), where a URL that can't be opened is an incident, too.
        alarms: Whether a process beside rank 0 looks for alarms, and outlives it. Each is logged once, and told by the
            alert calls of W&B and Trackio where ``track`` has them. A URL, such as ``"https://example.org/hook"``, gets
            each as JSON by POST, too: its name, sentence, place and cost; nothing of the configuration, no text of the
            run and no tokens. A command, such as ``"cmd:mail -s alarm me@example.org"``, is run for each, without a
            shell, with the same JSON on its standard input; it is killed after ten seconds. None asks the environment
            (``PROBE_ALARMS``: ``on``, ``off``, a URL or a command), where what can't be used is an incident. See also
            :meth:`Session.on_alarm`.
        save_failed_batch: Whether the micro-batch in which an exception came is kept in a file of the run, without
            pickle, for :func:`probe.replay`.
        oom_snapshot: Whether torch's memory snapshot is kept in a file of the run where CUDA runs out of memory, with
            the step, phase and micro-batch of each allocation; see :mod:`probe.oom_snapshots`. Torch then records the
            stacks of allocations, about 2 µs each.
        samples: ``"text"`` keeps prompts and answers, as text and token ids, of the samples that get a row, where
            :func:`probe.samples` or an adapter is told them. None keeps numbers alone.

    Returns:
        The open session. Where the environment says ``PROBE=off`` it is one that does nothing: no directory, no file,
        no thread, and no argument is looked at.

    Raises:
        InputError: ``peaks``, ``publish`` or ``budget`` is none of the above, ``run_dir`` or ``root`` is a URL,
            ``upload`` is one that can't be opened, ``alarms`` is none, or the environment's ``PROBE`` is neither on nor
            off.
        SessionError: This process has an open session already.
        UnknownNameError: There is no such recorder or backend, or ``samples`` is another word.
        BackendError: A backend can't be set up.
        MissingDependencyError: ``publish`` asks for figures, and a package that draws them isn't installed.
    """
    if is_off():
        CURRENT.session = off = InertSession(project, experiment, root=root, run_dir=run_dir)
        return off
    if peaks not in ("nested", "observe"):
        raise InputError(f"peaks: got {peaks!r}, expected 'nested' or 'observe'")
    rule = redaction(redact)
    redact = False if rule is None else rule
    every_s = interval(publish)
    limit = _budget(budget)
    copy_to, refused = from_environment() if upload is None else (checked(upload), "")
    alarms_to, not_looked_for = alarms_of_the_environment() if alarms is None else (wanted_alarms(alarms), "")
    if publish not in (None, False) and not track:
        raise InputError(f"publish: got {publish!r} without track; name the backends to publish to in track=")
    if publish not in (None, False):
        needs_views(f"publish={publish!r}")
    given = Given(project, config, redact, track, publish, every_s, copy_to, alarms_to, alarms is None)
    before: Session | None = CURRENT.session
    automatic = before if before is not None and before.automatic else None
    if automatic is not None and run_dir is not None and expanded("run_dir", run_dir).absolute() != automatic.directory:
        _log.warning("recorded to %s so far, because of PROBE_RUN_DIR; from now on to %s", automatic.directory, run_dir)
        automatic.close()
    with CURRENT.lock:
        open_now: Session | None = CURRENT.session
        if open_now is not None and open_now.automatic:
            who_it_is = {"rank": rank, "world_size": world_size, "name": name, "role": role}
            changed = (recorders, device, samples, peaks, open_now.counts_alone) != (None, None, None, "nested", False)
            chosen = load_recorders(recorders, devices.detect(device), peaks, samples) if changed else None
            open_now.recording.keep_of_failures(devices.detect(device), batch=save_failed_batch, snapshot=oom_snapshot)
            return _take_over(open_now, given, chosen, limit, who_it_is, recorders)
        if open_now is not None:
            raise SessionError(f"this process already records to {open_now.directory}; close that session first")
        begin_at_root()
        _watch_cells()
        found = devices.detect(device)
        chosen = load_recorders(recorders, found, peaks, samples)
        tables = bring(kind for recorder in chosen for kind in recorder.rows)
        directory = create_run(project, experiment, root=root, run_dir=run_dir, config=config, redact=redact)
        who_we_are: dict[str, Any] = {"rank": rank, "world_size": world_size, "name": name, "role": role}
        process = describe(**who_we_are, device=found.name, device_name=found.description, tables=tables)
        ours: dict[str, Any] = {"late": rank_and_size if rank is None else None, "asked": recorders, "device": found}
        ours |= {"budget": limit, "save_failed_batch": save_failed_batch, "oom_snapshot": oom_snapshot}
        opened = _open(directory, chosen, process, given, **ours)
        begin_debug_server(directory)
        _tell_refused(opened, {UPLOAD_VARIABLE: refused, ALARMS_VARIABLE: not_looked_for})
        return opened


def _open(directory: Path, chosen: Sequence[Recorder], process: Process, given: Given, **ours: Any) -> Session:
    """A session of this process that sends what was asked for."""
    place = take_place(directory, process)
    with on_error(lambda _: place.leave()):
        tracking = tracking_of(process, given, directory, place)
        CURRENT.session = opened = Session(directory, chosen, process, tracking=tracking, place=place, **ours)
    watch_forks()
    opened.sending.begin(given, place)
    return opened


def _tell_refused(session: Session, refused: Mapping[str, str]) -> None:
    """Variables of the environment that can't be used, and why, are incidents."""
    for variable, why in refused.items():
        if why:
            session.recording.incident("upload" if variable == UPLOAD_VARIABLE else "alarms", variable, why, None)


def start_automatically(
    directory: str | os.PathLike[str] | None,
    project: str | None = None,
    experiment: str | None = None,
    *,
    counts_alone: bool = False,
) -> Session:
    """Begin to record this process because of something that was observed in it, and not because its code says so.

    A :func:`start` of the user's takes the session over instead of raising.

    Args:
        directory: The run directory; None is ``runs/<project>/<experiment>``.
        project: The project's name; None takes it from ``directory``, as does ``experiment``.
        experiment: The experiment's name.
        counts_alone: Whether only calls that are counted are recorded, until more is observed.

    Raises:
        SessionError: This process has an open session already.
        RunError: The directory can't be made.
    """
    where = None if directory is None else expanded("run_dir", directory).absolute()
    if where is not None:
        project, experiment = project or where.parent.name or where.name, experiment or where.name
    opened = start(
        project or "run",
        experiment,
        run_dir=where,
        recorders=["counted_calls", "timed_samples"] if counts_alone else None,
    )
    opened.automatic, opened.counts_alone = True, counts_alone
    return opened


def _take_over(
    session: Session,
    given: Given,
    chosen: Sequence[Recorder] | None,
    limit: Budget | None,
    who_it_is: dict[str, Any],
    asked: Sequence[str | Recorder] | None,
) -> Session:
    """A session that began automatically becomes the user's: with their recorders, names, backends and limits. What
    can't be had raises before anything has changed.
    """
    if given.config is not None:
        complete_run(session.directory, given.project, given.config, redact=given.redact)
    sending, recording = session.sending, session.recording
    tracking = tracking_of(session.process, given, session.directory, recording.writer.place)
    session.automatic = session.counts_alone = False
    sending.track_to(tracking)
    if limit is not None:
        recording.budget = limit
    if chosen is not None:
        session.asked = asked
    if chosen is not None or limit is not None:
        recording.record_with(recording.recorders if chosen is None else chosen)
    facts = {fact: value for fact, value in who_it_is.items() if value is not None}
    if facts:
        recording.tell(**facts)
    sending.begin(given, recording.writer.place)
    return session


def _budget(ratio: float | None) -> Budget | None:
    if ratio is None:
        return None
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        raise InputError(
            f"budget: got {ratio!r}, expected a share of the steps' time above 0 and up to 1, such as 0.01"
        )
    return Budget(float(ratio))


def _watch_cells() -> None:
    """In IPython each cell begins at the root, whatever the one before it was interrupted in."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        shell.events.register("pre_run_cell", _begin_cell)


def _begin_cell(*_: Any) -> None:
    begin_at_root()
