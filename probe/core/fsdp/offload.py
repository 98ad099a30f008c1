"""Weights and optimizer state to the CPU and back, between the phases of a step that need the device's memory.

Every function returns how many bytes it moved. On a machine without an accelerator that is 0, and everything
stays bitwise what and where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from probe.hooks import observed

Device = torch.device | str | int


def compute_device() -> torch.device:
    """The accelerator that this process uses, the CPU where there is none."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cpu") if kind is None else torch.device(kind.type, torch.accelerator.current_device_index())


def _target(device: Device | None) -> torch.device:
    return compute_device() if device is None else torch.device(device)


# -------------------------------------------------------------------------------------------------------------- model


@observed("fsdp.offload_fsdp_model_to_cpu", "a model's weights go to the CPU; returns the bytes moved")
def offload_fsdp_model_to_cpu(model: nn.Module, empty_cache: bool = True) -> int:
    """Move this rank's part of ``model`` to the CPU, between two steps. FSDP1, FSDP2, or not wrapped.

    Args:
        model: A model; under FSDP1 one without gradients (``optimizer.zero_grad()`` before), which are not moved there.
        empty_cache: Whether to give the freed memory back to the device, so that another process can use it.

    Returns:
        Bytes moved.
    """
    return _offload(model, empty_cache)


@observed("fsdp.load_fsdp_model_to_gpu", "a model's weights come back to the device; returns the bytes moved")
def load_fsdp_model_to_gpu(model: nn.Module, device: Device | None = None) -> int:
    """Move this rank's part of ``model`` to ``device``; None is the accelerator, and the CPU where there is none.

    Weights that FSDP itself keeps on the CPU (``CPUOffloadPolicy``, ``CPUOffload``) stay there.

    Args:
        model: A model under FSDP1, FSDP2 or neither.
        device: The device to move to; None is the accelerator, and the CPU where there is none.

    Returns:
        Bytes moved.
    """
    return _move(model, _target(device))


@observed("fsdp.offload_fsdp2_model_to_cpu", "a model's weights go to the CPU; returns the bytes moved")
def offload_fsdp2_model_to_cpu(model: nn.Module, empty_cache: bool = True) -> int:
    """Move this rank's part of an FSDP2 model to the CPU: :func:`offload_fsdp_model_to_cpu` by its other name.

    Args:
        model: A model under FSDP2.
        empty_cache: Whether to give the freed memory back to the device, so that another process can use it.
    """
    return _offload(model, empty_cache)


@observed("fsdp.load_fsdp2_model_to_gpu", "a model's weights come back to the device; returns the bytes moved")
def load_fsdp2_model_to_gpu(model: nn.Module, device: Device | None = None) -> int:
    """Move this rank's part of an FSDP2 model to a device: :func:`load_fsdp_model_to_gpu` by its other name.

    Args:
        model: A model under FSDP2.
        device: The device to move to; None is the accelerator, and the CPU where there is none.
    """
    return _move(model, _target(device))


def _offload(model: nn.Module, empty_cache: bool) -> int:
    moved = _move(model, torch.device("cpu"))
    if empty_cache and moved:
        _empty_cache()
    return moved


def _move(model: nn.Module, device: torch.device) -> int:
    tensors = list(_own_tensors(model, with_weights=not _kept_on_cpu(model)))
    moved = sum(_bytes(tensor) for tensor in tensors if _elsewhere(tensor, device))
    if not moved:
        return 0
    if any(isinstance(part, FullyShardedDataParallel) for part in model.modules()):
        _move_flat(model, device)
        _move_buffers(model, device)
    elif _kept_on_cpu(model):
        _move_buffers(model, device)
    else:
        model.to(device)
    return moved


def _own_tensors(model: nn.Module, *, with_weights: bool) -> Iterator[Tensor]:
    """Each tensor that would move, once. Under FSDP1 the weights are views of the flat ones, which are what moves."""
    yield from model.buffers()
    handles = list(_flat_handles(model))
    if any(isinstance(part, FullyShardedDataParallel) for part in model.modules()):
        flat = (handle.flat_param for handle in handles if not handle._offload_params)
        yield from (_sharded(one) for one in flat)
        inside = {id(one) for handle in handles for one in (handle.flat_param, *(handle.flat_param._params or ()))}
        yield from (one for one in model.parameters() if id(one) not in inside)
    elif with_weights:
        yield from model.parameters()


def _sharded(flat: Tensor) -> Tensor:
    shard: Tensor | None = getattr(flat, "_local_shard", None)
    return flat if shard is None else shard


def _flat_handles(model: nn.Module) -> Iterator[Any]:
    """FSDP1's handles: torch has no public way to move a wrapped model once it has run."""
    for part in FullyShardedDataParallel.fsdp_modules(model):
        if part._handle is not None:
            yield part._handle


def _move_flat(model: nn.Module, device: torch.device) -> None:
    inside: set[int] = set()
    for handle in _flat_handles(model):
        flat = handle.flat_param
        inside.update(id(one) for one in (flat, *(flat._params or ())))
        if handle._offload_params:
            continue
        started = getattr(flat, "_local_shard", None) is not None
        if started and handle.uses_sharded_strategy:
            handle.reshard(True)  # a forward pass without a backward pass leaves whole weights in memory
        handle.flat_param_to(device)
        if started:  # FSDP goes back to this one after each pass
            flat._local_shard = flat.data
    for parameter in model.parameters():
        if id(parameter) not in inside:  # such as those in `ignored_modules`
            parameter.data = parameter.data.to(device)


def _move_buffers(model: nn.Module, device: torch.device) -> None:
    for part in model.modules():
        for name, buffer in part.named_buffers(recurse=False):
            part._buffers[name] = buffer.to(device)


def _kept_on_cpu(model: nn.Module) -> bool:
    """Whether FSDP2 itself keeps the weights on the CPU and complains where they are not."""
    return any(
        isinstance(group.offload_policy, CPUOffloadPolicy)
        for part in model.modules()
        if isinstance(part, FSDPModule)
        for group in _groups(part)
    )


def _groups(part: FSDPModule) -> list[Any]:
    state: Any = part._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # one group only, by another name, in older torch
    found = [state._fsdp_param_group] if groups is None else list(groups)
    return [group for group in found if group is not None]


# ---------------------------------------------------------------------------------------------------------- optimizer


@observed("fsdp.offload_fsdp_optimizer", "an optimizer's state goes to the CPU; returns the bytes moved")
def offload_fsdp_optimizer(optimizer: Optimizer) -> int:
    """Move the optimizer's state to the CPU. An optimizer that has not stepped yet has none.

    Returns:
        Bytes moved.
    """
    return _move_state(optimizer, torch.device("cpu"))


@observed("fsdp.load_fsdp_optimizer", "an optimizer's state comes back to the device; returns the bytes moved")
def load_fsdp_optimizer(optimizer: Optimizer, device_id: Device | None = None) -> int:
    """Move the optimizer's state to ``device_id``; None is the accelerator, and the CPU where there is none.

    A step counter stays on the CPU unless the optimizer is capturable or fused: it is read on the host at each
    step, and on the device each reading would make the host wait.

    Args:
        optimizer: The optimizer whose state is moved in place.
        device_id: The device to move to; None is the accelerator, and the CPU where there is none.

    Returns:
        Bytes moved.
    """
    return _move_state(optimizer, _target(device_id))


def _move_state(optimizer: Optimizer, device: torch.device) -> int:
    moved = 0
    for group in optimizer.param_groups:
        on_device = bool(group.get("capturable")) or bool(group.get("fused"))
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for name, value in state.items():
                counter = name == "step" and device.type != "cpu" and not on_device
                if isinstance(value, Tensor) and _elsewhere(value, device) and not counter:
                    state[name] = value.to(device)
                    moved += _bytes(value)
    return moved


# ------------------------------------------------------------------------------------------------------ small helpers


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _bytes(tensor: Tensor) -> int:
    return _local(tensor).nbytes


def _elsewhere(tensor: Tensor, device: torch.device) -> bool:
    place = _local(tensor).device
    return place.type != device.type or (device.index is not None and place.index not in {None, device.index})


def _empty_cache() -> None:
    kind = compute_device().type
    module: Any = getattr(torch, kind, None)
    if hasattr(module, "empty_cache"):  # torch.cuda, torch.xpu …
        module.empty_cache()
