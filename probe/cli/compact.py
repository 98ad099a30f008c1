"""Merge the many small files of a run into few large ones, which open faster. The rows stay the same.

The rows of processes that have ended or were killed become Parquet as well. What a process is still writing is left
alone. For a large run the answers that panel, terminal and overview ask first are kept beside the rows.
"""

from __future__ import annotations

import argparse
from typing import Final

from probe.cli.output import add_json, print_json, remark
from probe.cli.runs import add_run, find_run
from probe.errors import ProbeError
from probe.text import size

ABOUT: Final = "merge the files of a run into few large ones"

EXAMPLE: Final = "probe compact runs/arithmetic/grpo-small"

_FIELDS: Final = ("rows", "parts_before", "parts_after", "segments", "seconds", "bytes_before", "bytes_after", "left")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe compact``."""
    add_run(parser)
    about = "also merge files that may not be finished, such as another host's; only when no process writes any more"
    parser.add_argument("--force", action="store_true", help=about)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Merge, and say what became of what."""
    place = find_run(arguments.run_path)
    from probe.runs.compaction import compact

    done = compact(place, force=arguments.force)
    _work_out(place, done.bytes_after)
    if arguments.json:
        print_json({"run": place, **{name: getattr(done, name) for name in _FIELDS}})
        return 0
    if done.rows:
        rate = f", {done.rows / done.seconds:,.0f} rows/s" if done.seconds > 0 else ""
        print(f"{done.rows:,} rows of {done.segments:,} segments in {done.seconds:.1f} s{rate}")
        print(f"files: {done.parts_before:,} → {done.parts_after:,}")
        print(f"size:  {size(done.bytes_before)} → {size(done.bytes_after)}")
    else:
        print(f"nothing to do: {done.parts_before:,} files, {size(done.bytes_before)}")
    for name, why in done.left.items():
        remark("compact", f"{name} was left alone: {why}")
    return 0


def _work_out(place: str, size_bytes: int) -> None:
    """Of a large run what views ask first: it is compacted once and looked at often."""
    from probe.runs import answers

    if size_bytes < answers.LEAST_BYTES:
        return
    from probe.cli.first_look import work_out

    try:
        work_out(place)
    except ProbeError as error:  # it is compacted all the same
        remark("compact", f"the answers that views ask first couldn't be worked out: {error}")
