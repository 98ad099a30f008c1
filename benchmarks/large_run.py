"""Opening a run of 1,024 ranks and 10,000,000 rows: its overview and one grouped query, each in a new process.

The alternatives read the same files: pyarrow and pandas load the one table that the query is about and group it; DuckDB
is asked the same query over the same list of files. Neither makes an overview. Every process tells its largest memory.
Then what ``probe tail`` shows first, ``probe tail --once`` and the report: with no answer kept, as the end of the last
session leaves the run, and as ``probe compact`` does; and how fast compaction is, from parts and from JSONL files. A
full one does the same at 100,000,000 rows.

python -m benchmarks.large_run
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from unittest import mock

from benchmarks.large_run_data import write_large_run
from benchmarks.measure import Size, row
from probe.records import Process
from probe.runs import answers, liveness
from probe.runs.compaction import Compaction, compact
from probe.runs.layout import Segment, create_run, place_of_rank
from probe.runs.now_file import NowFile

RANKS: Final = 1024
QUERY: Final = (
    "select rank, step, sum(tokens) as tokens, count(*) as n from padding group by all order by tokens desc limit 10"
)
#: Compaction: rows a second that it has to keep up with.
KEPT_UP: Final = 300_000
#: Rows: seconds and MiB within which such a run is there.
TARGETS: Final = {10_000_000: (1.0, 1024), 100_000_000: (8.0, 2048)}
SMALLER: Final = min(TARGETS)
#: New processes of each kind.
REPEATS: Final = 3

OURS: Final = """
import probe
from probe.analysis import overview
run = probe.open(directory)
overview.numbers(run)
run.sql(query)
"""
OURS_QUERY: Final = """
import probe
run = probe.open(directory)
run.sql(query)
"""
PANDAS: Final = """
import pyarrow.dataset as ds
columns = ["rank", "step", "tokens"]
frame = ds.dataset(files, format="parquet").to_table(columns=columns).to_pandas()
grouped = frame.groupby(["rank", "step"], dropna=False)["tokens"].agg(["sum", "size"])
grouped.sort_values("sum", ascending=False).head(10)
"""
DUCKDB: Final = """
import duckdb
duckdb.sql(query.replace("padding", f"read_parquet({files})")).fetchall()
"""
TAIL: Final = """
import contextlib, io
from probe.cli import main
with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
    main(["tail", "--once", directory])
"""
REPORT: Final = """
from probe.runs.reader import Run
from probe.views.report.report import report_html
with Run(directory) as run:
    report_html(run)
"""
GLANCE: Final = """
import io
from rich.console import Console
from probe.cli import tail
from probe.live.opening import is_large
from probe.views.terminal.following import Following
from probe.views.terminal.glance import glance
from probe.views.terminal.verdict import Verdict
following, verdict = Following(directory), Verdict(directory, None)
if is_large(following.feed.files):
    Console(file=io.StringIO(), width=120).print(glance(following))
"""
#: What works out answers, and the module that runs it.
KEEPERS: Final = {"the session's end": ["probe.cli.first_look"], "probe compact": ["probe", "compact"]}
#: What people look at: its name, what it does, and the goal.
VIEWS: Final = {"tail --once": (TAIL, "0.5 s"), "report": (REPORT, "3 s, 700 MiB")}
CHILD: Final = """
import glob, json, sys, time
directory, query = sys.argv[1], sys.argv[2]
files = sorted(glob.glob(directory + "/parts/padding-*.parquet"))
begin = time.perf_counter()
{work}
seconds = time.perf_counter() - begin
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([seconds, int(peak.split()[1]) / 1024]))
"""


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """The rows of the table; a full one takes 100,000,000 rows as well (some minutes, and several GB of disk)."""
    with tempfile.TemporaryDirectory() as folder:
        found = [*_of_lines(Path(folder), size.pick(2, 210))]
        for wanted in size.pick([2_000], [SMALLER], list(TARGETS)):
            found.extend(_large(Path(folder) / f"{wanted}", wanted, size))
        return found


def _large(directory: Path, wanted: int, size: Size) -> list[dict[str, Any]]:
    ranks, repeats = size.pick((2, 1), (RANKS, REPEATS))
    count = f"{write_large_run(directory, ranks, wanted) / 1e6:.3g} M rows"
    found = _looks(directory, wanted, f"{count} as written by {ranks} ranks", repeats)
    again = size.pick(["tail --once"], list(VIEWS))
    if wanted <= SMALLER:
        found.extend(_first_pictures(directory, f"{count} as written", ranks, repeats))
        found.extend(_kept(directory, f"{count} as written", repeats, again, "the session's end"))
        shutil.rmtree(directory / answers.FOLDER, ignore_errors=True)
    done = compact(directory)
    found.append(_speed(f"compact {count}, parts to parts", done))
    if size is not Size.SMALL:  # the same again takes as long
        found.extend(_looks(directory, wanted, f"{count}, compacted", repeats))
    if wanted <= SMALLER:
        found.extend(_views(directory, f"{count}, compacted"))
        found.extend(_kept(directory, f"{count}, compacted", repeats, again, "probe compact"))
    shutil.rmtree(directory)
    return found


def _looks(directory: Path, wanted: int, about: str, repeats: int) -> list[dict[str, Any]]:
    seconds, mib = TARGETS.get(wanted, TARGETS[SMALLER])
    works = (OURS, OURS_QUERY, PANDAS, DUCKDB)
    everything, query, pandas, duckdb = (_child(directory, work, repeats) for work in works)
    target = f"{seconds:g} s, {mib} MiB"
    note = f"ours {everything[1]:.0f} MiB, theirs {pandas[1]:.0f} MiB: only the table of the query, no overview"
    only = f"ours {query[1]:.0f} MiB, theirs {duckdb[1]:.0f} MiB"
    return [
        row(f"{about}: open, overview, query / pandas", everything[0], pandas[0], target, note),
        row(f"{about}: open, query / plain DuckDB", query[0], duckdb[0], "", only),
    ]


def _first_pictures(directory: Path, about: str, ranks: int, repeats: int) -> list[dict[str, Any]]:
    """What is there while the rows are still being read, of a run whose processes say where they are."""
    pages = [NowFile(directory / Segment.of_rank(rank).now_name, _process(rank)) for rank in range(ranks)]
    took, mib = _child(directory, GLANCE, repeats)
    pandas = _child(directory, PANDAS, 1)
    for page in pages:
        page.close()
        page.path.unlink()
    note = f"ours {mib:.0f} MiB: state, step and place of each process; the numbers follow"
    return [row(f"{about}: probe tail, first picture / pandas", took, pandas[0], "0.5 s", note)]


def _process(rank: int) -> Process:
    return Process(process=place_of_rank(rank), rank=rank, attempt=1, pid=os.getpid(), host="another")


def _views(directory: Path, about: str) -> list[dict[str, Any]]:
    """What people look at, with no answer kept. The alternative is pandas, which loads one table and groups it."""
    pandas = _child(directory, PANDAS, 1)
    took = {name: _child(directory, work, 1, keeps=False) for name, (work, _) in VIEWS.items()}
    return [
        row(f"{about}: {name}, nothing cached / pandas", seconds, pandas[0], VIEWS[name][1], f"ours {mib:.0f} MiB")
        for name, (seconds, mib) in took.items()
    ]


def _kept(directory: Path, about: str, repeats: int, views: Iterable[str], keeper: str) -> list[dict[str, Any]]:
    """What people look at, when somebody has had the answers worked out."""
    pandas = _child(directory, PANDAS, 1)
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", *KEEPERS[keeper], str(directory)], check=True, capture_output=True)
    worked_out = f"computed in {time.perf_counter() - begin:.0f} s"
    took = {name: _child(directory, VIEWS[name][0], repeats) for name in views}
    return [
        row(
            f"{about}: {name}, first time after {keeper} / pandas",
            took[name][0],
            pandas[0],
            VIEWS[name][1],
            f"ours {took[name][1]:.0f} MiB; {worked_out}",
        )
        for name in took
    ]


def _child(directory: Path, work: str, repeats: int, *, keeps: bool = True) -> tuple[float, float]:
    """The fastest of some new processes: seconds, and MiB at most."""
    environment = {**os.environ, answers.KEEP_VARIABLE: "1" if keeps else "0"}
    command = [sys.executable, "-c", CHILD.replace("{work}", work.strip()), str(directory), QUERY]
    told = [
        json.loads(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
        for _ in range(repeats)
    ]
    return min(seconds for seconds, _ in told), max(mib for _, mib in told)


def _of_lines(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Compaction of the JSONL files that killed processes leave."""
    from probe.runs.lines import encode
    from tests.sample_run import process, sample_rows

    directory = create_run("benchmark", "lines", root=folder)
    lines = b"".join(map(encode, [process(0), *sample_rows(1, 50)[0]]))
    for rank in range(ranks):
        (directory / Segment.of_rank(rank).name).write_bytes(lines.replace(b'"rank":0', b'"rank":%d' % rank))
    with mock.patch.object(liveness, "QUIET_S", 0.0):  # the files are of now, and of a machine that isn't there
        done = compact(directory, force=True)
    return [_speed(f"compact {done.rows / 1e6:.1f} M rows, JSONL to Parquet", done)]


def _speed(name: str, done: Compaction) -> dict[str, Any]:
    """Rows a second; the alternative is the rate that it has to keep up with."""
    rate = round(done.rows / done.seconds)
    note = f"{done.parts_before} files became {done.parts_after} in {done.seconds:.1f} s"
    return {**row(name, rate, KEPT_UP, f"≥ {KEPT_UP:,} rows/s", note), "unit": "rows/s"}


if __name__ == "__main__":
    from benchmarks.__main__ import table

    begin = time.perf_counter()
    print(table("large_run", rows(Size.asked(sys.argv))))
    print(f"{time.perf_counter() - begin:.0f} s")
