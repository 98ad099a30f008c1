"""The checks of ``probe doctor`` that need no run: the environment, the hooks, and tracking backends."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, cast

from probe._check import missing_view
from probe.guard import attempt

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        area: One of "environment", "frameworks", "hooks", "tracking" and "run".
        name: The name of the check.
        message: What was found, and what helps.
    """

    area: str
    name: str
    level: Level
    message: str


DISTRIBUTION: Final = "probe-rl"

#: Packages whose own demands on others are compared with what is installed.
_DEMANDING: Final = (DISTRIBUTION, "tensordict", "verl", "nemo-rl")


def guarded(area: str, name: str, check: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """What ``check`` finds; that it fails itself is a finding too, so that one broken thing hides no other."""
    found: list[Check] = []

    def failed(error: Exception) -> None:
        found.append(Check(area, name, "error", f"{type(error).__name__}: {error}"))

    attempt(lambda: found.extend(check()), failed)  # what was found before an error stays
    yield from found


def environment(directory: Path) -> Iterator[Check]:
    """Versions, torch and tensordict, the device, and room on the disk of ``directory``."""
    area = "environment"
    yield from guarded(area, "versions", _versions)
    yield from guarded(area, "package", _package)
    yield from guarded(area, "requirements", _requirements)
    yield from guarded(area, "torch", _torch)
    yield from guarded(area, "device", _device)
    yield from guarded(area, "disk", lambda: _disk(directory))
    yield from guarded(area, "extras", _extras)


def _versions() -> Iterator[Check]:
    import platform

    from probe.records import SCHEMA_VERSION

    told = [f"probe {_version(DISTRIBUTION) or '(not installed)'}", f"Python {platform.python_version()}"]
    told += [f"{name} {_version(name)}" for name in ("duckdb", "pyarrow", "pandas", "numpy") if _version(name)]
    yield Check("environment", "versions", "ok", f"{', '.join(told)}; row schema {SCHEMA_VERSION}")


def _package() -> Iterator[Check]:
    """Whether another distribution brings a package ``probe``: pip lets the later of the two overwrite the earlier."""
    from probe_rl import others

    names = list(others())
    if not names:
        yield Check("environment", "package", "ok", f"only {DISTRIBUTION} installs a package 'probe'")
    for name in names:
        about = f"{name} brings a package 'probe' too, and this one lies in its place: give each its own environment"
        yield Check("environment", "package", "warning", about)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> Iterator[Check]:
    """What installed packages ask of each other and don't get; torch and tensordict above all."""
    unmet = [line for name in _DEMANDING for line in _unmet(name)]
    for line in unmet:
        yield Check("environment", "requirements", "error", line)
    if not unmet:
        looked = ", ".join(name for name in _DEMANDING if _version(name))
        yield Check("environment", "requirements", "ok", f"what {looked} ask for is installed")


def _unmet(name: str) -> Iterator[str]:
    from packaging.requirements import Requirement

    if _version(name) is None:
        return
    for text in metadata.requires(name) or ():
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        found = _version(wanted.name)
        if found is None:
            yield f"{name} {_version(name)} needs {wanted.name}, which isn't installed"
        elif not wanted.specifier.contains(found, prereleases=True):
            asked = f"{wanted.name}{wanted.specifier}"
            yield f"{name} {_version(name)} needs {asked}, and {found} is installed: pip install '{asked}'"


def _torch() -> Iterator[Check]:
    """The pair, by what probe does with it: rows of unlike length through a TensorDict."""
    import torch
    from tensordict import TensorDict

    rows = torch.nested.as_nested_tensor([torch.arange(3), torch.arange(5)], layout=torch.jagged)
    batch = TensorDict({"tokens": rows}, batch_size=[2])
    lengths = batch["tokens"].offsets().diff().tolist()
    pair = f"torch {torch.__version__}, tensordict {_version('tensordict')}"
    if lengths != [3, 5]:
        yield Check("environment", "torch", "error", f"{pair}: rows of 3 and 5 tokens came back as {lengths}")
        return
    yield Check("environment", "torch", "ok", f"{pair}: jagged rows round-trip through a TensorDict")


def _device() -> Iterator[Check]:
    from probe import devices

    device = devices.detect()
    counters = device.read(whole=True)
    if device.source == "process_rss":
        message = f"{device.name} ({device.description}): no accelerator, so memory means this process's resident set"
    else:
        exact = "" if any(value is not None for value in counters) else "; nothing is measured before it is first used"
        message = f"{device.name} ({device.description}): memory of torch's allocator and of the device{exact}"
    yield Check("environment", "device", "ok", message)


def _disk(directory: Path) -> Iterator[Check]:
    from probe import text as words
    from probe.tracking.checks import LITTLE_ROOM
    from probe.tracking.reach import unwritable

    why = unwritable(directory)
    if why:
        yield Check("environment", "disk", "error", f"{why}; a run can't be written there")
        return
    there = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    level: Level = "ok" if free >= LITTLE_ROOM else "warning"
    yield Check("environment", "disk", level, f"{there}: {words.size(free)} is free")


def _extras() -> Iterator[Check]:
    """Which optional parts can be used, and how to get the others."""
    there: list[str] = []
    absent: list[str] = []
    for extra in metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ():
        if extra not in {"all", "dev"}:
            (there if all(map(_version, _brought_by(extra))) else absent).append(extra)
    message = f"installed: {', '.join(there) or 'none'}"
    if absent:
        first = "views" if "views" in absent else absent[0]
        message += f"; not installed: {', '.join(absent)} (pip install '{DISTRIBUTION}[{first}]')"
    yield Check("environment", "extras", "ok", message)


def _brought_by(extra: str) -> Iterator[str]:
    """The packages of an extra, those of the extras that it is made of included."""
    from packaging.requirements import Requirement

    for one in map(Requirement, metadata.requires(DISTRIBUTION) or ()):
        if one.marker is None or one.marker.evaluate({"extra": ""}) or not one.marker.evaluate({"extra": extra}):
            continue
        if one.name == DISTRIBUTION:
            yield from (name for inner in sorted(one.extras - {extra}) for name in _brought_by(inner))
        else:
            yield one.name


# -------------------------------------------------------------------------------------------------------- hooks


def hooks() -> Iterator[Check]:
    """Whether what happens in a step reaches a run directory."""
    yield from guarded("hooks", "rows", _rows_arrive)


def _rows_arrive() -> Iterator[Check]:
    """A session of one step in a temporary directory, read back."""
    import torch

    from probe import session
    from probe.core.protocol import DataProto
    from probe.core.seqlen_balancing import rearrange_micro_batches

    if session.current_session() is not None:
        yield Check("hooks", "rows", "ok", "not tried: this process records already")
        return
    with tempfile.TemporaryDirectory(prefix="probe-doctor-") as place:
        with session.start("doctor", run_dir=Path(place) / "run", rank=0, world_size=1) as opened, opened.step(0):
            mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
            data = DataProto.from_dict({"input_ids": mask.clone(), "attention_mask": mask})
            rearrange_micro_batches(cast("Any", data.batch), max_token_len=4)
        counts, incidents = _read_back(Path(place) / "run")
    missing = [name for name, count in counts.items() if not count]
    for message in incidents:
        yield Check("hooks", "rows", "error", f"an incident in a session of one step: {message}")
    if missing:
        yield Check("hooks", "rows", "error", f"a session of one step left no rows of {', '.join(missing)}")
    if not missing and not incidents:
        told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
        yield Check("hooks", "rows", "ok", f"a session of one step was read back: {told}")


def _read_back(directory: Path) -> tuple[dict[str, int], list[str]]:
    """How many rows each of some tables has, and what incidents say; by the views where they are installed."""
    names = ("calls", "memory", "micro_batches", "padding")
    if missing_view() is None:
        from probe.runs.reader import Run

        with Run(directory) as run:
            return {name: len(run.table(name)) for name in names}, list(run.incidents["message"])
    from probe.records import Incident
    from probe.runs.files import RunFiles
    from probe.runs.follower import Follower
    from probe.runs.lines import table_of

    rows = Follower(RunFiles(directory)).poll()
    counts = Counter(table_of(row) for row in rows)
    return {name: counts[name] for name in names}, [row.message for row in rows if isinstance(row, Incident)]


# ----------------------------------------------------------------------------------------------------- tracking

#: Findings of one kind that are told one by one.
NAMED: Final = 4


def _alike(found: Iterable[Any]) -> dict[tuple[str, str], list[Any]]:
    groups: dict[tuple[str, str], list[Any]] = {}
    for one in found:
        groups.setdefault((one.where, one.check), []).append(one)
    return groups


def tracking(
    backends: Sequence[str], directory: Path | None, logged: Iterable[tuple[str, int]] = ()
) -> Iterator[Check]:
    """Each backend: whether it can be used from here, and what the names and steps of ``logged`` would do to it."""
    from probe.tracking import checks

    found = checks.check_tracking(backends, directory=directory, logged=logged)
    wrong = {one.where for one in found if one.level == "error"}
    for (where, check), alike in _alike(found).items():
        for one in alike[:NAMED]:
            yield Check("tracking", f"{where}: {check}", one.level, one.message)
        if len(alike) > NAMED:
            yield Check("tracking", f"{where}: {check}", alike[-1].level, f"and {len(alike) - NAMED:,} more like these")
    for name in backends:
        if name not in wrong:
            yield Check("tracking", name, "ok", "can be used from here")
