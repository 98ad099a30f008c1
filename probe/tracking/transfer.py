"""Single values on their way from a device to the host, without anybody waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Transfer(Protocol):
    """Values under way."""

    def ready(self) -> bool:
        """Whether they have arrived. Never waits."""
        ...

    def read(self) -> Sequence[float]:
        """The values, in the order in which they were given."""
        ...


class _Group:
    """The values of one device and dtype: a pinned buffer, and the event after which it holds them."""

    def __init__(self, places: list[int], host: torch.Tensor, event: Any) -> None:
        self.places = places
        self.host = host
        self.event = event


class DeviceTransfer:
    """Tensors of one element each, copied behind the work that makes them.

    Each (device, dtype) is gathered by one kernel and copied by one asynchronous copy into pinned memory, on
    the stream that is current there; an event recorded after it tells when it's there. The device is never
    waited for.

    Args:
        tensors: Tensors of one element, none on the CPU. They may be changed or freed afterwards.

    Raises:
        RuntimeError: The current stream is being captured into a CUDA graph, where a copy would be replayed.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._count = len(tensors)
        groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for place, tensor in enumerate(tensors):
            groups.setdefault((tensor.device, tensor.dtype), []).append(place)
        self._groups = [
            _start_group(device, [tensors[place] for place in places], places) for (device, _), places in groups.items()
        ]

    def ready(self) -> bool:
        """Whether all have arrived."""
        return all(group.event.query() for group in self._groups)

    def read(self) -> list[float]:
        """The values; wait for :meth:`ready` first."""
        values = [0.0] * self._count
        for group in self._groups:
            for place, value in zip(group.places, group.host.double().tolist(), strict=True):
                values[place] = value
        return values


def _start_group(device: torch.device, tensors: list[torch.Tensor], places: list[int]) -> _Group:
    import torch

    module = torch.get_device_module(device)
    capturing = getattr(module, "is_current_stream_capturing", None)
    if capturing is not None and capturing():
        raise RuntimeError("its stream is being captured into a graph")
    with torch.no_grad(), module.device(device):
        flat = [tensor.detach().reshape(()) for tensor in tensors]
        gathered = flat[0] if len(flat) == 1 else torch.stack(flat)
        host = torch.empty(len(flat), dtype=gathered.dtype, pin_memory=True)
        host.copy_(gathered.reshape(-1), non_blocking=True)
        event = module.Event()
        event.record()
    return _Group(places, host, event)


def start_transfer(tensors: Sequence[torch.Tensor]) -> Transfer:
    """Send single values from their devices to the host; see :class:`DeviceTransfer`."""
    return DeviceTransfer(tensors)
