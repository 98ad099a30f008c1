"""The code on the hand-written pages: found, run, and its output put beside what the page says.

Every ``python`` and ``console`` block of a page runs, in order; ``<!-- not run: why -->`` on the line above leaves one
out, ``<!-- file: name -->`` writes it to a file instead, and a ``text`` block under ``<!-- output -->`` is what the
block before it prints. Python blocks of a page share one namespace. A console block holds commands, one on a line:
``probe``, ``python`` and ``torchrun``, with assignments of the environment before them; ``make`` commands aren't run,
but must be targets.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_FENCE: Final = re.compile(
    r"^(?:<!-- (?P<say>[a-z ]+)(?:: (?P<about>[^\n]*?))? -->\n)?```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_ASSIGNMENT: Final = re.compile(r"[A-Z_]+=")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        say: the word of the comment above it, "" without one; about: what follows it. line: of its fence, from 1.
        span: of its code in the page's text.
    """

    language: str
    code: str
    say: str
    about: str
    line: int
    span: tuple[int, int]


def blocks(text: str) -> list[Block]:
    """The blocks of a page, in order.

    >>> [(one.say, one.about, one.code) for one in blocks("<!-- not run: needs Ray -->\\n```python\\nx = 1\\n```\\n")]
    [('not run', 'needs Ray', 'x = 1\\n')]
    """
    return [
        Block(
            found["language"],
            found["code"],
            found["say"] or "",
            found["about"] or "",
            text.count("\n", 0, found.start("language")) + 1,
            found.span("code"),
        )
        for found in _FENCE.finditer(text)
    ]


def run(text: str, name: str) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a page in the current directory.

    Args:
        name: of the page, for tracebacks.

    Yields:
        Every ``output`` block, with what the block before it has printed.
    """
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    printed = ""
    for block in blocks(text):
        if block.say == "output":
            yield block, printed
        elif block.say == "file":
            Path(block.about).write_text(block.code, encoding="utf-8")
        elif block.say != "not run" and block.language == "python":
            printed = _python(block, name, namespace)
        elif block.say != "not run" and block.language == "console":
            printed = "".join(map(_command, commands(block)))


def commands(block: Block) -> list[str]:
    """The commands of a console block, those on several lines joined."""
    lines = re.sub(r"\\\n\s*", " ", block.code).splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _python(block: Block, name: str, namespace: dict[str, Any]) -> str:
    said = io.StringIO()
    code = compile("\n" * block.line + block.code, name, "exec")
    with contextlib.redirect_stdout(said):
        exec(code, namespace)  # noqa: S102  (the page's own code)
    return _tidy(said.getvalue())


def _command(line: str) -> str:
    """Run one command and return what it prints; it must succeed."""
    words = shlex.split(line, comments=True)
    environment = dict(os.environ, COLUMNS="100", PYTHONPATH=os.pathsep.join(sys.path))
    while _ASSIGNMENT.match(words[0]):
        variable, _, value = words.pop(0).partition("=")
        environment[variable] = value
    if words[0] == "make":
        return ""
    starts = {
        "probe": ["-m", "probe"],
        "python": [],
        "torchrun": ["-m", "torch.distributed.run"],
    }
    if words[0] not in starts:
        raise ValueError(f"{line!r}: expected a command out of make, {', '.join(starts)}, or a 'not run' comment")
    done = subprocess.run(  # noqa: S603  (the page's own command)
        [sys.executable, *starts[words[0]], *words[1:]],
        capture_output=True,
        text=True,
        env=environment,
        timeout=200,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{line!r} ended with {done.returncode}: {done.stderr}")
    return _tidy(done.stdout)


def make_targets(text: str) -> set[str]:
    """The targets of make that the commands of a page name."""
    found = [line for block in blocks(text) if block.language == "console" for line in commands(block)]
    return {line.split()[1] for line in found if line.startswith("make ")}


def _tidy(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.rstrip().splitlines())
