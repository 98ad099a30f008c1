"""The checks of ``probe doctor`` that look at a run: are its files whole, and is everything there?"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from probe.cli.doctor_checks import Check, Level, guarded
from probe.cli.doctor_frameworks import of_run
from probe.errors import MissingDependencyError, ProbeError, RunError

if TYPE_CHECKING:
    from probe.opened import Run
    from probe.runs.files import RunFiles

#: Ranks, files or incidents that a message names.
NAMED: Final = 8

#: (name, step) pairs of a run that are held against its backends.
LOGGED: Final = 200_000

#: Files whose ends are asked for at once: a store takes its time for each.
_AT_ONCE: Final = 16

#: An unfinished file that is older belongs to nobody any more.
_OLD_S: Final = 600


def run_checks(place: str) -> Iterator[Check]:
    """All of them. A run that can't be opened has one finding, which says so."""
    from probe.opened import Run

    try:
        run = Run(place)
        run.refresh()
    except MissingDependencyError as error:  # the run may be whole: nobody here can tell
        yield Check("run", "opens", "warning", str(error))
        return
    except RunError as error:
        yield Check("run", "opens", "error", str(error))
        yield from guarded("run", "files", lambda: _files(place))
        return
    with run:
        for name, check in (
            ("opens", lambda: _opens(run)),
            ("end", lambda: _end(run)),
            ("files", lambda: _files(place)),
            ("lines", lambda: _bad_lines(run)),
            ("ranks", lambda: _ranks(run)),
            ("frameworks", lambda: of_run(run)),
            ("clock", lambda: _clock(run)),
            ("dropped", lambda: _dropped(run)),
            ("incidents", lambda: _incidents(run)),
        ):
            yield from guarded("run", name, check)


def _opens(run: Run) -> Iterator[Check]:
    counts = run.sql(_COUNTS).iloc[0]
    told = ", ".join(f"{int(counts[name]):,} {name.replace('_', ' ')}" for name in counts.index)
    yield Check("run", "opens", "ok", f"{run.path}: {run.written_by}; {told}")


#: How a run may be, and what is to be thought of it.
_ENDS: Final[dict[str, tuple[Level, str]]] = {
    "failed": ("error", "failed"),
    "killed": ("error", "killed"),
    "hangs": ("error", "hangs"),
    "interrupted": ("warning", "interrupted"),
    "unknown": ("warning", "not known"),
    "exited": ("warning", "exited"),
    "ended": ("ok", "finished"),
    "runs": ("ok", "runs"),
}


def _end(run: Run) -> Iterator[Check]:
    """What ended the run, unless it is an alarm that stands above. Of one by a probe that didn't tell where its
    processes are nothing is said.
    """
    from probe.analysis.verdict import ended

    told = run.post_mortem()
    level, word = _ENDS[told.state]
    if told.standing or told.happened:
        more = f"; probe.open({str(run.path)!r}).post_mortem() has all of it" if told.happened else ""
        said = word if level == "error" and ended.stopped(run) else f"{word}: {told.sentence.rstrip('.')}"
        yield Check("run", "end", level, f"{said}{more}")


_COUNTS: Final = """
select (select count(*) from memory) as memory, (select count(*) from micro_batches) as micro_batches,
       (select count(*) from padding) as padding, (select count(*) from calls) as calls,
       (select count(*) from reductions) as reductions, (select count(*) from scalars) as scalars
"""


def logged(place: str) -> list[tuple[str, int]]:
    """Names and steps of the metrics that the process has logged that tracks (rank 0, or one without a rank); in that
    order.
    """
    from probe.opened import Run

    with Run(place) as run:
        found = run.sql(
            "select key, step from scalars where step is not null and coalesce(rank, 0) = 0 order by wall_ns limit ?",
            [LOGGED],
        )
        return list(zip(found["key"].astype(str), found["step"].astype(int), strict=True))


# -------------------------------------------------------------------------------------------------------- files


def _files(place: str) -> Iterator[Check]:
    """Whether each file can be read to its end."""
    from probe.runs.files import RunFiles

    files = RunFiles(place)
    segments, parts, manifest = files.listing()
    paths = [path for tables in parts.values() for path in tables.values()]
    paths += [f"{files.folder}/{name}" for name in manifest.names()]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        broken = [why for why in pool.map(partial(_unreadable, files), paths) if why]
    torn = [segment.name for segment in sorted(segments) if _is_torn(files, segment)]
    left = _leftovers(files)
    ended = [segment.name for segment in sorted(segments) if _has_ended(files, segment)]
    if broken:
        about = "parts can't be read: put them back from a copy, or delete them and the run reads as it does now"
        yield _named("error", f"{len(broken)} {about}", broken)
    if torn:
        about = "end in the middle of a line: being written, or its process was killed; the line is left out"
        yield _named("warning", f"{len(torn)} files {about}", torn)
    if left:
        about = "were left unfinished by a killed process; readers pass over them and they can be deleted"
        yield _named("warning", f"{len(left)} files {about}", left)
    if ended:
        about = "are of processes that were killed; `probe compact RUN` makes Parquet of them"
        yield _named("warning", f"{len(ended)} JSONL files {about}", ended)
    if not broken and not torn:
        yield Check("run", "files", "ok", f"{len(paths):,} parts and {len(segments):,} JSONL files are whole")


def _named(level: Level, about: str, names: list[str]) -> Check:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return Check("run", "files", level, f"{about}: {', '.join(names[:NAMED])}{more}")


def _unreadable(files: RunFiles, path: str) -> str:
    """Why the Parquet file can't be read, empty where it can; only its footer is asked for."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with files.system.open(path, "rb") as file:
            pq.read_metadata(file)
    except FileNotFoundError:
        return ""  # merged into a larger one since we looked
    except (pa.ArrowException, OSError) as error:
        return f"{path.rpartition('/')[2]} ({error})"
    return ""


def _is_torn(files: RunFiles, segment: Any) -> bool:
    path = f"{files.root}/{segment.name}"
    try:
        with files.system.open(path, "rb") as file:
            end = file.seek(0, 2)
            if not end:
                return False
            file.seek(end - 1)
            return bool(file.read(1) != b"\n")
    except FileNotFoundError:
        return False  # rolled over since we looked


def _has_ended(files: RunFiles, segment: Any) -> bool:
    """Whether its process has gone, which leaves no JSONL file when it goes in order."""
    from probe.runs.liveness import why_alive

    try:
        return why_alive(files, segment, force=False) is None
    except FileNotFoundError:
        return False  # rolled over since we looked


def _leftovers(files: RunFiles) -> list[str]:
    if not files.local:
        return []  # a store has an object when it's complete, or hasn't it
    paths = [path for path in Path(files.root).rglob("*.tmp") if path.is_file()]
    return [path.name for path in paths if time.time() - path.stat().st_mtime > _OLD_S]


# --------------------------------------------------------------------------------------------------------- rows


def _bad_lines(run: Run) -> Iterator[Check]:
    if run.bad_lines:
        message = f"{run.bad_lines:,} lines are no rows and were skipped: a disk fault, or somebody else's writing"
        yield Check("run", "lines", "error", message)
    else:
        yield Check("run", "lines", "ok", "every line is a row")


def _ranks(run: Run) -> Iterator[Check]:
    missing = run.missing_ranks
    if missing:
        named = ", ".join(map(str, missing[:NAMED]))
        more = f" and {len(missing) - NAMED:,} more" if len(missing) > NAMED else ""
        about = "have written nothing: not started, without probe, or with another run directory (set PROBE_RUN_DIR)"
        yield Check("run", "ranks", "error", f"{len(missing):,} ranks {about}: {named}{more}")
    elif run.processes.empty:
        yield Check("run", "ranks", "warning", "nobody has written yet")
    elif not run.ranks:
        yield Check("run", "ranks", "ok", f"{run.written_by} without a rank has written")
    else:
        yield Check("run", "ranks", "ok", f"all {run.written_by} have written")


def _clock(run: Run) -> Iterator[Check]:
    found = run.sql("select count(*) as n from calls where wall_ns is null")
    if int(found["n"][0]):
        message = f"{int(found['n'][0]):,} calls have no wall-clock time: the first line of their file is missing"
        yield Check("run", "clock", "warning", message)


def _dropped(run: Run) -> Iterator[Check]:
    found = run.sql('select sum("count") as n from incidents where kind = ?', ["dropped_rows"])
    count = 0 if found["n"].isna().any() else int(found["n"][0])
    if count:
        about = "rows were dropped as they came faster than the disk took them; sums and counts miss them"
        yield Check("run", "dropped", "warning", f"{count:,} {about}")
    else:
        yield Check("run", "dropped", "ok", "no rows were dropped")


def _incidents(run: Run) -> Iterator[Check]:
    found = run.sql(
        'select kind, "where", sum("count")::bigint as n, arg_max(message, time_ns) as message from incidents '
        "where kind <> ? group by all order by n desc, kind limit ?",
        ["dropped_rows", NAMED],
    )
    for row in found.itertuples():
        yield Check("run", "incidents", "warning", f"{row.kind}, {row.where}, {row.n:,} times: {row.message}")
    if found.empty:
        yield Check("run", "incidents", "ok", "no listener or backend failed")


# ------------------------------------------------------------------------------------------------------- unsent


def unsent_checks(place: str, *, recover: bool) -> Iterator[Check]:
    """Values that a tracking backend hasn't got; with ``recover`` they are sent now."""
    from probe.tracking.journal import unsent

    directory = Path(place)
    waiting = unsent(directory)
    if recover:  # also where nothing waits: a run that was killed has no status yet
        waiting = yield from _recover(directory, waiting)
    for name, count in sorted(waiting.items()):
        message = f"{count:,} calls wait; `probe doctor RUN --recover` sends them, and so does the next start there"
        yield Check("run", f"unsent: {name}", "error" if recover else "warning", message)
    if not waiting:
        yield Check("run", "unsent", "ok", "nothing waits to be sent")
    yield from _edition_checks(directory, recover=recover)


def _edition_checks(directory: Path, *, recover: bool) -> Iterator[Check]:
    """A last edition of the dashboards that isn't made; with ``recover`` it is made now, or waited for."""
    from probe.publishing import last

    found = last.due(directory)
    if found and recover:
        yield from _make_editions(directory)
        return
    for one in found:
        if last.under_way(one):
            message = f"the last edition of the dashboards is being made by process {one['pid']}"
            yield Check("run", "dashboards", "ok", message)
        else:
            message = "the backends lack the last edition of the dashboards; `probe doctor RUN --recover` makes it"
            yield Check("run", "dashboards", "warning", message)


def _make_editions(directory: Path) -> Iterator[Check]:
    from probe.publishing import last

    patience = time.monotonic() + last.HELD_S
    while any(map(last.under_way, last.due(directory))) and time.monotonic() < patience:
        time.sleep(0.2)
    try:
        for message in last.make(directory):
            yield Check("run", "dashboards", "warning", message)
    except (ProbeError, OSError) as error:
        yield Check("run", "dashboards", "error", f"the last edition of the dashboards can't be made: {error}")
    else:
        yield Check("run", "dashboards", "ok", "the last edition of the dashboards was made")


def _recover(directory: Path, waiting: dict[str, int]) -> Generator[Check, None, dict[str, int]]:
    from probe.tracking.recovery import recover as send

    told: list[str] = []
    left = send(directory, on_incident=lambda incident: told.append(f"{incident.where}: {incident.message}"))
    for message in dict.fromkeys(told):
        yield Check("run", "recover", "warning", message)
    for name, count in sorted(waiting.items()):
        if name not in left:
            yield Check("run", "recover", "ok", f"{name}: {count:,} calls were sent")
    return left
