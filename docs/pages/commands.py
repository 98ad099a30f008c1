"""The page of the command line: what each command says of itself."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from importlib import import_module
from typing import Final

from pages.markdown import plain
from probe import cli

_WIDTH: Final = "96"

HEAD: Final = """# Command line

`probe COMMAND`, or `python -m probe COMMAND`. This page is what the commands themselves print with `--help`.

Exit codes: 0 success, 1 failure or a failed check, 2 misuse, 130 interrupted. Errors go to standard error.

"""


def page() -> str:
    """The text of the page."""
    made = [HEAD, "| command | |\n|---|---|\n"]
    made += [f"| [`probe {name}`](#{name}) | {plain(about(name))} |\n" for name in cli.COMMANDS]
    for name in cli.COMMANDS:
        made.append(f"\n## probe {name} {{ #{name} }}\n\n```text\n{help_of(name)}\n```\n")
    return "".join(made)


def about(name: str) -> str:
    """The one line of a command."""
    return str(import_module(cli.COMMANDS[name]).ABOUT)


def help_of(*command: str) -> str:
    """What ``probe COMMAND --help`` prints."""
    said = io.StringIO()
    with _plain_terminal(), contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        cli.main([*command, "--help"])
    return said.getvalue().rstrip()


@contextlib.contextmanager
def _plain_terminal() -> Iterator[None]:
    """The same width everywhere, and no colours, which newer Pythons give to help texts."""
    wanted = {"COLUMNS": _WIDTH, "NO_COLOR": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
