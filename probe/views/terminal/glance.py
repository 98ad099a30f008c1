"""What is shown of a large run while its rows are still being read: what its smallest files tell, at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from probe import text as words
from probe.runs.now import Now, now
from probe.runs.outcome import outcome
from probe.views.terminal import lines
from probe.views.terminal.following import Following
from probe.views.terminal.view import began, header

#: Places of processes that are shown.
PLACES: Final = 5


def glance(run: Following) -> RenderableType:
    """The run's name, how it stands, and where its processes are.

    Args:
        run: The run; no row of it needs to have been read.

    Raises:
        RunError: Its files can't be read.
    """
    processes = now(run.feed.files)
    ranks = len({one.rank for one in processes if one.rank is not None})
    others = sum(one.rank is None for one in processes)
    steps = [scope.step for one in processes for scope in one.scopes if scope.step is not None]
    told = [words.writers(ranks, others)] if processes else []
    told += [f"step {max(steps)}"] if steps else []
    parts = [header(run, _state(processes), told, began(run), Text("reading its rows …"))]
    places = _places(processes)
    return Group(*parts, Text(), *(Text(one) for one in places)) if places else Group(*parts)


def _state(processes: Sequence[Now]) -> Text:
    end = outcome(processes)
    if end is not None:
        return Text("finished", "bold") if end.word == "finished" else Text(lines.plain(str(end)), "bold red")
    return Text("recording", "green") if any(one.alive and not one.closed for one in processes) else Text()


def _places(processes: Sequence[Now]) -> list[str]:
    """How many processes are in which phase of which step, the most first; those between scopes are left out."""
    found = Counter((one.step, one.phase or one.scope) for one in processes if one.scopes and not one.closed)
    told = [
        f"{words.count(many)} in {lines.plain(where)}" + ("" if step is None else f" of step {step}")
        for (step, where), many in sorted(found.items(), key=lambda one: (-one[1], one[0][0] or 0, one[0][1]))
    ]
    return [*told[:PLACES], *([f"and {len(told) - PLACES} more places"] if len(told) > PLACES else [])]
