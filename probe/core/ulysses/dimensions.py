"""Dimensions of a tensor that is cut across ranks: checked, counted from the front, and a rank's part along one."""

from __future__ import annotations

from torch import Tensor

from probe._check import whole_number
from probe.errors import InputTypeError, ShapeError


def part_of_rank(x: Tensor, dim: int, rank: int, size: int) -> Tensor:
    """The part of rank ``rank`` of ``size`` along ``dim``, as a view.

    Args:
        x: A tensor whose size in ``dim`` is a multiple of ``size``.
        dim: The dimension that is cut, from 0.
        rank: Which part, from 0.
        size: The number of parts; with 1 it is ``x`` itself.
    """
    if size == 1:
        return x
    each = x.shape[dim] // size
    return x.narrow(dim, rank * each, each)


def two_dims(x: object, name: str, dim: int, other_name: str, other: int) -> tuple[int, int]:
    """Two dimensions of ``x``, counted from the front.

    Args:
        x: The tensor.
        name: What errors call the first.
        dim: The first.
        other_name: What errors call the other.
        other: The other.

    Raises:
        InputTypeError: ``x`` isn't a tensor, or a dimension no integer.
        ShapeError: There is no such dimension, or both are the same.
    """
    first, second = dim_of(name, dim, x), dim_of(other_name, other, x)
    if first == second:
        raise ShapeError(f"{name} and {other_name}: both are {first}, expected two dimensions")
    return first, second


def dim_of(name: str, dim: object, x: object) -> int:
    """``dim`` counted from the front.

    Args:
        name: What errors call it.
        dim: The dimension; a negative one counts from the end.
        x: The tensor.

    Raises:
        InputTypeError: ``x`` isn't a tensor, or ``dim`` no integer.
        ShapeError: There is no such dimension.
    """
    if not isinstance(x, Tensor):
        raise InputTypeError(f"x: got {type(x).__name__}, expected a tensor")
    number = whole_number(name, dim, expected="an integer")
    if not -x.dim() <= number < x.dim():
        raise ShapeError(f"{name}: got {number}, expected a dimension of x, which has shape {tuple(x.shape)}")
    return number % x.dim()
