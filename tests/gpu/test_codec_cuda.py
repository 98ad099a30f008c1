"""The codec on a GPU: the same results as on the CPU, without a wait that the documented function doesn't need."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from probe import hooks
from probe.core import codec
from probe.core.codec.jagged import RowLengths, pack_rows, pad_rows
from tests.gpu.waiting_is_an_error import nobody_waits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

LENGTHS = [3, 0, 7, 1, 7]
DTYPES = [torch.bool, torch.uint8, torch.int64, torch.uint16, torch.bfloat16, torch.float32, torch.float8_e4m3fn]
DTYPES += [torch.complex64, torch.complex128]


def rectangle(dtype, *trailing, width=9):
    shape = (len(LENGTHS), width, *trailing)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=torch.Generator().manual_seed(0)).to(
        dtype
    )


def same(one, other):
    one, other = one.cpu(), other.cpu()
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trailing", [(), (2, 3)])
def test_every_dtype_packs_and_pads_as_on_the_cpu(dtype, trailing):
    here = rectangle(dtype, *trailing)
    there, lengths = here.cuda(), torch.tensor(LENGTHS)
    names = {"x"}
    mine = codec.pack_jagged_fields({"x": there}, lengths=lengths.cuda(), token_aligned_fields=names)
    wanted = codec.pack_jagged_fields({"x": here}, lengths=lengths, token_aligned_fields=names)
    same(mine.get("x").values(), wanted.get("x").values())
    assert mine.get("x").device.type == "cuda"
    options = {"pad_value_dict": {"x": 1}, "pad_to_seqlen": 12, "token_aligned_fields": names}
    same(codec.materialize(mine, **options)["x"], codec.materialize(wanted, **options)["x"])


def test_with_lengths_on_the_cpu_nothing_waits():
    there = rectangle(torch.float32).cuda()
    lengths = torch.tensor(LENGTHS)
    torch.cuda.synchronize()
    with nobody_waits():
        packed = codec.pack_jagged_fields({"x": there, "y": there}, lengths=lengths, token_aligned_fields={"x", "y"})
        batch = codec.materialize(packed, pad_to_seqlen=8)
    assert packed.get("x").offsets() is packed.get("y").offsets()
    assert batch["x"].shape == (5, 8)


def test_lengths_on_the_device_are_read_once():
    reads = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            source = next((one for one in args if isinstance(one, torch.Tensor)), None)
            if isinstance(result, torch.Tensor) and source is not None and source.is_cuda and not result.is_cuda:
                reads.append(function)
            if function is torch.ops.aten._local_scalar_dense.default and source.is_cuda:
                reads.append(function)
            return result

    fields = {name: rectangle(torch.int64).cuda() for name in "abc"}
    lengths = torch.tensor(LENGTHS).cuda()
    with Count():
        codec.pack_jagged_fields(fields, lengths=lengths, token_aligned_fields=set("abc"))
    assert len(reads) == 1


def test_listening_adds_no_wait():
    class Hear(hooks.Listener):
        def fire(self, event):
            told.append(dict(event.values))

    told = []
    there = rectangle(torch.float32).cuda()
    packed = codec.pack_jagged_fields({"x": there}, lengths=torch.tensor(LENGTHS), token_aligned_fields={"x"})
    torch.cuda.synchronize()
    with hooks.subscribe(Hear(), "codec.*ed"), nobody_waits():
        codec.materialize(packed, pad_to_seqlen=8)
    (field,) = told[0]["fields"]
    assert (field.valid_tokens, field.longest_tokens, field.width_tokens) == (sum(LENGTHS), 7, 8)


def test_a_missing_cache_on_the_device():
    values, offsets = torch.arange(18).cuda(), torch.tensor([0, 3, 3, 10, 11, 18]).cuda()
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    assert codec.materialize(TensorDict({"x": nested}, [5]))["x"].shape == (5, 7)


def test_responses_as_on_the_cpu():
    full, mask = rectangle(torch.bfloat16, 2), rectangle(torch.int64)
    whole, part = torch.tensor([5, 4, 9, 2, 8]), torch.tensor([2, 0, 8, 1, 3])

    def cut(device):
        rows = codec.to_nested_by_length(full.to(device), whole)
        return codec.response_from_nested(rows, codec.to_nested_by_length(mask.to(device), part))

    same(cut("cuda").values(), cut("cpu").values())


def test_gradients_as_on_the_cpu():
    lengths = RowLengths.read(torch.tensor(LENGTHS))
    here = torch.randn(5, 9, 2, requires_grad=True)
    there = here.detach().cuda().requires_grad_()
    for leaf in (here, there):
        values = pack_rows(leaf, lengths)
        padded = pad_rows(values, lengths.offsets(values.device), 8, 0.5)
        (padded * torch.arange(8.0, device=leaf.device).view(1, 8, 1)).sum().backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad)


def test_the_benchmark_runs_on_a_device():
    """Its cases check that both sides are equal; ``python -m benchmarks.codec cuda`` prints the times."""
    from benchmarks.codec import cases

    assert len(cases(512, 2048, torch.bfloat16, "cuda")) == 3
