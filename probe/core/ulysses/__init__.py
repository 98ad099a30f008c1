"""Sequence parallelism after DeepSpeed-Ulysses (https://arxiv.org/abs/2309.14509): a sequence cut across ranks.

Outside attention every rank holds a slice of the sequence and all heads; inside, all of the sequence and a slice
of the heads. The way in is :func:`ulysses_pad_and_slice_inputs`, the way through attention
:func:`gather_seq_scatter_heads` and back :func:`gather_heads_scatter_seq`, the way out
:func:`gather_outputs_and_unpad`. All of them can be differentiated, and all ranks of the group must call them
together with equal shapes, as every collective asks; nothing is sent to find that out.

Without a group, or with a group of one rank, nothing is cut, padded or sent.
"""

from __future__ import annotations

from math import prod
from typing import Final

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from probe._check import also_named, whole_number
from probe.core.ulysses.collectives import Gather, SeqAllToAll, exchanged, gathered
from probe.core.ulysses.dimensions import dim_of, part_of_rank, two_dims
from probe.core.ulysses.group import (
    get_ulysses_sequence_parallel_group,
    get_ulysses_sequence_parallel_rank,
    get_ulysses_sequence_parallel_world_size,
    place_of,
    set_ulysses_sequence_parallel_group,
    ulysses_sequence_parallel,
    validate_ulysses_config,
)
from probe.errors import InputError, InputTypeError, ShapeError
from probe.hooks import emit, observed, point

__all__ = [
    "PADDED",
    "Gather",
    "SeqAllToAll",
    "gather_heads_scatter_seq",
    "gather_outpus_and_unpad",
    "gather_outputs_and_unpad",
    "gather_seq_scatter_heads",
    "get_ulysses_sequence_parallel_group",
    "get_ulysses_sequence_parallel_rank",
    "get_ulysses_sequence_parallel_world_size",
    "set_ulysses_sequence_parallel_group",
    "slice_input_tensor",
    "ulysses_pad",
    "ulysses_pad_and_slice_inputs",
    "ulysses_sequence_parallel",
    "validate_ulysses_config",
]

#: Told once for each tensor that grows. Every rank of the group tells it, as each pads the whole sequence.
PADDED: Final = point(
    "ulysses.padded",
    "a sequence was padded so that the ranks of a sequence-parallel group can share it equally; carries field "
    "(input_ids, position_ids, or the name of the function that padded an activation), rows, tokens before and "
    "pad_tokens (both summed over the rows), bytes_per_token, sp_size",
)

# --------------------------------------------------------------------------------------------------------- the way in


@also_named(input_ids="input_ids_rmpad", position_ids="position_ids_rmpad")
@observed("ulysses.pad", "packed inputs are padded to a multiple of the sequence-parallel size")
def ulysses_pad(
    input_ids_rmpad: Tensor, position_ids_rmpad: Tensor | None = None, sp_size: int = 1, pad_value: float = 0
) -> tuple[Tensor, Tensor | None, int]:
    """Pad packed inputs on the right until ``sp_size`` ranks can share them equally.

    Args:
        input_ids_rmpad: Token ids (rows, T), any dtype; ``input_ids`` is another name for it.
        position_ids_rmpad: Positions (1, T), or (k, 1, T) where a model counts k kinds of them; ``position_ids`` is
            another name for it.
        sp_size: Number of ranks that share a sequence.
        pad_value: What the ids are filled with.

    Returns:
        Ids (rows, T + pad), positions (…, 1, T + pad) and pad, in 0 … sp_size − 1. The positions of
        the padding count from 0 again, so that a variable-length attention sees it as a sequence of its own. What
        needs no padding is returned as it is.

    Raises:
        ShapeError: The ids aren't 2-D, or the positions don't fit them.
        InputError: ``sp_size`` is below 1.

    >>> ulysses_pad(torch.tensor([[7, 8, 9]]), torch.tensor([[0, 1, 0]]), sp_size=4)
    (tensor([[7, 8, 9, 0]]), tensor([[0, 1, 0, 0]]), 1)
    """
    size = whole_number("sp_size", sp_size, 1)
    ids, positions = input_ids_rmpad, position_ids_rmpad
    _check_inputs(ids, positions)
    pad = -ids.shape[1] % size
    if not pad:
        return ids, positions, 0
    _tell("input_ids", ids, 1, pad, size, rows=ids.shape[0])
    ids = torch.nn.functional.pad(ids, (0, pad), value=pad_value)
    if positions is not None:
        _tell("position_ids", positions, -1, pad, size)
        restart = torch.arange(pad, dtype=positions.dtype, device=positions.device)
        positions = torch.cat([positions, restart.expand(*positions.shape[:-1], pad)], dim=-1)
    return ids, positions, pad


@observed("ulysses.pad_and_slice_inputs", "packed inputs are padded and cut over the sequence-parallel ranks")
def ulysses_pad_and_slice_inputs(
    input_ids_rmpad: Tensor,
    position_ids_rmpad: Tensor | None = None,
    sp_size: int = 1,
    skip_position_ids_rmpad: bool = False,
    pad_value: float = 0,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor | None, int]:
    """This rank's slice of packed inputs, after :func:`ulysses_pad`.

    Args:
        input_ids_rmpad: Token ids (rows, T), the same on every rank of the group.
        position_ids_rmpad: Positions (1, T) or (k, 1, T).
        sp_size: Number of ranks of the group. 1 needs no process group.
        skip_position_ids_rmpad: Whether the positions are padded but left whole, for a model that cuts them itself.
        pad_value: What ``input_ids`` is filled with.
        group: The process group; None means the one that was set.

    Returns:
        Ids (rows, (T + pad) / sp_size), positions (…, 1, (T + pad) / sp_size), and pad, which is the ``padding_size``
        of :func:`gather_outputs_and_unpad`.

    Raises:
        InputError: ``sp_size`` isn't the size of the group.
        ShapeError: See :func:`ulysses_pad`.

    >>> ulysses_pad_and_slice_inputs(torch.tensor([[7, 8, 9]]))
    (tensor([[7, 8, 9]]), None, 0)
    """
    rank, size = place_of(group)
    if whole_number("sp_size", sp_size, 1) != size:
        raise InputError(
            f"sp_size: got {sp_size}, but the sequence-parallel group has {size} rank{'s' if size > 1 else ''}"
            + ("" if size > 1 else "; set_ulysses_sequence_parallel_group or the argument group names another")
        )
    ids, positions, pad = ulysses_pad(input_ids_rmpad, position_ids_rmpad, size, pad_value)
    ids = part_of_rank(ids, 1, rank, size)
    if positions is not None and not skip_position_ids_rmpad:
        positions = part_of_rank(positions, -1, rank, size)
    return ids, positions, pad


@observed("ulysses.slice_input_tensor", "a tensor is cut over the sequence-parallel ranks")
def slice_input_tensor(x: Tensor, dim: int, padding: bool = True, group: ProcessGroup | None = None) -> Tensor:
    """This rank's slice of ``x`` along ``dim``; a view where nothing was padded.

    Args:
        x: A tensor of any shape and dtype, the same on every rank.
        dim: The dimension to cut.
        padding: Whether to fill up with zeros where the ranks can't share equally.
        group: The process group; None means the one that was set; with none set ``x`` is returned as it is.

    Raises:
        ShapeError: There is no such ``dim``, or its size isn't a multiple of the ranks and ``padding`` is False.
    """
    rank, size = place_of(group)
    dim = dim_of("dim", dim, x)
    if size == 1:
        return x
    if padding:
        x = _fill(x, dim, size, "slice_input_tensor")
    elif x.shape[dim] % size:
        raise ShapeError(f"x: dimension {dim} has size {x.shape[dim]}, expected a multiple of the {size} ranks")
    return part_of_rank(x, dim, rank, size)


# ------------------------------------------------------------------------------------------------- through attention


@observed("ulysses.gather_seq_scatter_heads", "all ranks exchange: the whole sequence for a slice of the heads")
def gather_seq_scatter_heads(
    x: Tensor, seq_dim: int, head_dim: int, unpadded_dim_size: int = 0, group: ProcessGroup | None = None
) -> Tensor:
    """Before attention: a slice of the sequence with all heads becomes the sequence with a slice of the heads.

    Args:
        x: A tensor with T/n tokens in ``seq_dim`` and H heads in ``head_dim``, on each of n ranks.
        seq_dim: The dimension of the sequence.
        head_dim: The dimension of the heads.
        unpadded_dim_size: Tokens of the sequence before padding, so that attention doesn't see it; 0 keeps it.
        group: The process group; None means the one that was set; with none set ``x`` is returned as it is.

    Returns:
        T (or ``unpadded_dim_size``) tokens in ``seq_dim``, H/n heads in ``head_dim``. The gradient goes the way back.

    Raises:
        ShapeError: H isn't a multiple of n, both dimensions are the same, or there are fewer than ``unpadded_dim_size``
            tokens.
    """
    _, size = place_of(group)
    seq, head = two_dims(x, "seq_dim", seq_dim, "head_dim", head_dim)
    kept = whole_number("unpadded_dim_size", unpadded_dim_size, 0)
    if size == 1:
        return x
    whole = x.shape[seq] * size
    if kept > whole:
        raise ShapeError(f"unpadded_dim_size: got {kept}, but {size} ranks hold {whole} tokens in seq_dim={seq_dim}")
    _check_heads(x, head, size)
    x = exchanged(x, head, seq, group)
    return x.narrow(seq, 0, kept) if 0 < kept < whole else x


@observed("ulysses.gather_heads_scatter_seq", "all ranks exchange: all heads for a slice of the sequence")
def gather_heads_scatter_seq(x: Tensor, head_dim: int, seq_dim: int, group: ProcessGroup | None = None) -> Tensor:
    """After attention: the sequence with a slice of the heads becomes a slice of the sequence with all heads.

    Args:
        x: A tensor with T tokens in ``seq_dim`` and H/n heads in ``head_dim``, on each of n ranks. Where n doesn't
            divide T zeros are added at the end, as :func:`ulysses_pad` did.
        head_dim: The dimension of the heads.
        seq_dim: The dimension of the sequence.
        group: The process group; None means the one that was set; with none set ``x`` is returned as it is.

    Returns:
        ⌈T/n⌉ tokens in ``seq_dim``, H heads in ``head_dim``. The gradient goes the way back.

    Raises:
        ShapeError: There is no such dimension, or both are the same.
    """
    _, size = place_of(group)
    head, seq = two_dims(x, "head_dim", head_dim, "seq_dim", seq_dim)
    if size == 1:
        return x
    x = _fill(x, seq, size, "gather_heads_scatter_seq")
    return exchanged(x, seq, head, group)


# --------------------------------------------------------------------------------------------------------- the way out


@observed("ulysses.gather_outputs_and_unpad", "slices of outputs are gathered on every rank, without the padding")
def gather_outputs_and_unpad(
    x: Tensor,
    gather_dim: int,
    unpad_dim: int | None = None,
    padding_size: int = 0,
    grad_scaler: bool = True,
    group: ProcessGroup | None = None,
) -> Tensor:
    """The slices of all ranks in one tensor, the padding taken off its end.

    Args:
        x: This rank's slice; the same shape on every rank.
        gather_dim: The dimension along which the slices are put together.
        unpad_dim: The dimension from whose end ``padding_size`` elements are removed; None removes nothing.
        padding_size: What :func:`ulysses_pad` returned.
        grad_scaler: Whether the gradient is multiplied by the number of ranks n. Every rank goes on to compute the same
            loss from the same gathered tensor, and the gradients of weights are then averaged over the ranks (DDP,
            FSDP), so that each slice's part would count 1/n. False gives the slice's own gradient, for weights whose
            gradients are summed.
        group: The process group; None means :func:`get_ulysses_sequence_parallel_group`. With none set ``x`` is
            returned unchanged, its padding included, as documented.

    Raises:
        InputTypeError: ``padding_size`` isn't an integer.
        InputError: ``padding_size`` is negative.
        ShapeError: There is no such dimension, or more padding than elements.
    """
    _, size = place_of(group)
    resolved = get_ulysses_sequence_parallel_group() if group is None else group
    if resolved is None:
        return x
    gather = dim_of("gather_dim", gather_dim, x)
    if unpad_dim is None:
        return gathered(x, gather, grad_scaler, resolved, size)
    unpad = dim_of("unpad_dim", unpad_dim, x)
    padding = whole_number("padding_size", padding_size, 0)
    kept = x.shape[unpad] * (size if unpad == gather else 1) - padding
    if kept < 0:
        raise ShapeError(f"padding_size: got {padding}, but unpad_dim={unpad_dim} has {kept + padding} elements")
    return gathered(x, gather, grad_scaler, resolved, size).narrow(unpad, 0, kept)


#: The documented spelling.
gather_outpus_and_unpad = gather_outputs_and_unpad

# ------------------------------------------------------------------------------------------------------ small helpers


def _fill(x: Tensor, dim: int, size: int, field: str) -> Tensor:
    """``x`` with zeros at the end of ``dim``, until ``size`` divides it."""
    pad = -x.shape[dim] % size
    if not pad:
        return x
    _tell(field, x, dim, pad, size)
    return torch.nn.functional.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, pad))


def _tell(field: str, x: Tensor, dim: int, pad: int, size: int, rows: int = 1) -> None:
    if not PADDED.listeners:
        return
    tokens = rows * x.shape[dim]
    others = prod(x.shape[:dim]) * prod(x.shape[dim:][1:]) // rows if rows else 0
    emit(
        PADDED,
        field=field,
        rows=rows,
        tokens=tokens,
        pad_tokens=rows * pad,
        bytes_per_token=others * x.element_size(),
        sp_size=size,
    )


def _check_inputs(input_ids: Tensor, position_ids: Tensor | None) -> None:
    if not isinstance(input_ids, Tensor) or input_ids.is_nested:
        raise InputTypeError(f"input_ids: got {_kind(input_ids)}, expected a plain tensor of shape (rows, tokens)")
    if input_ids.dim() != 2:
        raise ShapeError(f"input_ids: got shape {tuple(input_ids.shape)}, expected (rows, tokens)")
    if position_ids is None:
        return
    if not isinstance(position_ids, Tensor) or position_ids.is_nested:
        raise InputTypeError(f"position_ids: got {_kind(position_ids)}, expected a plain tensor or None")
    if position_ids.dim() not in {2, 3} or position_ids.shape[-2:] != (1, input_ids.shape[1]):
        raise ShapeError(
            f"position_ids: got shape {tuple(position_ids.shape)}, expected (1, {input_ids.shape[1]}) or "
            f"(k, 1, {input_ids.shape[1]}), as input_ids has shape {tuple(input_ids.shape)}"
        )


def _kind(value: object) -> str:
    return "a nested tensor" if isinstance(value, Tensor) else type(value).__name__


def _check_heads(x: Tensor, head: int, size: int) -> None:
    if x.shape[head] % size:
        raise ShapeError(
            f"x: got {x.shape[head]} heads, expected a multiple of the {size} ranks (see validate_ulysses_config)"
        )
