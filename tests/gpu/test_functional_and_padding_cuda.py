from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

from probe import hooks
from probe.core.torch_functional import logprobs_from_logits, masked_var, masked_whiten
from probe.recorders.padding_tax import PaddingTaxRecorder
from tests.gpu.waiting_is_an_error import nobody_waits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_equal_the_plain_formula_with_little_memory(dtype):
    labels = torch.randint(32_000, (2, 1024), device="cuda")
    leaf = torch.randn(2, 1024, 32_000, device="cuda", dtype=dtype, requires_grad=True)
    expected = torch.log_softmax(leaf.double(), -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    (wanted,) = torch.autograd.grad(expected.sum(), leaf)
    expected = expected.detach().to(dtype)
    logits = leaf * 1.0
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    got = logprobs_from_logits(logits, labels)
    size = logits.nbytes
    del logits
    got.sum().backward()
    # Backward multiplies the gradient by 1.0 for the leaf, which is one copy of its own.
    assert torch.cuda.max_memory_allocated() - before < 1.5 * size
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(leaf.grad, wanted)


@pytest.mark.parametrize("count", [0, 1])
def test_a_variance_of_too_few_is_nan_and_waits_for_nobody(count):
    mask = torch.zeros(4, device="cuda")
    mask[:count] = 1
    with nobody_waits():
        variance, white = masked_var(torch.ones(4, device="cuda"), mask), masked_whiten(mask, mask)
    assert variance.isnan().item()
    assert white.isnan().all().item()


def test_lengths_of_a_mask_on_the_device_travel_without_a_wait():
    recorder = PaddingTaxRecorder()

    class Collect(hooks.Listener):
        def leave(self, event, state):
            items.append(recorder.leave(event, state))

    @hooks.observed("data_proto.from_dict")
    def from_dict(batch):
        return SimpleNamespace(batch=batch, non_tensor_batch={}, meta_info={})

    items = []
    mask = (torch.arange(8) < torch.tensor([[3], [8], [0]])).long().cuda()
    batch = TensorDict({"attention_mask": mask, "input_ids": torch.zeros(3, 8, device="cuda")}, batch_size=[3])
    torch.zeros(1).pin_memory()
    with hooks.subscribe(Collect(), "data_proto.*"), nobody_waits():
        from_dict(batch)
    deadline = time.monotonic() + 60
    while not items[0].ready():
        assert time.monotonic() < deadline
    rows = items[0].build()
    assert {(row.field, row.cause, row.tokens) for row in rows} == {
        ("attention_mask", "longest_row", 13),
        ("input_ids", "longest_row", 13),
    }
