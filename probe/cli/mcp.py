"""Answer an agent's questions about runs, by the Model Context Protocol over standard input and output.

The agent starts the command: name `probe mcp DIR` in the agent's configuration. `probe mcp --skill` prints a skill
file, which tells an agent how to ask.

Tools: list_runs, findings, what_if, advise, compare, sql. They only read, and nothing outside of DIR. The SDK of the
protocol comes with `pip install 'probe-rl[mcp]'`.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from probe.errors import InputError

ABOUT: Final = "answer an agent's questions about runs (Model Context Protocol)"

EXAMPLE: Final = """\
probe mcp runs
probe mcp --skill"""

#: Seconds that an answer may take, and bytes that it may have.
SECONDS: Final = 60.0
BYTES: Final = 40_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe mcp``."""
    about = "a directory or its URL; runs outside of it aren't read (runs)"
    parser.add_argument("directory", metavar="DIR", nargs="?", default="runs", help=about)
    add = parser.add_argument
    add("--skill", action="store_true", help="print the skill file, and end")
    add("--seconds", type=float, default=SECONDS, metavar="N", help=f"seconds that an answer may take ({SECONDS:g})")
    add("--bytes", type=int, default=BYTES, metavar="N", help=f"bytes that an answer may have ({BYTES})")


def run(arguments: argparse.Namespace) -> int:
    """Serve until the other end closes; or print the skill file."""
    if arguments.skill:
        from probe.views.agents.skill import skill

        sys.stdout.write(skill())
        return 0
    if not arguments.seconds > 0:
        raise InputError(f"--seconds: got {arguments.seconds}, expected more than 0")
    if arguments.bytes < 1000:
        raise InputError(f"--bytes: got {arguments.bytes}, expected 1000 or more")
    try:
        from probe.views.agents.server import make_server
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("mcp", "mcp_types", "anyio"):
            raise
        raise InputError("mcp: needs the package 'mcp'; install it with: pip install 'probe-rl[mcp]'") from error
    from probe.views.agents.worker import Worker

    worker = Worker(arguments.directory, seconds=arguments.seconds, most_bytes=arguments.bytes)
    try:
        make_server(worker).run("stdio")
    finally:
        worker.close()
    return 0
