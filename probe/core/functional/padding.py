"""Padding of token ids: which tokens are the response, filling rows up to a width, and taking padding out.

Letters in shapes: N rows, L their width, ``*`` any leading dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from numbers import Integral
from typing import Any, Final

import torch
from torch import Tensor

from probe._check import is_whole
from probe.core.columns.jagged import is_jagged
from probe.errors import InputError, InputTypeError, ShapeError, TruncationError, UnknownNameError
from probe.hooks import observed

_TRUNCATIONS: Final = ("left", "right", "middle", "error")


@observed(
    "padding.get_response_mask", "the response's tokens are marked; arguments response_id, eos_token, pad_token_id"
)
def get_response_mask(
    response_id: Tensor,
    eos_token: int | Sequence[int] = 2,
    dtype: torch.dtype = torch.int64,
    *,
    pad_token_id: int | None = None,
) -> Tensor:
    """1 for every token up to and with the first end-of-sequence token of its row, 0 after it.

    A row that was cut off has no such token, and then all of it is marked, padding included, unless ``pad_token_id``
    tells what padding looks like: trailing tokens of that id are then left out (the first end-of-sequence token is
    always in).

    Args:
        response_id: Token ids, integers (*, L).
        eos_token: Token id or ids that end a response.
        dtype: The result's dtype.
        pad_token_id: None is the documented behaviour.

    Returns:
        (*, L), on the device of ``response_id``. Nothing waits for it.

    Raises:
        InputTypeError: It is not a tensor of integers, or the ids aren't ints.
        ShapeError: The tensor has no dimension.
        InputError: There is no id at all.

    >>> ids = torch.tensor([[20, 10, 2, 0], [7, 8, 9, 0]])
    >>> get_response_mask(ids, eos_token=2)
    tensor([[1, 1, 1, 0],
            [1, 1, 1, 1]])
    >>> get_response_mask(ids, eos_token=[2, 8], pad_token_id=0)
    tensor([[1, 1, 1, 0],
            [1, 1, 0, 0]])
    """
    _check_ids("response_id", response_id)
    tokens = _token_ids("eos_token", eos_token)
    ends = response_id == tokens[0]  # one by one: a tensor of ids would have to travel to the device
    for token in tokens[1:]:
        ends = ends | (response_id == token)
    inside = (ends.cumsum(-1) - ends.long()) == 0
    if pad_token_id is not None:
        (pad,) = _token_ids("pad_token_id", pad_token_id)
        is_token = (response_id != pad).flip(-1).cumsum(-1).flip(-1) > 0
        inside &= is_token | ends
    return inside.to(dtype)


@observed("padding.pad_sequence_to_length", "rows are filled up to a width; arguments tensors, max_seq_len, left_pad")
def pad_sequence_to_length(tensors: Tensor, max_seq_len: int, pad_token_id: float, left_pad: bool = False) -> Tensor:
    """Fill the last dimension up to ``max_seq_len``; what is as long already, or longer, comes back as it is.

    Args:
        tensors: Any dtype, (*, L).
        max_seq_len: The width wanted.
        pad_token_id: What is filled in. Integers must hold it exactly, so no 0.5; floating point rounds it, but makes
            no infinity of a number that is too large.
        left_pad: Whether to pad before the rows instead of after them.

    Returns:
        (*, max(L, max_seq_len)), differentiable.

    Raises:
        InputTypeError: It is not a plain tensor, or the width not an int.
        ShapeError: The tensor has no dimension.
        InputError: The width is negative, or the dtype can't hold the value.

    >>> pad_sequence_to_length(torch.tensor([[1, 2], [3, 4]]), 3, pad_token_id=0, left_pad=True)
    tensor([[0, 1, 2],
            [0, 3, 4]])
    """
    _check_plain("tensors", tensors)
    _check_width("max_seq_len", max_seq_len)
    missing = max_seq_len - tensors.shape[-1]
    if missing <= 0:
        return tensors
    _check_holds(tensors.dtype, pad_token_id)
    filling = tensors.new_full((*tensors.shape[:-1], missing), pad_token_id)
    return torch.cat([filling, tensors] if left_pad else [tensors, filling], -1)


@observed(
    "padding.postprocess_data",
    "token ids and their mask are padded or cut to one width; arguments input_ids, max_length",
)
def postprocess_data(
    input_ids: Tensor,
    attention_mask: Tensor,
    max_length: int,
    pad_token_id: float,
    left_pad: bool = True,
    truncation: str = "error",
) -> tuple[Tensor, Tensor]:
    """What a tokenizer made, padded or cut to ``max_length``: ids with ``pad_token_id``, the mask with 0.

    Args:
        input_ids: Token ids (N, L).
        attention_mask: Of the same shape; 1 for a token.
        max_length: The width wanted.
        pad_token_id: What the ids are filled with.
        left_pad: Whether to pad before the rows instead of after them.
        truncation: What happens to wider rows: ``"left"`` drops their beginning, ``"right"`` their end, ``"middle"``
            keeps ``max_length // 2`` tokens of the beginning and the rest of the end, ``"error"`` raises.

    Returns:
        Ids and mask, both (N, ``max_length``). Cut ones are views but for ``"middle"``.

    Raises:
        TruncationError: The rows are wider and ``truncation`` is ``"error"``; a NotImplementedError too, as in verl.
        UnknownNameError: ``truncation`` is another word.
        ShapeError: They aren't two-dimensional, or not of one shape.
        InputTypeError: As :func:`pad_sequence_to_length`.
        InputError: As :func:`pad_sequence_to_length`.

    >>> ids, mask = postprocess_data(torch.tensor([[5, 6]]), torch.tensor([[1, 1]]), 3, pad_token_id=0)
    >>> ids, mask
    (tensor([[0, 5, 6]]), tensor([[0, 1, 1]]))
    """
    if truncation not in _TRUNCATIONS:
        raise UnknownNameError.of("truncation", truncation, _TRUNCATIONS)
    for name, given in (("input_ids", input_ids), ("attention_mask", attention_mask)):
        _check_plain(name, given)
    _check_width("max_length", max_length)
    if input_ids.ndim != 2 or attention_mask.shape != input_ids.shape:
        raise ShapeError(
            f"input_ids, attention_mask: got shapes {tuple(input_ids.shape)} and {tuple(attention_mask.shape)}, "
            "expected the same (rows, width) for both"
        )
    width = input_ids.shape[1]
    if width <= max_length:
        ids = pad_sequence_to_length(input_ids, max_length, pad_token_id, left_pad)
        return ids, pad_sequence_to_length(attention_mask, max_length, 0, left_pad)
    if truncation == "error":
        raise TruncationError(
            f"input_ids: got {width} tokens in a row, above max_length={max_length}; "
            "set truncation to 'left', 'right' or 'middle' to cut them"
        )
    return _cut(input_ids, max_length, truncation), _cut(attention_mask, max_length, truncation)


def _cut(rows: Tensor, width: int, how: str) -> Tensor:
    first = {"left": 0, "right": width, "middle": width // 2}[how]
    begin, end = rows[:, :first], rows[:, rows.shape[1] - (width - first) :]
    return end if how == "left" else begin if how == "right" else torch.cat([begin, end], -1)


@observed("padding.pad_2d_list_to_length", "lists become a rectangle; arguments response, pad_token_id, max_length")
def pad_2d_list_to_length(
    response: Sequence[Sequence[float]], pad_token_id: float, max_length: int | None = None
) -> Tensor:
    """A rectangle of lists of different lengths, filled up on the right.

    Args:
        response: N lists of numbers.
        pad_token_id: What is filled in.
        max_length: Width at least; a longer list makes it wider, nothing is cut off. None means the longest list.

    Returns:
        (N, L): int64 for ints, float32 for floats, bool for bools; int64 where there is no number at all. On the CPU.

    Raises:
        InputTypeError: They are not lists of numbers.
        InputError: ``max_length`` is negative, or the dtype can't hold a value.

    >>> pad_2d_list_to_length([[1, 2, 3], [4], []], pad_token_id=0, max_length=4)
    tensor([[1, 2, 3, 0],
            [4, 0, 0, 0],
            [0, 0, 0, 0]])
    """
    _check_width("max_length", 0 if max_length is None else max_length)
    try:
        lengths = [len(row) for row in response]
        flat = list(chain.from_iterable(response))
        values = torch.tensor(flat) if flat else torch.empty(0, dtype=torch.int64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(
            f"response: got {type(response).__name__}, expected a list of lists of numbers: {error}"
        ) from error
    if values.ndim != 1:
        raise InputTypeError(f"response: got lists nested {values.ndim + 1} deep, expected a list of lists of numbers")
    _check_holds(values.dtype, pad_token_id)
    width = max([*lengths, max_length or 0])
    padded = torch.full((len(lengths), width), pad_token_id, dtype=values.dtype)
    padded[torch.arange(width) < torch.tensor(lengths, dtype=torch.int64).unsqueeze(-1)] = values
    return padded


@observed(
    "padding.get_unpad_data", "the positions of a padded batch's tokens; argument attention_mask, result a triple"
)
def get_unpad_data(attention_mask: Tensor) -> tuple[Tensor, Tensor, int]:
    """What flash-attention's functions for rows of different lengths want to know of a padded batch.

    The number of tokens is asked for, so this waits for the mask's device.

    Args:
        attention_mask: Bool or numbers (N, L); what isn't 0 is a token.

    Returns:
        ``indices``: int64 (T,), places of the tokens in the flattened batch.
        ``cu_seqlens``: int32 (N + 1,), where each row begins among them, and their number.
        ``max_seqlen``: the most tokens of a row, 0 without rows.

    Raises:
        InputTypeError: It is not a plain tensor.
        ShapeError: It doesn't have two dimensions.

    >>> get_unpad_data(torch.tensor([[0, 1, 1], [1, 0, 0]]))
    (tensor([1, 2, 3]), tensor([0, 2, 3], dtype=torch.int32), 2)
    """
    _check_plain("attention_mask", attention_mask)
    if attention_mask.ndim != 2:
        raise ShapeError(f"attention_mask: got shape {tuple(attention_mask.shape)}, expected (rows, width)")
    tokens = attention_mask != 0
    lengths = tokens.sum(-1, dtype=torch.int32)
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    indices = tokens.flatten().nonzero().flatten()
    return indices, cu_seqlens, int(lengths.max()) if lengths.numel() else 0


@observed("padding.expand_as_nested", "each row's value is repeated for its tokens; arguments tensor, nested_tensor")
def expand_as_nested(tensor: Tensor, nested_tensor: Tensor) -> Tensor:
    """One value for each row, repeated for each of its tokens.

    Args:
        tensor: One entry for each row, (N, *).
        nested_tensor: Jagged (N, j, *), with the same dimensions after the ragged one.

    Returns:
        Jagged (N, j, *), dtype of ``tensor``; differentiable. It shares the offsets of ``nested_tensor``, so that the
        two can be combined.

    Raises:
        InputTypeError: They are not tensors, or ``nested_tensor`` isn't jagged.
        ShapeError: Shapes or devices don't fit.

    >>> nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(1)], layout=torch.jagged)
    >>> expand_as_nested(torch.tensor([0.5, 7.0]), nested).values()
    tensor([0.5000, 0.5000, 7.0000])
    """
    _check_plain("tensor", tensor)
    if not is_jagged(nested_tensor):
        raise InputTypeError(f"nested_tensor: got {_kind(nested_tensor)}, expected a jagged tensor")
    column: Any = nested_tensor
    trailing = column._values.shape[1:]
    if column._ragged_idx != 1 or tensor.shape != (column.shape[0], *trailing):
        raise ShapeError(
            f"tensor: got shape {tuple(tensor.shape)} for a nested tensor of shape {tuple(column.shape)}, "
            "expected that shape without its ragged dimension, which must be dimension 1"
        )
    if tensor.device != column.device:
        raise ShapeError(f"tensor: on {tensor.device}, but the nested tensor is on {column.device}")
    # The size of the result is known, so that nothing waits for the device. Places that no row uses, where there are
    # any, get the value of a neighbour: the offsets stay what they are.
    offsets, places = column.offsets(), torch.arange(column._values.shape[0], device=tensor.device)
    row_of_place = torch.bucketize(places, offsets[1:-1], right=True)
    values = tensor.index_select(0, row_of_place)
    made: Tensor = torch.nested.nested_tensor_from_jagged(
        values, offsets, column.lengths(), min_seqlen=column._maybe_min_seqlen, max_seqlen=column._maybe_max_seqlen
    )
    return made


def _kind(given: object) -> str:
    if not isinstance(given, Tensor):
        return type(given).__name__
    return f"a nested tensor of layout {given.layout}" if given.is_nested else "a plain tensor"


def _check_plain(name: str, given: Tensor) -> None:
    if not isinstance(given, Tensor) or given.is_nested:
        raise InputTypeError(f"{name}: got {_kind(given)}, expected a plain tensor")
    if given.ndim == 0:
        raise ShapeError(f"{name}: got a tensor without dimensions, expected at least one")


def _check_ids(name: str, given: Tensor) -> None:
    _check_plain(name, given)
    if given.is_floating_point() or given.is_complex() or given.dtype is torch.bool:
        raise InputTypeError(f"{name}: got {given.dtype}, expected integers")


def _token_ids(name: str, given: int | Sequence[int]) -> list[int]:
    tokens = [given] if isinstance(given, Integral) else list(given) if isinstance(given, Sequence) else []
    if not tokens and isinstance(given, Sequence):
        raise InputError(f"{name}: got no id, expected at least one")
    if not tokens or not all(map(is_whole, tokens)):
        raise InputTypeError(f"{name}: got {given!r}, expected an int or a list of them")
    return [int(token) for token in tokens]


def _check_width(name: str, given: int) -> None:
    if not isinstance(given, int):
        raise InputTypeError(f"{name}: got {type(given).__name__}, expected an int")
    if given < 0:
        raise InputError(f"{name}: got {given}, expected at least 0")


def _check_holds(dtype: torch.dtype, value: float) -> None:
    """Raise where filling in ``value`` would silently become another number."""
    if not isinstance(value, int | float):
        raise InputTypeError(f"pad_token_id: got {type(value).__name__}, expected a number")
    if dtype.is_floating_point or dtype.is_complex:
        if torch.finfo(dtype).max < abs(value) < math.inf:
            raise InputError(f"pad_token_id: got {value!r}, which {dtype} would make infinite")
        return
    low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not low <= value <= high or value != int(value):
        raise InputError(f"pad_token_id: got {value!r}, expected a whole number from {low} to {high} for {dtype}")
