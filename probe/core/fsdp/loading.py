"""One rank's whole state dict into a model that FSDP2 has sharded, weights without memory included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, FSDPModule, OffloadPolicy
from torch.distributed.tensor import DTensor, Replicate

from probe.core.fsdp.offload import compute_device
from probe.errors import InputError, InputTypeError, MissingKeyError, PeerError, ProbeError, ShapeError
from probe.hooks import observed

_EXTRA: Final = "_extra_state"


class _Ranks:
    """The ranks that take part, and how what the first of them has reaches all."""

    def __init__(self, mesh: DeviceMesh | None) -> None:
        world = dist.group.WORLD
        found = [world] if mesh is None else [mesh.get_group(dim) for dim in range(mesh.ndim)]
        self.groups: list[ProcessGroup] = [group for group in found if group is not None]
        # With several dimensions the first rank of each line sends on what it got along the dimension before.
        self.is_first = all(dist.get_rank(group) == 0 for group in self.groups)

    def send(self, tensor: Tensor) -> None:
        for group in self.groups:
            dist.broadcast(tensor, src=dist.get_global_rank(group, 0), group=group)

    def send_object(self, value: Any) -> Any:
        box = [value]
        for group in self.groups:
            dist.broadcast_object_list(box, src=dist.get_global_rank(group, 0), group=group)
        return box[0]


@observed("fsdp.fsdp2_load_full_state_dict", "one rank's state dict is distributed over the shards of all ranks")
def fsdp2_load_full_state_dict(
    model: nn.Module,
    full_state: Mapping[str, Any] | None,
    device_mesh: DeviceMesh | None = None,
    cpu_offload: OffloadPolicy | CPUOffload | bool | None = None,
) -> None:
    """Load ``full_state`` of the first rank into the sharded ``model`` of all ranks, in place. A collective.

    One tensor at a time is whole on a rank. Weights on the meta device get memory first, on any rank; tied weights stay
    tied. Buffers that no state dict holds are taken from the first rank's model.

    Args:
        model: A model after ``fully_shard``.
        full_state: The whole state, read on the first rank only; None or an empty dict elsewhere. Values are cast to
            the model's dtypes. Of tied weights one name is enough.
        device_mesh: The ranks that take part, the first being the one at coordinates 0; None means all, and rank 0.
        cpu_offload: Whether weights end on the CPU (buffers don't): a policy of either FSDP, or True. With None and
            False it is the device of the model's mesh.

    Raises:
        MissingKeyError: On the first rank, names are missing or unknown. No rank's model has changed.
        InputError: On the first rank, the state can't be used. No rank's model has changed.
        ShapeError: On the first rank, shapes don't fit. No rank's model has changed.
        InputTypeError: ``model`` isn't wrapped with FSDP2.
        PeerError: On the other ranks, with the same words.
    """
    if not any(isinstance(part, FSDPModule) for part in model.modules()):
        raise InputTypeError(
            f"model: got a {type(model).__name__} without fully_shard, expected one that fully_shard was applied to"
        )
    ranks = _Ranks(device_mesh)
    state: Mapping[str, Any] = (full_state or {}) if ranks.is_first else {}
    _agree(ranks, _problem(model, state) if ranks.is_first else None)
    mesh_device = _mesh_device(model)
    _place(model, torch.device("cpu") if _offloads(cpu_offload) else mesh_device, mesh_device)
    for names, target in _targets(model):
        value = next((state[name] for name in names if name in state), None)
        _spread(ranks, target, mesh_device, value)
    for name in _extra_names(model):
        owner = model.get_submodule(name.removesuffix(_EXTRA).removesuffix("."))
        owner.set_extra_state(ranks.send_object(state.get(name)))


# ------------------------------------------------------------------------------------------------------------ checking


def _agree(ranks: _Ranks, problem: ProbeError | None) -> None:
    """All ranks raise or none: one that stopped alone would leave the others waiting."""
    words = ranks.send_object(None if problem is None else str(problem))
    if problem is not None:
        raise problem
    if words is not None:
        raise PeerError(f"the first rank can't load its full_state: {words}")


def _problem(model: nn.Module, state: object) -> ProbeError | None:
    if not isinstance(state, Mapping):
        return InputTypeError(f"full_state: got {type(state).__name__}, expected a mapping of names to tensors")
    known = {*_extra_names(model)}
    missing = [name for name in known if name not in state]
    for names, target in _targets(model):
        known.update(names)
        given = [name for name in names if name in state]
        if not given and (target.is_meta or not _is_buffer_apart(model, names)):
            missing.append(names[0])
        for name in given:
            if not isinstance(state[name], Tensor):
                return InputTypeError(f"full_state: {name} is a {type(state[name]).__name__}, expected a tensor")
            if state[name].shape != target.shape:
                shapes = f"{tuple(state[name].shape)}, expected {tuple(target.shape)}"
                return ShapeError(f"full_state: {name} has shape {shapes}")
    if missing:
        return MissingKeyError(f"full_state: got no {', '.join(sorted(missing))}; it has {_some(state)}")
    unknown = sorted(set(state) - known)
    return InputError(f"full_state: got {_some(unknown)}, which the model lacks") if unknown else None


def _is_buffer_apart(model: nn.Module, names: list[str]) -> bool:
    """Whether it is a buffer that no state dict holds, so that its value is the model's own."""
    for name in names:
        path, _, last = name.rpartition(".")
        if last in model.get_submodule(path)._non_persistent_buffers_set:
            return True
    return False


def _some(state: Iterable[str], most: int = 8) -> str:
    names = sorted(state)
    return (", ".join(names[:most]) or "nothing") + (f" and {len(names) - most} more" if len(names) > most else "")


def _extra_names(model: nn.Module) -> list[str]:
    plain = nn.Module.get_extra_state
    return [
        f"{path}.{_EXTRA}" if path else _EXTRA
        for path, part in model.named_modules()
        if type(part).get_extra_state is not plain
    ]


# ------------------------------------------------------------------------------------------------------------- placing


def _targets(model: nn.Module) -> Iterator[tuple[list[str], Tensor]]:
    """Each parameter and buffer once, with all its names, in an order that is the same on every rank."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor
    return ((names[key], tensors[key]) for key in names)


def _place(model: nn.Module, weights_device: torch.device, buffers_device: torch.device) -> None:
    """Give every tensor memory on its device; values of what had memory are kept."""
    ties = [names for names, tensor in _targets(model) if len(names) > 1 and isinstance(tensor, nn.Parameter)]
    if any(parameter.is_meta for parameter in model.parameters()):
        buffers = {name: buffer for name, buffer in model.named_buffers() if not buffer.is_meta}
        model.to_empty(device=weights_device)
        for name, buffer in buffers.items():
            _put_buffer(model, name, buffer)
    elif any(_device_type(parameter) != weights_device.type for parameter in model.parameters()):
        model.to(weights_device)
    for names in ties:
        _tie(model, names)
    for name, buffer in list(model.named_buffers()):
        if buffer.is_meta:
            _put_buffer(model, name, torch.empty_like(buffer, device=buffers_device))
        elif buffer.device.type != buffers_device.type:
            _put_buffer(model, name, buffer.to(buffers_device))


def _put_buffer(model: nn.Module, name: str, buffer: Tensor) -> None:
    path, _, last = name.rpartition(".")
    model.get_submodule(path)._buffers[last] = buffer


def _tie(model: nn.Module, names: list[str]) -> None:
    """``to_empty`` gives each name its own weight; make them one again, the one that FSDP holds on to."""
    shared = model.get_parameter(names[0])
    for name in names[1:]:
        path, _, last = name.rpartition(".")
        model.get_submodule(path)._parameters[last] = shared


def _spread(ranks: _Ranks, target: Tensor, device: torch.device, value: Tensor | None) -> None:
    """The first rank's ``value`` (else its own ``target``) into every rank's part of ``target``."""
    with torch.no_grad():
        whole = torch.empty(target.shape, dtype=target.dtype, device=device)
        if ranks.is_first:
            whole.copy_(target if value is None else value)
        ranks.send(whole)
        if isinstance(target, DTensor):
            mesh = target.device_mesh
            everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
            target.to_local().copy_(everywhere.redistribute(placements=target.placements).to_local())
        else:
            target.copy_(whole)


def _mesh_device(model: nn.Module) -> torch.device:
    """Where the collectives of the model's shards work."""
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            device = compute_device()
            kind = parameter.device_mesh.device_type
            return device if device.type == kind else torch.device(kind)
    return compute_device()


def _device_type(tensor: Tensor) -> str:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).device.type


def _offloads(policy: OffloadPolicy | CPUOffload | bool | None) -> bool:
    if policy is None or isinstance(policy, bool):
        return bool(policy)
    if isinstance(policy, CPUOffload):
        return policy.offload_params
    if not isinstance(policy, OffloadPolicy):
        raise InputTypeError(f"cpu_offload: got {type(policy).__name__}, expected a policy, True, False or None")
    return isinstance(policy, CPUOffloadPolicy)
