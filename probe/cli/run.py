"""Run a training script unchanged, and record the frameworks it trains with: verl, TRL, Lightning and others.

Each Python process that the command starts checks whether it imports one of these frameworks, ranks of torchrun and
workers of Ray included. Those that do record into the same run directory, from the first thing that is observed. A
process that imports none stays as it is. A script that trains without a framework is observed where it calls
`probe.start` itself.

The command keeps its terminal, its signals and its exit code.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from probe.errors import InputError, MissingDependencyError
from probe.guard import Guard
from probe.text import visible
from probe.torch_debug.waiting import PORT, VARIABLE

_log = logging.getLogger("probe.cli.run")

ABOUT: Final = "run a training script unchanged, and record it"

EXAMPLE: Final = """\
probe run -- torchrun --nproc-per-node 8 train.py
probe run --run-dir /shared/runs/first -- python -m verl.trainer.main_ppo trainer.n_gpus_per_node=8"""

DEBUG_SERVER: Final = (
    f"start PyTorch's debug server in each rank, with its page on this port of rank 0's machine (default: {PORT}). It "
    "has no password: whoever reaches the machine sees stacks and collectives. Takes PyTorch 2.13, jinja2 and tabulate"
)

#: The exit code of shells where there is no such program.
NOT_FOUND: Final = 127

#: Options of launchers that say on how many machines they start.
_MACHINES: Final = ("--nnodes", "--num_machines", "--num-machines")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe run``."""
    add = parser.add_argument
    add("--run-dir", metavar="DIR", help="the run directory itself; processes on several machines need the same one")
    add("--root", default="runs", metavar="DIR", help="the directory that holds all runs (default: runs)")
    add("--project", default="run", metavar="NAME", help="first part of the run's path (default: run)")
    add("--experiment", metavar="NAME", help="second part of the run's path (default: the time)")
    about = "number of this launch of the run, where several machines begin it together (default: a new one)"
    add("--attempt", type=int, metavar="N", help=about)
    add("--debug-server", metavar="PORT", nargs="?", type=int, const=PORT, help=DEBUG_SERVER)
    add("command_line", metavar="COMMAND", nargs=argparse.REMAINDER, help="the command to run, after `--`")


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and say afterwards what was recorded."""
    from probe.cli.run_process import end_as, run_process
    from probe.hooks import is_off

    command = arguments.command_line
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise InputError("COMMAND: got nothing to run, expected a program and its arguments, after `--`")
    if shutil.which(command[0]) is None:
        _say(f"{command[0]}: there is no such program, or it can't be run")
        return NOT_FOUND
    if is_off():
        return end_as(run_process(command, os.environ))
    directory = _directory(arguments)
    attempt = arguments.attempt or _attempt(directory, command)
    _say(f"recording to {_shown(directory)}")
    environ = environment(os.environ, directory, attempt)
    if arguments.debug_server is not None:
        environ |= {"TORCH_FR_BUFFER_SIZE": "2000", **environ, VARIABLE: str(arguments.debug_server)}
        _say(
            f"PyTorch's debug server, without a password: http://{socket.gethostname()}:{arguments.debug_server}/probe"
        )
    code = run_process(command, environ)
    with _guard():
        _tell(directory, attempt, well=code == 0)
    return end_as(code)


def _guard() -> Guard:
    """The command has done its work: its exit code stands."""

    def tell(_kind: str, _where: str, message: str, *_: object) -> None:
        _say(message)

    failed = "the recorded run can't be summarised"
    return Guard("probe run", failed, kind="cli", tell=tell, log=_log, level=logging.DEBUG)


def _directory(arguments: argparse.Namespace) -> Path:
    from probe.runs.layout import create_run

    names: dict[str, Any] = {"root": arguments.root, "run_dir": arguments.run_dir}
    return create_run(arguments.project, arguments.experiment, **names)


def _attempt(directory: Path, command: Sequence[str]) -> int | None:
    """The number of this launch; None leaves it to what launchers say: of several machines none can know it alone."""
    from probe.runs.attempts import asked, next_attempt

    named = asked()
    if named is not None or _on_several_machines(command, os.environ):
        return named
    return next_attempt(directory)


def _on_several_machines(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    counts = [environ.get(name, "1") for name in ("PET_NNODES", "SLURM_NNODES")]
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in _MACHINES:
            counts.append(value if equals else following)
    return any(one.strip() not in ("", "1", "1:1") for one in counts)


def environment(before: Mapping[str, str], directory: Path, attempt: int | None) -> dict[str, str]:
    """The environment in which every Python process looks for frameworks, and all record into one run.

    Args:
        before: The environment as it is.
        directory: The run directory, absolute.
        attempt: Number of this launch; None leaves it to what launchers say.
    """
    from probe.adapters import startup
    from probe.runs.attempts import ATTEMPT_VARIABLE
    from probe.runs.layout import RUN_DIR_VARIABLE

    (place,) = startup.__path__
    known = [one for one in before.get("PYTHONPATH", "").split(os.pathsep) if one and one != place]
    made = {**before, "PYTHONPATH": os.pathsep.join([place, *known]), RUN_DIR_VARIABLE: str(directory)}
    if attempt is not None:
        made[ATTEMPT_VARIABLE] = str(attempt)
    return made


# ---------------------------------------------------------------------------------------------------- afterwards


def _tell(directory: Path, attempt: int | None, *, well: bool) -> None:
    """What was recorded, and which of the frameworks that are installed nobody was seen to use."""
    from probe.cli.doctor_frameworks import installed, summaries
    from probe.runs.ending import seal
    from probe.runs.reader import Run

    if well:
        seal(directory, attempt)  # Ray ends its actors without asking them
    try:
        with Run(directory) as opened:
            rows = opened.processes
        if attempt is not None and not rows.empty:
            rows = rows[rows["attempt"] == attempt]
    except MissingDependencyError as error:
        _say(f"the recorded run can't be read here: {error}")
        return
    told = list(dict.fromkeys(one for text in rows["adapters"].dropna() for one in summaries(text)))
    count = len(rows)
    unseen = [name for name in installed() if name != "ray" and not any(one.startswith(name) for one in told)]
    for one in told:
        _say(one)
    if not count:
        _say("no process has recorded: none was seen to use a framework that probe knows, or to call probe.start")
        _say("probe can't record under python -I, -E or -S, or where probe isn't installed or PYTHONPATH is set anew")
    if unseen:
        _say(f"installed here, but not seen in use: {', '.join(unseen)}")
    if count:
        _say(f"{count} process{'es' if count > 1 else ''} recorded to {_shown(directory)}")


def _shown(directory: Path) -> str:
    return os.path.relpath(directory) if directory.is_relative_to(Path.cwd()) else str(directory)


def _say(text: str) -> None:
    print(f"probe: {visible(text)}", file=sys.stderr, flush=True)
