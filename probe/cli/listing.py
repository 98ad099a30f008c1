"""List the runs in a directory or URL and up to three levels below it, the newest first."""

from __future__ import annotations

import argparse
from typing import Any, Final

from probe.cli.output import add_json, print_json, remark
from probe.errors import ProbeError
from probe.runs.finding import runs_below
from probe.text import seconds, visible

ABOUT: Final = "list the runs below a directory"

EXAMPLE: Final = """\
probe list
probe list runs/arithmetic --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe list``."""
    parser.add_argument("directory", metavar="DIR", nargs="?", default="runs", help="a directory or its URL (runs)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each."""
    places = runs_below(arguments.directory, argument="DIR")
    found = sorted((_about(place) for place in places), key=lambda one: one["started_at"] or "", reverse=True)
    if arguments.json:
        print_json({"directory": arguments.directory, "runs": found})
    elif not found:
        remark("list", f"there is no run in {arguments.directory!r}")
    else:
        for line in _lines(found):
            print(visible(line))
    return 0


def _about(place: str) -> dict[str, Any]:
    """What is told of one run; a run that can't be read is listed with the reason."""
    import pandas as pd

    from probe.runs.files import RunFiles
    from probe.runs.now import now
    from probe.runs.outcome import outcome
    from probe.runs.reader import Run

    try:
        with Run(place) as opened:
            row = opened.sql(
                "select count(distinct step) as steps, (max(wall_ns) - min(wall_ns)) / 1e9 as duration_s from memory"
            ).iloc[0]
            end = outcome(now(RunFiles(place)))
            return {
                "path": place,
                "project": opened.info.project,
                "experiment": opened.info.experiment,
                "started_at": opened.info.started_at,
                "processes": int(opened.processes["process"].nunique()),
                "steps": int(row["steps"]),
                "duration_s": None if pd.isna(row["duration_s"]) else float(row["duration_s"]),
                "ended": None if end is None else end.short,
                "failed": list(end.who) if end is not None and end.word == "failed" else [],
                "error": None,
            }
    except (ProbeError, OSError) as error:
        names = ("project", "experiment", "started_at", "processes", "steps", "duration_s", "ended", "failed")
        nothing = dict.fromkeys(names)
        return {"path": place, **nothing, "error": str(error)}


def _lines(found: list[dict[str, Any]]) -> list[str]:
    told = [("STARTED", "PROCESSES", "STEPS", "LASTED", "RUN")]
    for one in found:
        started = (one["started_at"] or "?")[:19].replace("T", " ")
        if one["error"]:
            told.append((started, "?", "?", "?", f"{one['path']} ({one['error']})"))
            continue
        lasted = "?" if one["duration_s"] is None else seconds(one["duration_s"])
        lasted += f", {one['ended']}" if one["ended"] not in (None, "finished") else ""
        told.append((started, str(one["processes"]), str(one["steps"]), lasted, one["path"]))
    widths = [max(len(row[at]) for row in told) for at in range(4)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in told]
