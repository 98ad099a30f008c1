"""Small tensor helpers of a policy-gradient trainer, all under their documented home.

Names and results follow verl's documented ``torch_functional``. Three things hold throughout: shapes are checked and
nothing broadcasts silently; what lies outside a mask never reaches a result, NaN included; and no check makes the
program wait for a device. What can only be known from the data is checked where the data is on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from probe.core.distributed.dict_exchange import allgather_dict_into_dict, allgather_dict_tensors, broadcast_dict_tensor
from probe.core.distributed.statistics import (
    compute_grad_norm,
    compute_squared_grad_norm,
    distributed_masked_mean,
    distributed_mean_max_min_std,
)
from probe.core.functional.entropy import (
    calculate_sum_pi_squared_from_logits,
    entropy_from_logits,
    entropy_from_logits_with_chunking,
)
from probe.core.functional.log_probs import gather_from_labels, logprobs_from_logits
from probe.core.functional.masked import masked_mean, masked_sum, masked_var, masked_whiten
from probe.core.functional.padding import (
    expand_as_nested,
    get_response_mask,
    get_unpad_data,
    pad_2d_list_to_length,
    pad_sequence_to_length,
    postprocess_data,
)
from probe.core.functional.schedules import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_wsd_schedule_with_warmup,
)
from probe.errors import InputTypeError, ShapeError

__all__ = [
    "allgather_dict_into_dict",
    "allgather_dict_tensors",
    "broadcast_dict_tensor",
    "calculate_sum_pi_squared_from_logits",
    "clip_by_value",
    "compute_grad_norm",
    "compute_squared_grad_norm",
    "distributed_masked_mean",
    "distributed_mean_max_min_std",
    "entropy_from_logits",
    "entropy_from_logits_with_chunking",
    "expand_as_nested",
    "gather_from_labels",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_response_mask",
    "get_unpad_data",
    "get_wsd_schedule_with_warmup",
    "logprobs_from_logits",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "masked_whiten",
    "pad_2d_list_to_length",
    "pad_sequence_to_length",
    "postprocess_data",
]


def clip_by_value(x: Tensor, tensor_min: Tensor | float, tensor_max: Tensor | float) -> Tensor:
    """``max(min(x, tensor_max), tensor_min)``: values kept between bounds, with gradients to all three.

    Where the bounds cross, the lower one wins; ``torch.clamp`` would choose the upper one. NaN stays NaN.

    Args:
        x: A tensor of any shape.
        tensor_min: The lower limits in the same shape, or one number for all.
        tensor_max: The upper limits in the same shape, or one number for all.

    Returns:
        (*), of the dtype that torch's rules give the three.

    Raises:
        InputTypeError: It is neither tensor nor number, or complex.
        ShapeError: Shapes or devices differ.

    >>> clip_by_value(torch.tensor([-3.0, 0.5, 3.0]), torch.tensor([-1.0, 1.0, 0.0]), 2.0)
    tensor([-1.,  1.,  2.])
    """
    if not isinstance(x, Tensor) or x.is_complex():
        got = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise InputTypeError(f"x: got {got}, expected a tensor of real numbers")
    upper = _bound("tensor_max", tensor_max, x)
    lower = _bound("tensor_min", tensor_min, x)
    return torch.maximum(torch.minimum(x, upper), lower)


def _bound(name: str, given: Any, x: Tensor) -> Tensor:
    if isinstance(given, int | float):
        return torch.full((), given, dtype=torch.result_type(x, given), device=x.device)
    if not isinstance(given, Tensor) or given.is_complex():
        got = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise InputTypeError(f"{name}: got {got}, expected a tensor of real numbers, or a number")
    if given.ndim and given.shape != x.shape:
        raise ShapeError(f"{name}: got shape {tuple(given.shape)}, expected that of x, {tuple(x.shape)}, or one number")
    if given.device != x.device and (given.ndim or given.device.type != "cpu"):  # a number on the CPU goes anywhere
        raise ShapeError(f"{name}: on {given.device}, but x is on {x.device}")
    return given
