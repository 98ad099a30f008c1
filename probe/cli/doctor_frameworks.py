"""The checks of ``probe doctor`` that look at frameworks: which are installed, and whether probe can observe them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Final

from probe.cli.doctor_checks import Check, guarded

if TYPE_CHECKING:
    from probe.adapters.seams import Seam
    from probe.runs.reader import Run

#: verl's group of entry points, and ours in it.
GROUP: Final = "verl.plugins"
PLUGIN: Final = "probe_rl.verl"

#: How verl is told which of them to load.
_SWITCH: Final = "VERL_USE_EXTERNAL_PLUGINS"

_LONGEST_S: Final = 60


def installed() -> dict[str, str]:
    """The frameworks that are installed in this environment, and their versions."""
    from probe.adapters.attachment import ADAPTERS

    found = {}
    for name, adapter in ADAPTERS.items():
        try:
            found[name] = metadata.version(adapter.distribution)
        except metadata.PackageNotFoundError:
            continue
    return found


def frameworks() -> Iterator[Check]:
    """Each framework that is installed: which of its functions are where the adapter looks for them, by its files."""
    from probe.adapters.attachment import ADAPTERS

    found = installed()
    if not found:
        yield Check("frameworks", "installed", "ok", f"none of {', '.join(ADAPTERS)} is installed")
    for name, version in found.items():
        yield from guarded("frameworks", name, partial(_framework, name, version))
    if "verl" in found:
        yield from guarded("frameworks", "verl's plugin", _plugin)


def _framework(name: str, version: str) -> Iterator[Check]:
    from probe.adapters.locating import locate

    located = locate(_table(name))
    there = len(located.points) - len(located.missing)
    said = f"{version}: {there} of {len(located.points)} hook points are in its files"
    if not located.missing:
        yield Check("frameworks", name, "ok", said)
        return
    said += f"; not found: {', '.join(located.missing)}"
    if located.without:
        said += f" (no such module: {', '.join(located.without)})"
    yield Check("frameworks", name, "warning", said)


def _table(name: str) -> list[Seam]:
    from probe.adapters.attachment import ADAPTERS

    module, _, attribute = ADAPTERS[name].table.partition(":")
    return list(getattr(importlib.import_module(module), attribute))


def _plugin() -> Iterator[Check]:
    """verl swallows what a plugin raises: here it is loaded as verl does, in a process of its own."""
    entries = [one for one in metadata.entry_points(group=GROUP) if one.value == PLUGIN]
    if not entries:
        about = f"verl won't load probe: no entry point of {GROUP} names {PLUGIN}; install probe-rl again"
        yield Check("frameworks", "verl's plugin", "error", about)
        return
    chosen = os.environ.get(_SWITCH, "auto")
    if chosen != "auto" and entries[0].name not in [one.strip() for one in chosen.split(",")]:
        about = f"verl won't load probe: {_SWITCH}={chosen!r}; leave it out, or add {entries[0].name!r}"
        yield Check("frameworks", "verl's plugin", "error", about)
        return
    done = _loaded(entries[0].name)
    if done.returncode:
        why = done.stderr.strip().rpartition("\n")[2] or "it attached to nothing"
        yield Check("frameworks", "verl's plugin", "error", f"it fails, and verl doesn't say so: {why}")
    else:
        yield Check("frameworks", "verl's plugin", "ok", f"entry point {entries[0].name!r} of {GROUP} loads")


def _loaded(name: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from importlib import metadata;"
        f"[one.load() for one in metadata.entry_points(group={GROUP!r}, name={name!r})];"
        "from probe.frameworks import attached;"
        "sys.exit(not any(one.framework == 'verl' for one in attached()))"
    )
    environ = {**os.environ, "PROBE_RUN_DIR": os.devnull, "PROBE": "on"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=_LONGEST_S, check=False, env=environ
    )


# ---------------------------------------------------------------------------------------------------- of a run


def summaries(text: str) -> list[str]:
    """What a process says of each framework, from its row: sentences that may have a semicolon themselves.

    Args:
        text: As in the column ``adapters`` of ``processes``.

    >>> summaries("trl 1.16: 3 of 4 points are observed; not found: saving; ray 2.60: 1 of 1 points are observed")
    ['trl 1.16: 3 of 4 points are observed; not found: saving', 'ray 2.60: 1 of 1 points are observed']
    """
    found: list[str] = []
    for part in filter(None, text.split("; ")):
        if found and part.startswith("not found:"):
            found[-1] += f"; {part}"
        else:
            found.append(part)
    return found


def of_run(run: Run) -> Iterator[Check]:
    """Which frameworks were observed in a run, and what of them wasn't found."""
    rows = run.processes
    told = Counter(one for text in rows["adapters"].dropna() for one in summaries(text))
    for said, count in told.items():
        whole = "not found:" not in said and "not observed:" not in said
        about = f"{said} (in {count} of {len(rows)} processes)"
        yield Check("run", "frameworks", "ok" if whole else "warning", about)
    if not told and len(rows):
        yield Check("run", "frameworks", "ok", _none(installed()))


def _none(names: Iterable[str]) -> str:
    said = "no process has observed a framework"
    here = [one for one in names if one != "ray"]
    return said + (
        f"; installed here: {', '.join(here)}. Observe with `probe run`, or PROBE_RUN_DIR for verl" if here else ""
    )
