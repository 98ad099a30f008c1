"""How long the rows of a batch are, from each of the shapes in which frameworks hand batches to a model."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import probe
from probe import hooks
from probe.adapters import attachment
from probe.adapters.lengths import Arrivals, rows_of
from probe.adapters.seams import Seam
from probe.hooks import guard, own_time, telling
from probe.moments import TokenField


def read(batch: Any) -> tuple[list[int], list[int] | None, int | None]:
    found: list[Any] = []
    rows = rows_of(batch)
    assert rows is not None
    Arrivals().read(rows, lambda *told: found.extend(told))
    return found[0], found[1], rows.width


def test_2_a_padded_batch():
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 0]])
    assert read({"input_ids": mask * 5, "attention_mask": mask}) == ([3, 1], None, 4)
    labels = torch.tensor([[7, 8, 9, -100], [-100, -100, -100, -100]])
    assert read({"input_ids": mask * 5, "attention_mask": mask, "labels": labels}) == ([3, 1], [2, 0], 4)
    assert read({"input_ids": mask, "attention_mask": mask, "completion_mask": mask}) == ([3, 1], [2, 1], 4)
    assert labels[0, 0] == 7  # what was read is as it was


def test_2_a_batch_without_a_mask_is_computed_on_as_it_is():
    assert read({"input_ids": torch.ones(2, 5, dtype=torch.long)}) == ([5, 5], None, 5)


def test_2_labels_of_classes_are_no_tokens():
    ids = torch.ones(2, 5, dtype=torch.long)
    assert read({"input_ids": ids, "labels": torch.tensor([0, 1])}) == ([5, 5], None, 5)
    assert read({"input_ids": ids, "labels": torch.tensor([[0], [1]])}) == ([5, 5], None, 5)


def test_2_rows_one_behind_the_other():
    ids = torch.arange(6)[None]
    labels = torch.tensor([[-100, 1, 2, -100, -100, 5]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    offsets = torch.tensor([0, 3, 6], dtype=torch.int32)
    for more in ({"cu_seq_lens_q": offsets}, {"cu_seq_lens_q": [0, 3, 6]}, {"position_ids": positions}):
        assert read({"input_ids": ids, "labels": labels, **more}) == ([3, 3], [2, 1], None)
        assert read({"input_ids": ids, **more}) == ([3, 3], None, None)


def test_2_prompts_and_answers_are_padded_each_for_itself():
    prompts, answers = torch.tensor([[0, 1], [1, 1]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    batch = {"prompt_ids": prompts, "prompt_mask": prompts, "completion_ids": answers, "completion_mask": answers}
    assert read(batch) == ([4, 3], [3, 1], 5)
    assert read({**batch, "tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1]])}) == ([4, 3], [2, 1], 5)


def test_2_fields_are_those_with_something_for_each_token():
    mask = torch.ones(2, 3, dtype=torch.long)
    batch = {"input_ids": mask, "attention_mask": mask.bool(), "old": mask.float()[..., None].expand(2, 3, 4), "n": [1]}
    rows = rows_of({**batch, "advantages": torch.ones(2)})
    assert rows is not None
    assert rows.fields == [TokenField("attention_mask", 1), TokenField("input_ids", 8), TokenField("old", 16)]


@pytest.mark.parametrize("batch", [None, torch.ones(2), (torch.ones(2, 2),), {}, {"pixels": torch.ones(2, 3)}, "text"])
def test_2_a_batch_without_tokens_tells_of_no_rows(batch):
    assert rows_of(batch) is None


def test_2_what_comes_later_is_said_in_order_and_where_it_was_asked_for():
    arrivals, said, there = Arrivals(), [], [False, True]

    def say(index: int) -> None:
        said.append((index, hooks.current_scope().name))

    with hooks.phase("one"):
        arrivals.later(lambda: there[0], lambda: say(0))
    with hooks.phase("two"):
        arrivals.later(lambda: there[1], lambda: say(1))
        arrivals.deliver()
    assert said == []
    assert len(arrivals) == 2
    there[0] = True
    with hooks.phase("three"):
        arrivals.deliver()
    assert said == [(0, "one"), (1, "two")]
    assert len(arrivals) == 0


def test_5_what_a_seam_takes_is_probes_own_and_counts_once(acme, table, tmp_path, monkeypatch):
    now = [0]

    def tell(call):
        now[0] += 5
        with hooks.scope("phase", "inner"):
            now[0] += 7
            yield
        now[0] += 11

    class Slow(hooks.Listener):
        def enter(self, event):
            now[0] += 100

    table(Seam("acme.engine", "pack", "packing", tell))
    engine = importlib.import_module("acme.engine")
    with probe.start("cost", run_dir=tmp_path / "run", recorders=[]):
        (made,) = attachment.attach("acme")
        with hooks.subscribe(Slow(), "scope"):
            for part in (guard, own_time, telling):
                monkeypatch.setattr(part, "_clock", lambda: now[0])
            before = hooks.spent_ns()
            engine.pack([1])
            assert hooks.spent_ns() - before == 5 + 100 + 7 + 11
        made.detach()
