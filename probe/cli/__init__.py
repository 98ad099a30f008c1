"""The command ``probe``. One file a command; :data:`COMMANDS` is the list.

A command's module has ``ABOUT`` (one line), ``add_arguments(parser)`` and ``run(arguments)``, which returns
the exit code. It is imported for ``--help`` too, so it keeps torch, pandas and plotly inside its functions.

Exit codes: 0 success, 1 failure, 2 misuse, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from probe.errors import InputError, ProbeError, RunNotFoundError

#: Command to module.
COMMANDS: Final = {"demo": "probe.cli.demo"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: without the program's name; None takes those of the process.

    Raises:
        SystemExit: with code 2 for misuse and 0 after ``--help``, as argparse does.
    """
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except ProbeError as error:
        print(f"probe {arguments.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError | RunNotFoundError) else 1  # misuse, or something that failed
    except KeyboardInterrupt:
        print(f"probe {arguments.command}: interrupted", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="probe",
        description="See what a reinforcement-learning training step does with memory and tokens.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, path in COMMANDS.items():
        module = import_module(path)
        command = commands.add_parser(name, help=module.ABOUT, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser
