"""1: faults that are planted in small trainings are named first, at their place, and healthy ones raise no alarm."""

from __future__ import annotations

import inspect
import itertools
import json
from pathlib import Path

import pytest

from probe.analysis.verdict import Cost
from probe.cli import main
from probe.core.seqlen_balancing import micro_batches
from probe.demo.zoo import FAULTS, fault
from probe.demo.zoo.ahead import Ahead
from probe.demo.zoo.graded import Graded
from probe.demo.zoo.healthy import HEALTHY
from probe.demo.zoo.loop import Training, tensors_of
from probe.demo.zoo.processes import Processes
from probe.demo.zoo.sampling import Sampling
from probe.demo.zoo.served import Served
from probe.errors import UnknownNameError
from probe.opened import Run
from tests.zoo.planting import SEED, planted, sound
from tests.zoo.rewriting import permuted, shifted

#: Faults of which the finding claims a cause: a phase, a rank's machine or data, one sequence, row or micro-batch.
CAUSES = {
    "device_leak",
    "validation_peak",
    "slow_rank",
    "starved_rank",
    "giant_sequence",
    "wide_row",
    "unequal_means",
    "gradient_spike",
}

#: Fields of a place that each row of the evidence has, where the finding names them.
PLACE = ("step", "role", "phase", "micro_batch", "rank")

#: Faults whose finding names no cost: what a metric's name did to it can't be measured.
WITHOUT_COST = {"accidental_reducer"}


def renumbered(place: Path, folder: Path) -> Path:
    """The run of two ranks, the other way round, and at another time where all of its rows are in Parquet."""
    other = permuted(place, folder / "other", {0: 1, 1: 0})
    return other if list(other.glob("*.jsonl")) else shifted(other, folder / "later", 10**15 + 7, 4 * 10**15 + 11)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_1_a_planted_fault_is_named_first_and_its_evidence_goes_with_it(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind = fault(name)
    training, place = kind(1.0, SEED), tmp_path / "planted"
    if issubclass(kind, Processes):  # what is found while it runs
        found = training.found(place)
    else:
        with Run(planted(tmp_path_factory, name, place)) as run:
            found = run.findings()
    with Run(place) as run:
        assert training.is_named_by(found), found
        first = found[0]
        if kind.kind == "fine":
            return
        assert first.kind == kind.kind
        assert first.change is not None
        rows = run.sql(first.evidence_sql)
        assert len(rows)
        for column in PLACE:  # 2: the evidence is of the named place alone, and says so
            value = getattr(first.where, column)
            assert value is None or set(rows[column]) == {value}, column
        if "attempt" in rows and first.where.attempt is not None:
            assert set(rows["attempt"]) == {first.where.attempt}
        if first.since.step is not None and "step" in rows and rows["step"].notna().any():
            assert rows["step"].min() >= first.since.step
    if name == "device_leak":  # 6: when it ends, of a device that says in its samples alone how much it has
        assert "memory runs out near step 4" in first.sentence  # 40 steps took 5 of 60 GiB
    assert name in WITHOUT_COST or first.cost != Cost()  # 2: what it costs
    assert name not in CAUSES or first.explained is not None  # 2: a cause is claimed where it explains 80 %
    assert first.explained is None or 0.8 <= first.explained <= 1
    if issubclass(kind, Processes | Sampling):  # of the others test_properties tells
        with Run(place) as run, Run(renumbered(place, tmp_path)) as other:
            here, there = run.findings()[0], other.findings()[0]
        assert (there.name, there.kind, there.where.phase, there.where.step) == (
            here.name, here.kind, here.where.phase, here.where.step,
        )  # fmt: skip
        assert there.where.rank == {0: 1, 1: 0, None: None}[here.where.rank]  # Proof: other ranks, the same verdict
    healthy, names = sound(tmp_path_factory, name)
    assert first.name not in names
    with Run(healthy) as run:
        assert len(run.sql(first.evidence_sql)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nan", "scaled_sum", "uneven_counts", "equal_rewards"])
def test_1_what_is_planted_at_a_quarter_of_its_strength_is_less_and_named_too(name: str, tmp_path: Path) -> None:
    weak = fault(name)(0.25, SEED)
    found = weak.found(tmp_path / "weak")
    assert weak.is_named_by(found), found
    # Less of the run has it: of the first two fewer steps, of the third later ones.
    since = found[0].since.step
    many = found[0].cost.steps or 0
    assert {"nan": (15, 1), "scaled_sum": (3, 6), "uneven_counts": (3, 6), "equal_rewards": (8, 16)}[name] == (
        since,
        many,
    )


def test_1_every_fault_has_two_weaker_forms() -> None:
    """What a fault plants is another at each strength that the table has."""
    for name in FAULTS:
        bases = (Training, Processes, Sampling, Served, Ahead, Graded, object)
        own = [one for one in fault(name).__mro__ if one not in bases]
        assert any("self.strength" in inspect.getsource(one) for one in own), name


@pytest.mark.parametrize("name", [name for name in FAULTS if issubclass(fault(name), Processes)])
def test_1_ranks_that_wait_for_each_other_have_as_many_micro_batches_as_is_planned(name: str) -> None:
    """Of every seed that the table is made of, and of those that thresholds were set on."""
    for seed in range(30):
        training = fault(name)(1.0, seed)
        assert isinstance(training, Processes)
        for step, rank in itertools.product(range(training.shape.steps), range(training.shape.ranks)):
            planned, tensors = training.count(step, rank), tensors_of(training.rows(step, rank))
            assert len(micro_batches(tensors, training.shape.cap, min_num_micro_batch=planned)) == planned, seed


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_1_a_healthy_training_raises_no_alarm(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Run(planted(tmp_path_factory, name, tmp_path / "healthy")) as run:
        found = run.findings()
    assert len(found) > 3
    assert not found.alarms, found


def test_1_a_fault_is_planted_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--fault", "list"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()] == list(FAULTS)
    assert main(["demo", "--fault", "nan", "--run-dir", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "▲ Alarm: NaN went into actor/pg_loss (update · micro-batch 1 · step 9 · rank 1)" in " ".join(said.split())
    assert "The fault was named first" in said
    assert main(["findings", str(tmp_path / "run")]) == 1
    capsys.readouterr()
    assert main(["findings", str(tmp_path / "run"), "--json"]) == 1  # 2: a list of these objects, and 1 for an alarm
    with Run(tmp_path / "run") as run:
        assert json.loads(capsys.readouterr().out) == json.loads(
            json.dumps([one.to_dict() for one in run.findings().everything])
        )
    with pytest.raises(SystemExit):
        main(["demo", "--fault", "nan", "--strength", "2"])
    assert "expected a number above 0 and up to 1" in capsys.readouterr().err


def test_1_an_unknown_fault_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="expected one of hang, killed"):
        fault("none")
