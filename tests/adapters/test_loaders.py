"""By whose rule a loader makes its batches: PyTorch's own sampler is named, anything else isn't guessed at."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from probe.adapters.lengths import Arrivals
from probe.adapters.loaders import rule_of_loader
from probe.adapters.told_batches import Rule, ToldBatch
from probe.hooks import phase
from probe.runs.reader import Run
from probe.session import start

ROWS = list(range(10))


class ByTokens(BatchSampler):
    """A sampler of somebody's own, which has a `batch_size`, too."""

    def __iter__(self):
        yield from ([0], [1, 2, 3])


class Stream(IterableDataset):
    def __iter__(self):
        yield from ROWS


@pytest.mark.parametrize(
    ("loader", "rule"),
    [
        (DataLoader(ROWS, batch_size=4), {"rows_each": 4, "drop_last": False}),
        (DataLoader(ROWS, batch_size=4, drop_last=True, shuffle=True), {"rows_each": 4, "drop_last": True}),
        (DataLoader(Stream(), batch_size=4), {"rows_each": 4, "drop_last": False}),
    ],
)
def test_5_pytorchs_own_sampler_is_named_with_what_it_was_given(loader, rule):
    assert rule_of_loader(loader) == rule
    rows = [len(batch) for batch in loader]
    assert set(rows[:-1]) == {4}
    assert rows[-1] == (4 if rule["drop_last"] else 2)


def test_5_of_a_sampler_of_somebodys_own_no_rule_is_invented():
    own = DataLoader(ROWS, batch_sampler=ByTokens(SequentialSampler(ROWS), 4, drop_last=False))
    assert rule_of_loader(own) == {"batch_sampler": f"{__name__}.ByTokens"}
    assert rule_of_loader(DataLoader(ROWS, batch_sampler=[[0], [1, 2]])) == {"batch_sampler": "builtins.list"}


@pytest.mark.parametrize("given", [DataLoader(ROWS, batch_size=None), ROWS, None])
def test_5_what_gives_whole_batches_has_no_rule(given):
    assert rule_of_loader(given) == {}


class Secretive:
    """A batch sampler that works, and raises when it is asked how."""

    def __iter__(self):
        yield from ([0, 1], [2, 3])

    @property
    def batch_size(self):
        raise RuntimeError("only known once the workers run")


def test_8_a_loader_that_raises_when_it_is_asked_for_its_rule_costs_the_rule_and_no_row(tmp_path: Path) -> None:
    loader = DataLoader(torch.arange(4), batch_sampler=Secretive())

    def rule() -> Rule:
        return Rule("torch", rule_of_loader(loader))

    arrivals = Arrivals()
    with start("loaders", run_dir=tmp_path / "run") as session:
        for step in range(2):
            with session.step(step), phase("update"):
                told = ToldBatch(arrivals, "mine", rule, 2)
                for index, rows in enumerate(loader):
                    mask = torch.ones(len(rows), 3 + index, dtype=torch.int64)
                    with told.micro_batch(index, {"input_ids": mask, "attention_mask": mask}):
                        pass
                told.end()
    with Run(tmp_path / "run") as run:
        found = run.table("micro_batches").sort_values("time_ns")
        assert [list(one) for one in found["lengths"]] == [[3, 3], [4, 4]] * 2
        cuts = run.table("partitions")
        assert cuts["packer"].tolist() == ["", ""]
        assert len(run.incidents) == 1
        trouble = run.incidents.iloc[0]
    assert (trouble["kind"], trouble["where"]) == ("adapter", "mine")
    assert "by whose rule" in trouble["message"]
    assert "only known once the workers run" in trouble["message"]
