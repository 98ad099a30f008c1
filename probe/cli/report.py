"""Write the report of a run: one HTML file with everything inside, which opens without a network.

An old file is replaced once the new one is complete.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from probe.cli.output import add_json, print_json
from probe.cli.runs import add_attempt, add_run, find_run
from probe.errors import InputError
from probe.text import size, visible

ABOUT: Final = "write the report of a run as one HTML file"

EXAMPLE: Final = """\
probe report runs/arithmetic/grpo-small
probe report s3://bucket/runs/arithmetic/grpo-small -o report.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe report``."""
    add_run(parser)
    add_attempt(parser)
    about = "the file (report.html in the run directory; of a run at a URL, in the working directory)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=about)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write it, and say where it is."""
    place = find_run(arguments.run_path)
    target = _target(arguments.output, place)
    from probe.runs.reader import Run
    from probe.views.report.report import write_report

    with Run(place, arguments.attempt) as opened:
        path = write_report(opened, target)
    if arguments.json:
        print_json({"run": place, "path": str(path), "bytes": path.stat().st_size})
    else:
        print(visible(f"{path} ({size(path.stat().st_size)})"))
    return 0


def _target(given: Path | None, place: str) -> Path:
    if given is None:
        return Path("report.html") if "://" in place else Path(place) / "report.html"
    if given.is_dir():
        raise InputError(f"--output: {str(given)!r} is a directory, expected a file such as {given / 'report.html'}")
    return given
