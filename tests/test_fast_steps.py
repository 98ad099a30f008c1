"""What a step leaves behind for the writer: few objects, since those that wait start collections of garbage."""

from __future__ import annotations

import gc

import pytest
import torch

from probe.core.metric import reduce_metrics
from probe.core.protocol import DataProto
from probe.core.seqlen_balancing import rearrange_micro_batches
from probe.core.torch_functional import logprobs_from_logits
from probe.hooks import phase
from probe.session import start

STEPS = 20


@pytest.fixture
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def train(session, step, ids, mask):
    with session.step(step):
        with phase("prepare"):
            data = DataProto.from_single_dict({"input_ids": ids.clone(), "attention_mask": mask.clone()})
        with phase("update"):
            for micro in rearrange_micro_batches(data.batch, max_token_len=256)[0]:
                logprobs_from_logits(torch.zeros(*micro["input_ids"].shape, 8), micro["input_ids"])
        session.log(reduce_metrics({f"loss/{index}": [1.0, 2.0, 3.0] for index in range(10)}), step)


@pytest.mark.usefixtures("uncollected")
def test_e_what_a_step_leaves_for_the_writer_starts_few_collections(tmp_path, monkeypatch):
    ids, mask = torch.zeros(16, 64, dtype=torch.long), torch.ones(16, 64, dtype=torch.long)
    with start("p", run_dir=tmp_path / "run") as session:
        for step in range(10):
            train(session, step, ids, mask)
        assert session.flush()
        monkeypatch.setattr(session._writer, "_round", lambda **_: None)  # all that is left stays
        known = {id(one) for one in gc.get_objects()}
        for step in range(10, 10 + STEPS):
            train(session, step, ids, mask)
        left = sum(id(one) not in known for one in gc.get_objects())
        monkeypatch.undo()
    assert left / STEPS < 70  # of 3 scopes, 7 calls, 2 batches and 10 metrics
