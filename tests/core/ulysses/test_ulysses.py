"""Sequence parallelism: whatever is cut across ranks gives what the whole gives, forward and backward."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from probe import hooks
from probe.core import ulysses as ul
from probe.errors import InputError, InputTypeError, ShapeError
from tests.ranks import run_ranks


class Hear(hooks.Listener):
    def __init__(self):
        self.told, self.calls = [], []

    def fire(self, event):
        self.told.append(dict(event.values))

    def leave(self, event, state):
        self.calls.append(event.point.name)


# ------------------------------------------------------------------------------------------------------------- one rank


@settings(deadline=None, max_examples=30)
@given(tokens=st.integers(0, 40), size=st.integers(1, 9), rows=st.integers(0, 3), kinds=st.sampled_from([None, 1, 3]))
def test_padding_is_the_least_that_divides_and_comes_off_again(tokens, size, rows, kinds):
    ids = torch.arange(1, rows * tokens + 1).reshape(rows, tokens)
    positions = torch.arange(tokens).reshape(1, tokens)
    if kinds is not None:
        positions = positions.expand(kinds, 1, tokens)
    padded, padded_positions, pad = ul.ulysses_pad(ids, positions, size, pad_value=-1)
    assert 0 <= pad < size
    assert (tokens + pad) % size == 0
    assert padded.shape == (rows, tokens + pad)
    assert padded_positions.shape == (*positions.shape[:-1], tokens + pad)
    assert torch.equal(padded[:, :tokens], ids)
    assert (padded[:, tokens:] == -1).all()
    assert torch.equal(padded_positions[..., :tokens], positions)
    assert torch.equal(padded_positions[..., tokens:], torch.arange(pad).expand(*positions.shape[:-1], pad))
    assert padded_positions.dtype == positions.dtype


def test_one_rank_needs_no_process_group():
    ids, positions = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 1, 2]])
    assert not dist.is_initialized()
    result = ul.ulysses_pad_and_slice_inputs(ids, positions, sp_size=1)
    assert result[0] is ids
    assert result[1] is positions
    assert result[2] == 0
    assert ul.ulysses_pad_and_slice_inputs(ids) == (ids, None, 0)
    assert ul.get_ulysses_sequence_parallel_world_size() == 1
    assert ul.get_ulysses_sequence_parallel_rank() == 0
    assert ul.slice_input_tensor(ids, 1) is ids
    x = torch.rand(1, 3, 4)
    assert ul.gather_seq_scatter_heads(x, seq_dim=1, head_dim=2) is x
    assert ul.gather_heads_scatter_seq(x, head_dim=2, seq_dim=1) is x


def test_without_a_group_outputs_come_back_unchanged_padding_included():
    x = torch.rand(4, 2)
    assert ul.gather_outpus_and_unpad(x, gather_dim=0, unpad_dim=0, padding_size=1) is x
    assert ul.gather_outpus_and_unpad is ul.gather_outputs_and_unpad


def test_padding_is_told_from_shapes_alone():
    hear = Hear()
    ids = torch.empty(1, 5, dtype=torch.int64, device="meta")
    positions = torch.empty(3, 1, 5, dtype=torch.int32, device="meta")
    with hooks.subscribe(hear, "ulysses.*"):
        ul.ulysses_pad(ids, positions, sp_size=4)
        ul.ulysses_pad(torch.empty(2, 5, dtype=torch.bfloat16, device="meta"), sp_size=2)
        ul.ulysses_pad(torch.empty(2, 6, device="meta"), sp_size=2)
    common = {"rows": 1, "tokens": 5, "pad_tokens": 3, "sp_size": 4}
    assert hear.told == [
        {"field": "input_ids", "bytes_per_token": 8, **common},
        {"field": "position_ids", "bytes_per_token": 12, **common},
        {"field": "input_ids", "rows": 2, "tokens": 10, "pad_tokens": 2, "bytes_per_token": 2, "sp_size": 2},
    ]
    assert hear.calls == ["ulysses.pad"] * 3


def test_arguments_stay_as_they_are():
    ids, positions = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 1, 2]])
    ul.ulysses_pad(ids, positions, sp_size=2)
    assert ids.tolist() == [[1, 2, 3]]
    assert positions.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("ids", "positions", "size", "kind", "words"),
    [
        (torch.zeros(3), None, 2, ShapeError, "input_ids"),
        (torch.zeros(1, 2, 3), None, 2, ShapeError, "input_ids"),
        ([[1, 2]], None, 2, InputTypeError, "input_ids.*list"),
        (torch.zeros(1, 3), torch.zeros(2, 3), 2, ShapeError, r"position_ids.*\(1, 3\)"),
        (torch.zeros(1, 3), torch.zeros(1, 4), 2, ShapeError, "position_ids"),
        (torch.zeros(1, 3), torch.zeros(3), 2, ShapeError, "position_ids"),
        (torch.zeros(1, 3), [[0, 1, 2]], 2, InputTypeError, "position_ids.*list"),
        (torch.zeros(1, 3), None, 0, InputError, "sp_size"),
        (torch.zeros(1, 3), None, 2.0, InputTypeError, "sp_size"),
        (torch.zeros(1, 3), None, True, InputTypeError, "sp_size"),
    ],
)
def test_inputs_that_cannot_be_padded(ids, positions, size, kind, words):
    with pytest.raises(kind, match=words):
        ul.ulysses_pad(ids, positions, size)


def test_a_nested_tensor_is_refused():
    ids = torch.nested.nested_tensor([torch.arange(2), torch.arange(3)], layout=torch.jagged)
    with pytest.raises(InputTypeError, match="input_ids: got a nested tensor"):
        ul.ulysses_pad(ids, sp_size=2)


def test_more_ranks_than_the_group_has_is_an_error_that_names_the_cure():
    with pytest.raises(InputError, match=r"sp_size: got 2, but .* 1 rank; set_ulysses_sequence_parallel_group"):
        ul.ulysses_pad_and_slice_inputs(torch.zeros(1, 4), sp_size=2)


def test_dimensions_are_checked_without_a_group_too():
    x = torch.zeros(2, 3)
    with pytest.raises(ShapeError, match="dim: got 2"):
        ul.slice_input_tensor(x, 2)
    with pytest.raises(InputTypeError, match="dim"):
        ul.slice_input_tensor(x, "0")
    with pytest.raises(ShapeError, match="head_dim and seq_dim"):
        ul.gather_heads_scatter_seq(x, head_dim=1, seq_dim=-1)
    with pytest.raises(InputError, match="unpadded_dim_size"):
        ul.gather_seq_scatter_heads(x, 0, 1, unpadded_dim_size=-1)


@pytest.mark.parametrize(
    ("heads", "size", "shared"), [(28, 4, None), (28, 4, 2), (32, 2, 8), (8, 8, 8), (8, 1, 1), (np.int64(8), 2, 4)]
)
def test_heads_that_can_be_dealt_out(heads, size, shared):
    ul.validate_ulysses_config(heads, size, shared)


@pytest.mark.parametrize(
    ("heads", "size", "shared", "words"),
    [
        (28, 8, None, "num_heads: got 28"),
        (12, 4, 6, "num_key_value_heads: got 6"),
        (12, 4, 5, "divisor of num_heads"),
        (0, 1, None, "num_heads"),
        (8, 0, None, "ulysses_sequence_size"),
        (8, 1, 0, "num_key_value_heads"),
    ],
)
def test_heads_that_cannot_be_dealt_out(heads, size, shared, words):
    with pytest.raises(InputError, match=words):
        ul.validate_ulysses_config(heads, size, shared)


def test_the_group_of_before_comes_back():
    one, other = object(), object()
    ul.set_ulysses_sequence_parallel_group(one)
    try:
        with pytest.raises(ZeroDivisionError), ul.ulysses_sequence_parallel(other):  # noqa: PT012  (the body is the case)
            assert ul.get_ulysses_sequence_parallel_group() is other
            raise ZeroDivisionError
        assert ul.get_ulysses_sequence_parallel_group() is one
    finally:
        ul.set_ulysses_sequence_parallel_group(None)


# -------------------------------------------------------------------------------------------------------------- ranks

TOKENS, HEADS, SHARED_HEADS, WIDTH, VOCABULARY = 13, 8, 4, 3, 50


class Block(nn.Module):
    """One layer over packed sequences: embeddings, attention with fewer key than query heads, an output per token."""

    def __init__(self):
        super().__init__()
        size = HEADS * WIDTH
        self.tokens = nn.Embedding(VOCABULARY, size)
        self.positions = nn.Embedding(TOKENS, size)
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, SHARED_HEADS * WIDTH)
        self.value = nn.Linear(size, SHARED_HEADS * WIDTH)
        self.out = nn.Linear(size, size)
        self.head = nn.Linear(size, 2)

    def forward(self, ids, positions, sequence):
        """ids and positions: this rank's (1, t). sequence: which one each of all T tokens belongs to."""
        hidden = self.tokens(ids) + self.positions(positions)
        query, key, value = (
            ul.gather_seq_scatter_heads(
                part(hidden).unflatten(-1, (-1, WIDTH)), seq_dim=1, head_dim=2, unpadded_dim_size=len(sequence)
            )
            for part in (self.query, self.key, self.value)
        )
        repeats = query.shape[2] // key.shape[2]
        key, value = key.repeat_interleave(repeats, 2), value.repeat_interleave(repeats, 2)
        visible = (sequence[:, None] == sequence[None, :]).tril()
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key).masked_fill(~visible, -torch.inf)
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value)
        mixed = ul.gather_heads_scatter_seq(mixed, head_dim=2, seq_dim=1)
        return self.head((hidden + self.out(mixed.flatten(2))).tanh())


def packed():
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, VOCABULARY, (1, TOKENS), generator=generator)
    lengths = torch.tensor([5, 1, 7])
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    sequence = torch.arange(3).repeat_interleave(lengths)
    weights = torch.randn(1, TOKENS, 2, generator=generator, dtype=torch.float64)
    return ids, positions, sequence, weights


def make_block():
    torch.manual_seed(5)
    return Block().double()


def gradients_of(block):
    return {name: parameter.grad.clone() for name, parameter in block.named_parameters()}


def unsharded():
    ids, positions, sequence, weights = packed()
    block = make_block()
    with ul.ulysses_sequence_parallel(None):
        outputs = block(ids, positions, sequence)
    (outputs * weights).square().sum().backward()
    return outputs.detach(), gradients_of(block)


def run_block(group, world, *, scaled, checkpointed):
    ids, positions, sequence, weights = packed()
    block = make_block()
    own_ids, own_positions, pad = ul.ulysses_pad_and_slice_inputs(ids, positions, sp_size=world)
    assert pad == -TOKENS % world > 0
    arguments = (own_ids, own_positions, sequence)
    outputs = checkpoint(block, *arguments, use_reentrant=False) if checkpointed else block(*arguments)
    outputs = ul.gather_outpus_and_unpad(outputs, 1, unpad_dim=1, padding_size=pad, grad_scaler=scaled)
    (outputs * weights).square().sum().backward()
    for parameter in block.parameters():
        dist.all_reduce(parameter.grad, group=group)
        if scaled:
            parameter.grad /= world
    return outputs.detach(), gradients_of(block)


def check_the_block(group, rank, world):
    expected, expected_gradients = unsharded()
    for scaled, checkpointed in [(True, False), (False, False), (True, True)]:
        outputs, gradients = run_block(group, world, scaled=scaled, checkpointed=checkpointed)
        torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradients, expected_gradients, rtol=1e-11, atol=1e-12)


def check_inputs(group, rank, world):
    ids, positions, *_ = packed()
    whole, whole_positions, pad = ul.ulysses_pad(ids, positions, world)
    own = slice(rank * (TOKENS + pad) // world, (rank + 1) * (TOKENS + pad) // world)
    for name in (None, group):
        ids_part, positions_part, size = ul.ulysses_pad_and_slice_inputs(ids, positions, world, group=name)
        assert torch.equal(ids_part, whole[:, own])
        assert torch.equal(positions_part, whole_positions[:, own])
        assert size == pad
    kinds = torch.stack([positions, positions + 7, positions + 9])
    part = ul.ulysses_pad_and_slice_inputs(ids, kinds, world)[1]
    assert torch.equal(part, ul.ulysses_pad(ids, kinds, world)[1][..., own])
    skipped = ul.ulysses_pad_and_slice_inputs(ids, positions, world, skip_position_ids_rmpad=True)[1]
    assert torch.equal(skipped, whole_positions)
    with pytest.raises(InputError, match=f"sp_size: got {world + 1}, but .* {world} ranks"):
        ul.ulysses_pad_and_slice_inputs(ids, positions, world + 1)
    with pytest.raises(InputError, match="sp_size: got 1"):
        ul.ulysses_pad_and_slice_inputs(ids, positions)


def check_slices(group, rank, world):
    whole = torch.arange(2 * 7 * 3, dtype=torch.float64).reshape(2, 7, 3).requires_grad_()
    part = ul.slice_input_tensor(whole, -2)
    again = ul.gather_outputs_and_unpad(part, gather_dim=-2, unpad_dim=1, padding_size=-7 % world, grad_scaler=False)
    assert torch.equal(again, whole)
    # Each rank's gradient is that of its own slice; together they are the whole.
    (again * whole.detach()).sum().backward()
    dist.all_reduce(whole.grad)
    assert torch.equal(whole.grad, whole.detach())
    with pytest.raises(ShapeError, match="x: dimension 1 has size 7"):
        ul.slice_input_tensor(whole, 1, padding=False)
    for dtype in (torch.bfloat16, torch.int64, torch.uint8, torch.bool):
        column = (torch.arange(4 * world) % 3).to(dtype)
        part = ul.slice_input_tensor(column, 0, padding=False)
        assert torch.equal(part, column[4 * rank : 4 * rank + 4])
        assert torch.equal(ul.gather_outputs_and_unpad(part, 0), column)
    assert ul.gather_outputs_and_unpad(column[:0], 0, unpad_dim=0).shape == (0,)


def check_gradient_scale(group, rank, world):
    for scaled, factor in [(True, world), (False, 1)]:
        x = torch.ones(3, 2, requires_grad=True)
        ul.gather_outputs_and_unpad(x, 0, unpad_dim=1, padding_size=1, grad_scaler=scaled).sum().backward()
        assert x.grad.tolist() == [[factor, 0]] * 3
    with pytest.raises(InputTypeError, match="padding_size"):
        ul.gather_outputs_and_unpad(x, 0, unpad_dim=0, padding_size=None)
    with pytest.raises(InputTypeError, match="padding_size"):
        ul.gather_outputs_and_unpad(x, 0, unpad_dim=0, padding_size=torch.tensor(1))
    with pytest.raises(ShapeError, match=f"padding_size: got 99, but unpad_dim=0 has {3 * world} elements"):
        ul.gather_outputs_and_unpad(x, 0, unpad_dim=0, padding_size=99)
    with pytest.raises(ShapeError, match="gather_dim: got 2"):
        ul.gather_outputs_and_unpad(x, 2)


def check_exchanges(group, rank, world):
    for seq, head, shape in [(0, 1, (12, 8, 3)), (1, -1, (2, 12, 8)), (2, 0, (8, 2, 12)), (0, 1, (0, 8, 2))]:
        whole = torch.arange(np.prod(shape), dtype=torch.float64).reshape(shape)
        part = whole.tensor_split(world, seq)[rank].clone().requires_grad_()
        inside = ul.gather_seq_scatter_heads(part, seq, head)
        assert torch.equal(inside, whole.tensor_split(world, head)[rank])
        outside = ul.gather_heads_scatter_seq(inside, head, seq)
        assert torch.equal(outside, part)
        # The gradient of a gradient: elements only change places, so every rank has its own formula.
        (first,) = torch.autograd.grad((outside**3).sum(), part, create_graph=True)
        assert torch.equal(first, 3 * part**2)
        (second,) = torch.autograd.grad((inside**2).sum() + (first * 2).sum(), part)
        assert torch.equal(second, 14 * part.detach())
    half = torch.rand(4, 8).bfloat16()
    assert torch.equal(ul.gather_heads_scatter_seq(ul.gather_seq_scatter_heads(half, 0, 1), 1, 0), half)


def check_bad_exchanges(group, rank, world):
    x = torch.zeros(4, 7)
    with pytest.raises(ShapeError, match=f"x: got 7 heads, expected a multiple of the {world} ranks"):
        ul.gather_seq_scatter_heads(x, 0, 1)
    with pytest.raises(ShapeError, match=f"unpadded_dim_size: got 99, but {world} ranks hold {4 * world} tokens"):
        ul.gather_seq_scatter_heads(x, 0, 1, unpadded_dim_size=99)
    with pytest.raises(ShapeError, match="seq_dim and head_dim: both are 1"):
        ul.gather_seq_scatter_heads(x, 1, -1)


def check_what_is_told(group, rank, world):
    hear = Hear()
    with hooks.subscribe(hear, "ulysses.padded"):
        ul.slice_input_tensor(torch.zeros(2, 5, 3), 1)
        inside = ul.gather_seq_scatter_heads(torch.zeros(2, 4, dtype=torch.bfloat16), 0, 1, unpadded_dim_size=3)
        ul.gather_heads_scatter_seq(inside, 1, 0)
    common = {"rows": 1, "sp_size": world}
    assert hear.told == [
        {"field": "slice_input_tensor", "tokens": 5, "pad_tokens": -5 % world, "bytes_per_token": 24, **common},
        {
            "field": "gather_heads_scatter_seq",
            "tokens": 3,
            "pad_tokens": -3 % world,
            "bytes_per_token": 2 * 4 // world,
            **common,
        },
    ]


def check_groups(group, rank, world):
    assert ul.get_ulysses_sequence_parallel_group() is group
    assert (ul.get_ulysses_sequence_parallel_rank(), ul.get_ulysses_sequence_parallel_world_size()) == (rank, world)
    alone = [dist.new_group([one]) for one in range(world)]
    x = torch.rand(4, 2)
    own = alone[rank]
    assert ul.get_ulysses_sequence_parallel_world_size(own) == 1
    assert torch.equal(ul.gather_outputs_and_unpad(x, 0, unpad_dim=0, padding_size=1, group=own), x[:3])
    with pytest.raises(InputError, match=f"group: rank {rank} is not in it"):
        ul.slice_input_tensor(x, 0, group=alone[(rank + 1) % world])
    ids = torch.zeros(1, 3)
    assert ul.ulysses_pad_and_slice_inputs(ids, group=own)[0] is ids


CHECKS = (
    check_the_block,
    check_inputs,
    check_slices,
    check_gradient_scale,
    check_exchanges,
    check_bad_exchanges,
    check_what_is_told,
    check_groups,
)


def _rank(rank, world, store):
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        with ul.ulysses_sequence_parallel(dist.group.WORLD):
            for check in CHECKS:
                check(dist.group.WORLD, rank, world)
    finally:
        dist.destroy_process_group()


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_what_is_cut_over_ranks_gives_what_the_whole_gives(tmp_path, world):
    run_ranks(_rank, (world, tmp_path / "store"), world)


def _peers_functions(rank, world, store):
    """``SeqAllToAll`` and ``Gather`` as verl's callers apply them: everything by position, the group first."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        whole = torch.arange(2 * 6 * 4 * 3, dtype=torch.float32).reshape(2, 6, 4, 3)
        mine = whole.chunk(world, 1)[rank].clone().requires_grad_()
        weights = torch.arange(whole.numel(), dtype=torch.float32).reshape(whole.shape)
        for group in (dist.group.WORLD, None):
            mine.grad = None
            heads = ul.SeqAllToAll.apply(group, mine, 2, 1, False)
            assert torch.equal(heads, whole.chunk(world, 2)[rank])
            back = ul.SeqAllToAll.apply(group, heads, 1, -2)
            assert torch.equal(back, mine)
            (heads * weights.chunk(world, 2)[rank]).sum().backward()
            assert torch.equal(mine.grad, weights.chunk(world, 1)[rank])
            for options, scale in (((), world), ((False,), 1), ((True, False), world)):
                mine.grad = None
                gathered = ul.Gather.apply(group, mine, 1, *options)
                assert torch.equal(gathered, whole)
                (gathered * weights).sum().backward()
                assert torch.equal(mine.grad, weights.chunk(world, 1)[rank] * scale)
        for function in (
            lambda: ul.SeqAllToAll.apply(None, mine, 2, 1, True),
            lambda: ul.Gather.apply(None, mine, 1, True, True),
        ):
            with pytest.raises(InputError, match="async_op"):
                function()
        with pytest.raises(ShapeError, match="scatter_dim=3 has size 3, expected a multiple of the 2 ranks"):
            ul.SeqAllToAll.apply(None, mine, 3, 1)
    finally:
        dist.destroy_process_group()


@pytest.mark.multiprocess
def test_c_seq_all_to_all_and_gather_exchange_as_verls_do(tmp_path):
    run_ranks(_peers_functions, (2, tmp_path / "store"), 2)


def test_c_padding_takes_verls_keywords_and_ours():
    ids, positions = torch.tensor([[7, 8, 9]]), torch.tensor([[0, 1, 0]])
    expected = ul.ulysses_pad(ids, positions, 4)
    for names in (("input_ids_rmpad", "position_ids_rmpad"), ("input_ids", "position_ids")):
        got = ul.ulysses_pad(**dict(zip(names, (ids, positions), strict=True)), sp_size=4)
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
        assert got[2] == 1
    assert torch.equal(ul.ulysses_pad(ids, position_ids_rmpad=positions, sp_size=4)[1], expected[1])
