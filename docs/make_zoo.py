"""Plant every fault at several strengths and write into docs/design/zoo.md how often it was named first.

``python docs/make_zoo.py [SEEDS [FAULT …]]``: so many held-out seeds, from 10 on and at most 20; thresholds were set on
seeds 0 to 9. Healthy trainings are run with the same seeds, and 300 healthy runs are written row by row. Each is made
in one of as many processes as there are cores; progress goes to the error stream. What was found is kept in a file of
the directory for temporary files, so that a run that was stopped goes on: the file's name follows the code, and once
that is changed everything is made anew. ``SEEDS=0`` makes the page of what is there. Where faults or healthy trainings
are named, these alone are run, and their lines of the page are made anew. ``make zoo`` calls it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Final, NamedTuple

import probe
from probe.analysis.verdict import verdict
from probe.demo.zoo import FAULTS, fault, generated, series
from probe.demo.zoo.healthy import HEALTHY
from probe.demo.zoo.processes import Processes
from probe.opened import Run

STRENGTHS: Final = (1.0, 0.5, 0.25)
FIRST: Final = 10
LAST: Final = 29
EVERY: Final = frozenset((*FAULTS, *HEALTHY))
PAGE: Final = Path(__file__).parent / "design" / "zoo.md"

HEAD: Final = """# The zoo

This page shows how often the [findings](../reference/findings.md) name a fault correctly, and how often they raise a
false alarm. It is for anyone who has to decide whether to trust a finding.

Each trial is a small training with one planted fault. It counts as a hit if the first finding has the right name and
the right place (rank, phase, micro-batch, step). `probe demo --fault list` lists the faults, and
`probe demo --fault NAME --strength 0.5` plants one.

The table describes each fault at strength 1, where a person would see it easily. Strengths 0.5 and 0.25 halve its size
once and twice. Some faults have no size: their weaker forms affect fewer steps or ranks, or leave fewer traces.

Thresholds were set on seeds 0 to 9. `make zoo` made this page on seeds from 10 on. A cell shows the hits out of all
trainings, and is empty if no training was made. Twenty trainings have seeds 10 to 29; fewer have the first of these. A
row is measured again when its fault has changed.

## Faults

| fault | planted | {strengths} |
|---|---|{lines}|
"""

HEALTHY_HEAD: Final = """
## Healthy trainings

Nothing is wrong in these trainings, so every alarm is false.

| training | | false alarms |
|---|---|---|
"""

GENERATED_HEAD: Final = """
## Healthy runs with noise, written row by row

A training on a fake clock has less noise than a real one. These runs of {steps} steps and {ranks} ranks add noise.
Device memory follows one of the series of [leaks and waiting](leaks_and_waiting.md#how-often-it-is-wrong). Times,
metrics, host memory and non-PyTorch memory are autocorrelated noise.

| memory series | runs with a false alarm |
|---|---|
"""


class Job(NamedTuple):
    """One run: of a fault, a healthy training or a kind of generated run."""

    group: str
    name: str
    strength: float
    seed: int


def hit(job: Job) -> bool:
    """Whether a fault is named first, or an alarm sounds on a healthy run."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        if job.group == "fault":
            training = fault(job.name)(job.strength, job.seed)
            return training.is_named_by(training.found(place))
        if job.group == "healthy":
            HEALTHY[job.name](seed=job.seed).run(place)
            with Run(place) as run:
                return bool(run.findings().alarms)
        generated.write(job.name, job.seed, place)
        with Run(place) as run:  # the other looks raise no alarm
            return any(one.kind == "alarm" for look in (*verdict.URGENT, *verdict.ALARMS) for one in look(run))


def jobs(seeds: range, names: Collection[str]) -> Iterator[Job]:
    """Every run that the page needs, what matters most first: of ``names``, and generated ones where these are all."""
    faults = [name for name in FAULTS if name in names]
    real = [name for name in faults if issubclass(fault(name), Processes)]  # these live in real time
    for strength in STRENGTHS:
        for seed in seeds:
            yield from (Job("fault", name, strength, seed) for name in faults if name not in real)
        if strength == STRENGTHS[0]:
            yield from (Job("healthy", name, 0.0, seed) for seed in seeds for name in HEALTHY if name in names)
        if set(names) == EVERY and strength == STRENGTHS[0]:
            held_out = range(FIRST, FIRST + generated.EACH)
            yield from (Job("generated", kind, 0.0, seed) for seed in held_out for kind in series.KINDS if len(seeds))
    yield from (Job("fault", name, strength, seed) for name in real for strength in STRENGTHS for seed in seeds)


class Kept:
    """What was found by this code, in a file that is written as it comes.

    Args:
        page: What of the rest is known: the text of a page.
    """

    def __init__(self, page: str = "") -> None:
        self._page = {}
        for line in page.splitlines():
            name, *cells = (cell.strip(" `") for cell in line.strip("|").split("|"))
            told = [re.fullmatch(r"(\d+)/(\d+)", cell) for cell in cells]
            self._page[name] = [(int(one[1]), int(one[2])) if one else (0, 0) for one in told]
        code = hashlib.sha256()
        for path in sorted(Path(probe.__file__).parent.rglob("*.py")):
            code.update(path.read_bytes())
        self.path = Path(tempfile.gettempdir()) / f"probe-zoo-{code.hexdigest()[:12]}.jsonl"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.found = {Job(*job): found for job, found in map(json.loads, lines)}

    def add(self, job: Job, found: bool) -> None:
        """Keep what a run gave."""
        self.found[job] = found
        with self.path.open("a") as file:
            file.write(json.dumps([job, found]) + "\n")

    def share(self, group: str, name: str, strength: float = 0.0) -> tuple[int, int]:
        """How many of the runs of a kind were hits, and how many runs there are."""
        told = [found for job, found in self.found.items() if job[:3] == (group, name, strength)]
        if not told and (cells := self._page.get(name.replace("_", " ") if group == "generated" else name)):
            return cells[STRENGTHS.index(strength) - len(STRENGTHS) if group == "fault" else -1]
        return sum(told), len(told)


def make(asked: Iterable[Job], kept: Kept) -> None:
    """Make the runs that aren't there yet; says how far it is."""
    missing = [job for job in asked if job not in kept.found]
    begun = time.monotonic()
    say(f"{len(missing)} runs, kept in {kept.path}")
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        running = {pool.submit(hit, job): job for job in missing}
        for many, one in enumerate(as_completed(running), 1):
            job, found = running[one], one.result()
            kept.add(job, found)
            left = (time.monotonic() - begun) / many * (len(missing) - many) / 60
            if found != (job.group == "fault"):
                say(f"{job} was {'false' if found else 'not named first'}")
            if many % 25 == 0 or many == len(missing):
                say(f"{many} of {len(missing)}, about {left:.0f} min left")


def say(line: str) -> None:
    """Tell whoever waits."""
    sys.stderr.write(f"{line}\n")


def of_faults(kept: Kept) -> Iterator[str]:
    """The lines of the table of faults."""
    for name in FAULTS:
        told = (kept.share("fault", name, one) for one in STRENGTHS)
        cells = (f"{found}/{many}" if many else "" for found, many in told)
        yield f"| `{name}` | {fault(name).about} | {' | '.join(cells)} |\n"


def all_of(shares: Iterable[tuple[int, int]]) -> str:
    """A sum of shares."""
    told = list(shares)
    return f"{sum(found for found, _ in told)}/{sum(many for _, many in told)}"


def page(kept: Kept) -> Iterator[str]:
    """The text of the page."""
    columns = " | ".join(f"strength {one:g}" for one in STRENGTHS)
    yield HEAD.format(strengths=columns, lines="|".join("---" for _ in STRENGTHS))
    yield from of_faults(kept)
    sums = (all_of(kept.share("fault", name, one) for name in FAULTS) for one in STRENGTHS)
    yield f"| all | | {' | '.join(sums)} |\n"
    yield HEALTHY_HEAD
    for name, kind in HEALTHY.items():
        found, many = kept.share("healthy", name)
        yield f"| {name} | {' '.join((kind.__doc__ or '').split())} | {f'{found}/{many}' if many else ''} |\n"
    yield f"| all | | {all_of(kept.share('healthy', name) for name in HEALTHY)} |\n"
    yield GENERATED_HEAD.format(steps=generated.STEPS, ranks=generated.RANKS)
    for memory in series.KINDS:
        found, many = kept.share("generated", memory)
        yield f"| {memory.replace('_', ' ')} | {f'{found}/{many}' if many else ''} |\n"
    yield f"| all | {all_of(kept.share('generated', kind) for kind in series.KINDS)} |\n"
    yield f"\nMade on {platform.machine()} with {os.cpu_count()} cores, Python {platform.python_version()}.\n"


def main() -> None:
    """Write the page."""
    many = min(int(sys.argv[1]) if len(sys.argv) > 1 else 5, LAST - FIRST + 1)
    names = set(sys.argv[2:]) or EVERY
    if unknown := names - EVERY:
        raise SystemExit(f"{', '.join(sorted(unknown))}: expected any of {', '.join((*FAULTS, *HEALTHY))}")
    kept = Kept(PAGE.read_text() if names != EVERY else "")
    make(jobs(range(FIRST, FIRST + many), names), kept)
    PAGE.write_text("".join(page(kept)))


if __name__ == "__main__":
    main()
