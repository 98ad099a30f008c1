"""Check the environment, frameworks, hooks, backends and a run, and say what helps.

For each installed framework it checks whether its files have the functions that probe observes. The framework isn't
imported.

For a run it tells, alarms first: what is wrong in the training (`probe findings` says more), torn files, lines that
are no rows, missing ranks, dropped rows, incidents, and values that a backend lacks. --recover sends those values, also
for the directory of a `probe.Tracking` without a run.

The exit code is 1 if a check failed or there is an alarm. Warnings alone give 0.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final, cast

from probe._check import missing_view
from probe.cli.doctor_checks import Check, environment, guarded, hooks, tracking
from probe.cli.doctor_frameworks import frameworks
from probe.cli.output import add_json, print_json
from probe.cli.runs import add_run, find_run
from probe.errors import InputError
from probe.text import visible

ABOUT: Final = "check the environment, tracking backends and a run"

EXAMPLE: Final = """\
probe doctor --track console,mlflow
probe doctor runs/arithmetic/grpo-small --recover"""

_STYLES: Final = {"ok": "green", "warning": "yellow", "error": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe doctor``."""
    add_run(parser, optional=True)
    add = parser.add_argument
    add("--track", type=_names, default=[], metavar="NAMES", help="backends to check, as in `track=`: console,mlflow")
    add("--recover", action="store_true", help="send what the run's backends lack, and set the run's status there")
    add_json(parser)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def run(arguments: argparse.Namespace) -> int:
    """Look at everything, and say what was found."""
    place = arguments.run_path
    if place is not None and not _is_tracked_alone(place):
        place = find_run(place)
    if arguments.recover and (place is None or "://" in place):
        raise InputError(f"--recover: got {place!r} as the run, expected a run directory on this machine")
    checks = list(_shown(_checks(place, arguments.track, recover=arguments.recover), quiet=arguments.json))
    failed = sum(check.level == "error" for check in checks)
    if arguments.json:
        print_json({"ok": not failed, "run": place, "checks": [asdict(check) for check in checks]})
    else:
        warned = sum(check.level == "warning" for check in checks)
        print(f"{len(checks)} checks: {_some(failed, 'error')}, {_some(warned, 'warning')}")
    return 1 if failed else 0


def _some(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


def _checks(place: str | None, backends: list[str], *, recover: bool) -> Iterator[Check]:
    local = Path(place) if place is not None and "://" not in place else None
    if place is not None and not _is_tracked_alone(place):
        from probe.cli.doctor_findings import finding_checks

        yield from guarded("run", "findings", lambda: finding_checks(place))
    yield from environment(local or Path.cwd())
    yield from guarded("frameworks", "installed", frameworks)
    yield from hooks()
    if place is not None:
        from probe.cli.doctor_run import run_checks, unsent_checks

        if not _is_tracked_alone(place):
            yield from run_checks(place)
        if local is not None:
            yield from guarded("run", "unsent", lambda: unsent_checks(place, recover=recover))
    if backends:
        yield from guarded("tracking", "checks", lambda: tracking(backends, local, _logged(place)))


def _is_tracked_alone(place: str) -> bool:
    """Whether a directory is that of a ``Tracking`` of one's own: it holds what waits to be sent, and no run."""
    from probe.runs.layout import INFO_NAME
    from probe.tracking.state import homes

    directory = Path(place)
    return "://" not in place and bool(homes(directory)) and not (directory / INFO_NAME).exists()


def _logged(place: str | None) -> list[tuple[str, int]]:
    from probe.cli.doctor_run import logged

    known = place is not None and not _is_tracked_alone(place) and missing_view() is None
    return logged(cast("str", place)) if known else []


def _shown(checks: Iterable[Check], *, quiet: bool) -> Iterator[Check]:
    """The same checks, each printed as soon as it's done."""
    show = _plain if quiet or importlib.util.find_spec("rich") is None else _coloured()
    for check in checks:
        if not quiet:
            about = f"{check.area}, {check.name}" if check.area != check.name else check.area
            show(check.level, visible(about), visible(check.message))
        yield check


def _plain(level: str, about: str, message: str) -> None:
    print(f"{level:8}{about}: {message}")


def _coloured() -> Callable[[str, str, str], None]:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)

    def show(level: str, about: str, message: str) -> None:
        line = Text.assemble((f"{level:8}", _STYLES[level]), (about, "bold"), ": ")
        line.append(message)
        console.print(line, soft_wrap=True)

    return show
