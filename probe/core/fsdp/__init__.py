"""FSDP of both kinds behind one set of names: whole state dicts out and in, and clipping of gradients.

FSDP1 is ``FullyShardedDataParallel``, FSDP2 is ``fully_shard``. Wrapping is in :mod:`probe.core.fsdp.wrapping`, loading
in :mod:`probe.core.fsdp.loading`, moving to the CPU and back in :mod:`probe.core.fsdp.offload`; all names can be
imported from here. What gathers or clips is a collective: every rank of the model calls it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import (
    FSDPModule,
    FullStateDictConfig,
    FullyShardedDataParallel,
    OptimStateDictConfig,
    StateDictConfig,
    StateDictType,
)
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from probe.core.fsdp.loading import fsdp2_load_full_state_dict
from probe.core.fsdp.offload import (
    load_fsdp2_model_to_gpu,
    load_fsdp_model_to_gpu,
    load_fsdp_optimizer,
    offload_fsdp2_model_to_cpu,
    offload_fsdp_model_to_cpu,
    offload_fsdp_optimizer,
)
from probe.core.fsdp.wrapping import apply_fsdp2, get_fsdp_wrap_policy, get_init_weight_context_manager, init_fn
from probe.errors import InputError, InputTypeError, NonFiniteNormError
from probe.hooks import observed

__all__ = [
    "NonFiniteNormError",
    "apply_fsdp2",
    "fsdp2_clip_grad_norm_",
    "fsdp2_load_full_state_dict",
    "fsdp_version",
    "get_fsdp_full_state_dict",
    "get_fsdp_state_ctx",
    "get_fsdp_wrap_policy",
    "get_init_weight_context_manager",
    "init_fn",
    "load_fsdp2_model_to_gpu",
    "load_fsdp_model_to_gpu",
    "load_fsdp_optimizer",
    "offload_fsdp2_model_to_cpu",
    "offload_fsdp_model_to_cpu",
    "offload_fsdp_optimizer",
]


def fsdp_version(model: nn.Module) -> int:
    """Which FSDP ``model`` is wrapped with: 1, 2, or 0 for none.

    The model itself decides; where it is plain, as under ``torch.compile`` or an adapter, the outermost part that
    is wrapped.

    >>> fsdp_version(nn.Linear(2, 1))
    0
    """
    for part in model.modules():
        if isinstance(part, FullyShardedDataParallel):
            return 1
        if isinstance(part, FSDPModule):
            return 2
    return 0


# --------------------------------------------------------------------------------------------------------- state dicts


def get_fsdp_state_ctx(
    model: nn.Module,
    state_type: StateDictType,
    state_cfg: StateDictConfig | None = None,
    optim_cfg: OptimStateDictConfig | None = None,
) -> AbstractContextManager[None]:
    """A context in which FSDP1's ``state_dict`` is of ``state_type``; FSDP2 and plain models need none.

    The settings of before come back, after an exception too.

    Args:
        model: A model under FSDP1, FSDP2 or neither.
        state_type: Full, sharded or local, as FSDP1 names them.
        state_cfg: How the model's state is taken; None means FSDP1's default.
        optim_cfg: How the optimizer's state is taken; None means FSDP1's default.
    """
    if fsdp_version(model) != 1:
        return nullcontext()
    return _state_type(model, state_type, state_cfg, optim_cfg)


@contextlib.contextmanager
def _state_type(model: nn.Module, *settings: Any) -> Iterator[None]:
    before = _set_state_type(model, *settings)
    try:
        yield
    finally:
        _set_state_type(model, before.state_dict_type, before.state_dict_config, before.optim_state_dict_config)


def _set_state_type(model: nn.Module, *settings: Any) -> Any:
    with warnings.catch_warnings():  # what it advises instead can't keep FSDP1's settings over a block
        warnings.filterwarnings("ignore", r"FSDP.state_dict_type\(\) and", FutureWarning)
        return FullyShardedDataParallel.set_state_dict_type(model, *settings)


@observed("fsdp.get_fsdp_full_state_dict", "every rank's shards are gathered into one state dict")
def get_fsdp_full_state_dict(model: nn.Module, offload_to_cpu: bool = True, rank0_only: bool = True) -> dict[str, Any]:
    """The whole model's state dict, as the model would have it unwrapped. A collective.

    Under FSDP2 one weight at a time is whole on the device; under FSDP1 all weights of a wrapped part are.

    Args:
        model: A model under FSDP1 or FSDP2, or a plain one.
        offload_to_cpu: Whether the values are put on the CPU, where the whole fits into memory.
        rank0_only: Whether ranks other than 0 get an empty dict.

    Returns:
        Names to values. They are copies, but for a plain model without ``offload_to_cpu``, whose ``state_dict`` it is.
    """
    version = fsdp_version(model)
    keep = not rank0_only or not dist.is_initialized() or dist.get_rank() == 0
    values = _values_of_fsdp1(model, offload_to_cpu, rank0_only) if version == 1 else model.state_dict().items()
    own = _memory_of(model) if version or offload_to_cpu else set()
    whole: dict[str, Any] = {}
    for name, value in values:
        gathered = _gathered(value)  # on every rank, whether it keeps the value or not
        if keep:
            moved = gathered.detach().cpu() if offload_to_cpu and isinstance(gathered, Tensor) else gathered
            whole[name] = moved.clone() if isinstance(moved, Tensor) and _memory(moved) in own else moved
        del gathered
    return whole


def _values_of_fsdp1(model: nn.Module, offload_to_cpu: bool, rank0_only: bool) -> Iterable[tuple[str, Any]]:
    # Told to offload what is on the CPU already, torch frees the weights that it is still reading.
    parts: list[Any] = FullyShardedDataParallel.fsdp_modules(model)
    on_cpu = all(part.compute_device.type == "cpu" for part in parts)
    config = FullStateDictConfig(offload_to_cpu=offload_to_cpu and not on_cpu, rank0_only=rank0_only)
    with get_fsdp_state_ctx(model, StateDictType.FULL_STATE_DICT, config):
        state = model.state_dict()
    return state.items()


def _gathered(value: Any) -> Any:
    if not isinstance(value, DTensor):
        return value
    kind = value.device_mesh.device_type
    # What FSDP keeps on the CPU goes to the device first, where the mesh has its collectives.
    sent: Any = value if value.to_local().device.type == kind else value.to(kind)
    return sent.full_tensor()


def _memory_of(model: nn.Module) -> set[int]:
    tensors = itertools.chain(model.parameters(), model.buffers())
    return {_memory(one.to_local() if isinstance(one, DTensor) else one) for one in tensors} - {0}


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# ----------------------------------------------------------------------------------------------------------- gradients


@observed("fsdp.fsdp2_clip_grad_norm_", "sharded gradients are clipped to a maximum norm; returns the norm before")
def fsdp2_clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale gradients in place so that their norm over all ranks is at most ``max_norm``. A collective.

    Args:
        parameters: Parameters of the model, sharded or not, on one mesh or several; those without gradient are skipped.
        max_norm: The largest norm that gradients keep; infinity only measures.
        norm_type: The p of the p-norm; infinity works too.
        error_if_nonfinite: Whether to raise where the norm is NaN or infinite; this waits for the device.
        foreach: See ``torch.nn.utils.clip_grad_norm_``.

    Returns:
        The norm before clipping, of the whole gradient and the same on every rank; a plain scalar tensor on the
        device of the gradients' mesh.

    Raises:
        NonFiniteNormError: See ``error_if_nonfinite``; the gradients are unchanged.
        InputError: ``max_norm`` is negative or NaN, or ``norm_type`` isn't above 0.
    """
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for parameter in listed:
        if not isinstance(parameter, Tensor):
            raise InputTypeError(f"parameters: got {type(parameter).__name__}, expected tensors")
    if not max_norm >= 0:  # NaN too
        raise InputError(f"max_norm: got {max_norm}, expected a number of at least 0")
    if not norm_type > 0:
        raise InputError(f"norm_type: got {norm_type}, expected a number above 0, or infinity")
    total = _total_norm([one.grad for one in listed if one.grad is not None], float(norm_type), foreach)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise NonFiniteNormError(f"parameters: the gradients' norm is {total.item()}, expected a finite number")
    for group in _by_mesh(listed).values():  # torch scales either plain or sharded tensors at once
        clip_grads_with_norm_(group, max_norm, total, foreach)
    return total


def _total_norm(gradients: list[Tensor], norm_type: float, foreach: bool | None) -> Tensor:
    """Norm of the norms of each mesh's gradients. Each is summed up over its own ranks."""
    norms: list[Tensor] = [
        _gathered(get_total_norm(group, norm_type, False, foreach)) for group in _by_mesh(gradients).values()
    ]
    if not norms:
        return torch.tensor(0.0)
    if len(norms) == 1:
        return norms[0]
    device = next((norm.device for norm in norms if norm.device.type != "cpu"), norms[0].device)
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms]), norm_type)
    return total


def _by_mesh(tensors: Iterable[Tensor]) -> dict[Any, list[Tensor]]:
    """Tensors that torch can work on together, in their order, which is the same on every rank."""
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        key = (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None
        groups.setdefault(key, []).append(tensor)
    return groups
