"""Export to Perfetto: our trace beside the plain way, the JSON of torch's profiler from whole tables and ``json.dump``.

Both say the same of the same run: each call as a slice with its numbers, each value of memory as a counter. Ours also
nests the slices, pairs micro-batches with their tokens, and is streamed. Each is a new process, which tells its largest
memory. A row is one of ``calls`` or ``memory``.

python -m benchmarks.perfetto
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.large_run_data import write_large_run
from benchmarks.measure import Size, row

#: Rows of all tables, about a quarter of them calls and memory.
ROWS: Final = 2_000_000
RANKS: Final = 32

OURS: Final = """
from probe.exporting.perfetto import export_perfetto
export_perfetto(directory, target)
"""

PLAIN: Final = """
import json
from probe.runs.reader import Run
columns = ["step", "role", "phase", "micro_batch", "rows_in", "rows_out", "bytes_in", "bytes_out", "error"]
counters = ["allocated_bytes", "reserved_bytes", "device_used_bytes", "process_rss_bytes"]
events = []
with Run(directory) as run:
    calls = run.calls
    starts = (calls["wall_ns"] - calls["time_ns"] + calls["begin_ns"]).tolist()
    table = calls[["rank", "name", "point", "duration_ns", *columns]].astype(object)
    table = table.where(table.notna(), None)
    for start, (rank, name, point, duration, *rest) in zip(starts, table.values.tolist(), strict=True):
        told = {key: value for key, value in zip(columns, rest) if value is not None}
        events.append({"ph": "X", "cat": point, "name": name, "pid": rank, "tid": rank, "ts": start / 1000,
                       "dur": duration / 1000, "args": told})
    memory = run.memory
    for column in counters:
        known = memory[memory[column].notna()]
        for rank, at, value in zip(known["rank"].tolist(), known["wall_ns"].tolist(), known[column].tolist()):
            events.append({"ph": "C", "name": column, "pid": rank, "ts": at / 1000, "args": {column: value}})
with open(target, "w") as file:
    json.dump({"traceEvents": events}, file)
"""

CHILD: Final = """
import json, os, sys, time
directory, target = sys.argv[1], sys.argv[2]
begin = time.perf_counter()
{work}
seconds = time.perf_counter() - begin
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([seconds, int(peak.split()[1]) / 1024, os.path.getsize(target) / 2**20]))
"""


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """The rows of the table; a full one takes five times as large a run as well."""
    ranks, repeats = size.pick((2, 1), (RANKS, 2))
    with tempfile.TemporaryDirectory() as folder:
        counts = size.pick([2_000], [ROWS], [ROWS, 5 * ROWS])
        return [_compare(Path(folder) / str(wanted), ranks, wanted, repeats) for wanted in counts]


def _compare(directory: Path, ranks: int, wanted: int, repeats: int) -> dict[str, Any]:
    from probe.runs.reader import Run

    write_large_run(directory, ranks, wanted)
    with Run(directory) as run:
        counts = run.sql("select (select count(*) from calls) + (select count(*) from memory) as n")
    exported = int(counts["n"][0])
    ours, plain = (_child(directory, work, repeats) for work in (OURS, PLAIN))
    note = (
        f"ours {ours[0]:.1f} s, {ours[1]:.0f} MiB of memory, a file of {ours[2]:.0f} MiB; "
        f"theirs {plain[0]:.1f} s, {plain[1]:.0f} MiB, {plain[2]:.0f} MiB"
    )
    name = f"export {exported / 1e6:.2f} M rows of {ranks} ranks to Perfetto / JSON by json.dump"
    return {**row(name, round(exported / ours[0]), round(exported / plain[0]), "", note), "unit": "rows/s"}


def _child(directory: Path, work: str, repeats: int) -> tuple[float, float, float]:
    """The fastest of some new processes: seconds, MiB of memory at most, and MiB of the file."""
    target = directory.with_suffix(".trace")
    command = [sys.executable, "-c", CHILD.replace("{work}", work.strip()), str(directory), str(target)]
    told = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
    target.unlink()
    return min(told)[0], max(mib for _, mib, _ in told), told[0][2]


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table("perfetto", rows(Size.asked(sys.argv))))
