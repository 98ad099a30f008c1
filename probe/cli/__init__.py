"""The command ``probe``. One file a command; :data:`COMMANDS` is the list.

A command's module has ``ABOUT`` (one line), ``EXAMPLE`` (lines to type, or one in :data:`EXAMPLES`),
``add_arguments(parser)`` and ``run(arguments)``, which returns the exit code. It is imported for ``--help`` too, so it
keeps torch, pandas and plotly inside its functions.

Results go to standard output, everything else to standard error. Exit codes: 0 success, 1 a failure or a failed check,
2 misuse, 130 interrupted, 141 the reader of the output has gone.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module, metadata
from io import TextIOWrapper
from typing import Any, Final

from probe._check import view_missing_in
from probe.errors import InputError, InputTypeError, ProbeError, RunNotFoundError
from probe.text import visible

#: Command to module.
COMMANDS: Final = {
    "run": "probe.cli.run",
    "demo": "probe.cli.demo",
    "list": "probe.cli.listing",
    "open": "probe.cli.open",
    "findings": "probe.cli.findings",
    "ledger": "probe.cli.ledger",
    "mismatch": "probe.cli.mismatch",
    "long-tail": "probe.cli.long_tail",
    "idle": "probe.cli.idle",
    "advise": "probe.cli.advise",
    "audit": "probe.cli.audit",
    "compare": "probe.cli.compare",
    "check": "probe.cli.check",
    "report": "probe.cli.report",
    "tail": "probe.cli.tail",
    "export": "probe.cli.export",
    "sql": "probe.cli.sql",
    "mcp": "probe.cli.mcp",
    "compact": "probe.cli.compact",
    "sync": "probe.cli.sync",
    "doctor": "probe.cli.doctor",
}

#: Examples of the commands whose module has none.
EXAMPLES: Final = {"demo": "probe demo --run-dir runs/demo/first"}

#: What a command raises when it was used wrongly, as against something that failed.
MISUSE: Final = (InputError, InputTypeError, RunNotFoundError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: The arguments without the program's name; None takes those of the process.

    Raises:
        SystemExit: With code 2 for misuse and 0 after ``--help`` and ``--version``, as argparse does.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    asked = given[0] if given and given[0] in COMMANDS else None
    arguments = make_parser(asked).parse_args(given)
    if argv is None and isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name may hold what UTF-8 can't say
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except ProbeError as error:
        return _refused(arguments.command, error)
    except ModuleNotFoundError as error:  # a view, in an installation that only records
        missing = view_missing_in(error, f"probe {arguments.command}")
        if missing is None:
            raise
        return _refused(arguments.command, missing)
    except KeyboardInterrupt:
        print(f"probe {arguments.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `probe sql … | head`: that's no error of ours
        _drop_output()
        return 141
    return code


def _refused(command: str, error: ProbeError) -> int:
    """Say it, and give the exit code."""
    print(f"probe {command}: {visible(str(error))}", file=sys.stderr)
    return 2 if isinstance(error, MISUSE) else 1


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; with ``only``, the other ones are there by name alone and not imported."""
    parser = argparse.ArgumentParser(
        prog="probe",
        description="See what a reinforcement-learning training step does with memory and tokens.",
        epilog="`probe COMMAND --help` shows a command's options and an example.",
    )
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, path in COMMANDS.items():
        if only is not None and name != only:
            commands.add_parser(name)
            continue
        module = import_module(path)
        command = commands.add_parser(
            name,
            help=module.ABOUT,
            description=module.__doc__,
            epilog="example:\n" + textwrap.indent(getattr(module, "EXAMPLE", None) or EXAMPLES[name], "  "),
            formatter_class=_Paragraphs,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


class _Paragraphs(argparse.HelpFormatter):
    """Fills each paragraph by itself; an example stays as it is, so that it can be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("example:"):
            return text
        paragraphs = text.strip().split("\n\n")
        return "\n\n".join(textwrap.fill(" ".join(one.split()), width, initial_indent=indent) for one in paragraphs)


class _Version(argparse.Action):
    """Looks the version up when it is asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        try:
            version = metadata.version("probe-rl")
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        print(f"probe {version}")
        parser.exit()


def _drop_output() -> None:
    """What is still buffered goes nowhere, so that the interpreter's end doesn't complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
