"""The copying kernels: every dtype, every layout, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.core.codec import jagged
from probe.core.codec.jagged import (
    RowLengths,
    Spans,
    empty,
    fill_value,
    pack_rows,
    pad_rows,
    put_spans,
    take_spans,
    widen,
)
from probe.errors import InputError, InputTypeError, ShapeError

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
]


def of_bytes(shape, dtype, seed=0):
    """Any bits at all, NaNs included; booleans are 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8, generator=generator)
    return raw.view(dtype)


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor.view(-1)


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bits(one), bits(other))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trailing", [(), (3,), (2, 2)])
def test_every_bit_of_every_dtype_survives_both_ways(dtype, trailing):
    lengths = RowLengths.read(torch.tensor([3, 0, 5, 1]))
    padded = of_bytes((4, 5, *(trailing or (1,))), dtype)
    padded = padded if trailing else padded.squeeze(-1)
    values = pack_rows(padded, lengths)
    expected = [padded[row, :length] for row, length in enumerate([3, 0, 5, 1])]
    assert all(same_bits(one, other) for one, other in zip(values.split([3, 0, 5, 1]), expected, strict=True))
    back = pad_rows(values, lengths.offsets(values.device), 6, 1)
    assert back.shape == (4, 6, *trailing)
    for row, length in enumerate([3, 0, 5, 1]):
        assert same_bits(back[row, :length], expected[row])
        assert (back[row, length:].to(torch.complex128) == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_way_of_devices_gives_the_same(dtype, monkeypatch):
    """The index kernels, which run where NumPy can't look: forced here, and run on a GPU by tests/gpu."""
    lengths = RowLengths.read(torch.tensor([2, 0, 4]))
    padded = of_bytes((3, 4, 2), dtype)
    values = pack_rows(padded, lengths)
    rectangle = pad_rows(values, lengths.offsets(values.device), 5, 1)
    monkeypatch.setattr(jagged, "_on_host", lambda tensor: False)
    assert same_bits(pack_rows(padded, lengths), values)
    assert same_bits(pad_rows(values, lengths.offsets(values.device), 5, 1), rectangle)
    spans = lengths.spans(4)
    assert same_bits(put_spans(values, spans, 12, 1).view(3, 4, 2), rectangle[:, :4].contiguous())


@pytest.mark.parametrize("host", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: torch.cat((x, x), 1)[:, : x.shape[1]],
        lambda x: x.repeat_interleave(2, 1)[:, ::2],
        lambda x: torch.nn.Parameter(x.float(), requires_grad=False),
    ],
    ids=["contiguous", "transposed", "narrowed", "strided", "parameter"],
)
def test_any_memory_layout(make, host, monkeypatch):
    if not host:
        monkeypatch.setattr(jagged, "_on_host", lambda tensor: False)
    padded = make(torch.arange(24).view(4, 3, 2))
    lengths = RowLengths.read(torch.tensor([1, 3, 0, 2]))
    expected = torch.cat([padded[row, :length] for row, length in enumerate([1, 3, 0, 2])])
    assert torch.equal(pack_rows(padded, lengths), expected)


@pytest.mark.parametrize("host", [True, False])
def test_gradients_and_gradients_of_gradients(host, monkeypatch):
    if not host:
        monkeypatch.setattr(jagged, "_on_host", lambda tensor: False)
    lengths = RowLengths.read(torch.tensor([2, 0, 3]))
    padded = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    values = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    offsets = lengths.offsets(values.device)
    for function, given_ in (
        (lambda x: pack_rows(x, lengths), padded),
        (lambda x: pad_rows(x, offsets, 4, 7.0), values),
        (lambda x: widen(x, 6, 7.0), padded),
    ):
        assert torch.autograd.gradcheck(function, given_)
        assert torch.autograd.gradgradcheck(function, given_)


def test_without_grad_mode_nothing_is_recorded():
    padded = torch.randn(2, 3, requires_grad=True)
    with torch.no_grad():
        assert not pack_rows(padded, RowLengths.read(torch.tensor([1, 2]))).requires_grad


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 3), st.integers(0, 2))
def test_round_trip(lengths, extra, inner):
    read = RowLengths.read(torch.tensor(lengths, dtype=torch.int64))
    width = read.longest + extra
    inside = torch.arange(width) < torch.tensor(lengths, dtype=torch.int64).unsqueeze(1)
    padded = torch.randint(1, 100, (len(lengths), width, inner)) * inside.unsqueeze(-1)
    values = pack_rows(padded, read)
    assert values.shape == (sum(lengths), inner)
    assert torch.equal(pad_rows(values, read.offsets(values.device), width, 0), padded)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_spans_anywhere(data):
    gaps = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=6))
    starts, lengths, end = [], [], 0
    for gap, length in gaps:
        starts.append(end + gap)
        lengths.append(length)
        end += gap + length
    spans = Spans(np.array(starts, dtype=np.int64), np.array(lengths, dtype=np.int64), sum(lengths))
    flat = torch.arange(1, end + 3)
    taken = take_spans(flat, spans)
    chosen = [place for start, length in zip(starts, lengths, strict=True) for place in range(start, start + length)]
    assert taken.tolist() == flat[chosen].tolist()
    assert spans.index(torch.device("cpu")).tolist() == chosen
    put = put_spans(taken, spans, len(flat), 0)
    assert put.tolist() == [one if one - 1 in chosen else 0 for one in flat.tolist()]


def test_one_offsets_tensor_for_each_device():
    lengths = RowLengths.read(torch.tensor([1, 2], dtype=torch.int32))
    assert lengths.offsets(torch.device("cpu")) is lengths.offsets(torch.device("cpu"))
    assert lengths.offsets(torch.device("cpu")).tolist() == [0, 1, 3]
    assert (lengths.rows, lengths.total, lengths.shortest, lengths.longest) == (2, 3, 1, 2)


def test_lengths_are_read_and_not_kept():
    given_ = torch.tensor([1, 2])
    lengths = RowLengths.read(given_)
    given_[0] = 9
    assert lengths.host.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("lengths", "error", "match"),
    [
        ([1, 2], InputTypeError, "got list"),
        (torch.tensor([[1], [2]]), ShapeError, r"lengths shape \(2, 1\)"),
        (torch.tensor(1), ShapeError, "lengths shape"),
        (torch.tensor([1.0, 2.0]), InputTypeError, "float32"),
        (torch.tensor([True, False]), InputTypeError, "bool"),
        (torch.tensor([1, -1]), InputError, "row 1 has length -1"),
        (torch.tensor([1, 2, 3]), ShapeError, r"\(3,\), expected \(2,\)"),
    ],
)
def test_bad_lengths(lengths, error, match):
    with pytest.raises(error, match=match):
        RowLengths.read(lengths, 2)


def test_a_row_that_is_too_long():
    lengths = RowLengths.read(torch.tensor([1, 4]))
    with pytest.raises(ShapeError, match="row 1 has length 4, but padded is only 3 wide"):
        pack_rows(torch.zeros(2, 3), lengths)
    with pytest.raises(ShapeError, match="width: got 3"):
        pad_rows(torch.zeros(5), lengths.offsets(torch.device("cpu")), 3, 0)


def test_large_memory_is_ordinary_memory():
    made = empty((1200, 1024), torch.zeros(1, dtype=torch.bfloat16))
    large = empty((1200, 1024), torch.zeros(1, dtype=torch.float32))
    assert (made.shape, made.dtype, large.dtype) == ((1200, 1024), torch.bfloat16, torch.float32)
    large.fill_(2.0)
    assert large.sum() == 2.0 * 1200 * 1024
    assert torch.equal(large.clone(), large)


@pytest.mark.parametrize("fill", [0, -0.0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_e_large_rectangles_hold_the_bits_of_the_padding(dtype, fill):
    rows, width = 3, 3 * 2**20 // dtype.itemsize
    lengths = [5, 0, width]
    values = of_bytes((sum(lengths),), dtype)
    made = pad_rows(values, torch.tensor([0, 5, 5, 5 + width]), width, fill)
    assert made.nbytes >= jagged._HUGE_BYTES
    expected = torch.full((rows, width), fill, dtype=dtype)
    for row, part in enumerate(values.split(lengths)):
        expected[row, : lengths[row]] = part
    assert same_bits(made, expected)
    made.view(torch.uint8).fill_(1)  # nobody else's memory, and no one-way street
    assert same_bits(pad_rows(values, torch.tensor([0, 5, 5, 5 + width]), width, fill), expected)


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (torch.int64, 2**53 + 1, 2**53 + 1),
        (torch.int64, 3.0, 3),
        (torch.uint8, True, 1),
        (torch.bool, 1, 1),
        (torch.float16, 1.5, 1.5),
        (torch.float32, float("-inf"), float("-inf")),
        (torch.int32, torch.tensor(7), 7),
        (torch.int32, np.int64(7), 7),
    ],
)
def test_fill_values(dtype, value, expected):
    assert fill_value("x", dtype, value) == expected


@pytest.mark.parametrize(
    ("dtype", "value", "error"),
    [
        (torch.int64, 1.5, InputError),
        (torch.int64, float("nan"), InputError),
        (torch.uint8, -1, InputError),
        (torch.int8, 128, InputError),
        (torch.bool, 2, InputError),
        (torch.float16, 1e6, InputError),
        (torch.float32, "0", InputTypeError),
        (torch.float32, None, InputTypeError),
    ],
)
def test_values_that_a_dtype_cant_hold(dtype, value, error):
    with pytest.raises(error, match=r"pad_value_dict\['x'\]"):
        fill_value("x", dtype, value)


def test_exact_padding_of_large_integers():
    lengths = RowLengths.read(torch.tensor([1, 2]))
    padded = pad_rows(torch.tensor([5, 6, 7]), lengths.offsets(torch.device("cpu")), 2, 2**53 + 1)
    assert padded.tolist() == [[5, 2**53 + 1], [6, 7]]
