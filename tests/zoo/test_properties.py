"""Proof: other numbers for the ranks, another time and a longer healthy part never change the verdict of a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.demo.zoo import FAULTS, fault
from probe.demo.zoo.processes import Processes
from probe.demo.zoo.sampling import Sampling
from probe.opened import Run
from tests.zoo.planting import SEED, delayed
from tests.zoo.rewriting import permuted, shifted

DAY_NS = 86_400 * 10**9


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAULTS if not issubclass(fault(name), Processes | Sampling)])
def test_ranks_permuted_time_shifted_and_a_longer_healthy_part_before_it_change_no_verdict(
    name: str, tmp_path: Path
) -> None:
    kind = fault(name)
    # What is worth a change is told of a usual step, so that most of the run must have it; where nothing is wrong,
    # nothing begins.
    steps = {"alarm": 16, "tuning": kind.shape.steps // 4, "fine": 0}[kind.kind]
    recorded = delayed(kind, steps)(1.0, SEED).run(tmp_path / "run")
    many = kind.shape.ranks
    ranks = {rank: (rank + 1) % many for rank in range(many)}
    other = permuted(recorded, tmp_path / "other", ranks)
    later = shifted(other, tmp_path / "later", 3 * DAY_NS + 7, 40 * DAY_NS + 11)
    asked = {
        "rank": None if kind.rank is None else ranks[kind.rank],
        "step": None if kind.step is None else kind.step + steps,
    }
    with Run(later) as run:
        found = run.findings()
    assert type("Moved", (kind,), asked)(1.0, SEED).is_named_by(found), found
    since = found[0].since.step
    if kind.kind == "alarm" and since is not None:
        assert since >= steps - 5  # and it began no earlier, by what noise hides of a leak's first steps
