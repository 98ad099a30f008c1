"""Which device is meant: the one that is named, else CUDA, else another accelerator, else the CPU."""

from __future__ import annotations

from typing import Any

from probe.devices.accelerator import AcceleratorDevice
from probe.devices.cpu import CpuDevice
from probe.devices.cuda import CudaDevice
from probe.devices.device import Device
from probe.errors import InputError


def detect(device: Any = None) -> Device:
    """The device whose memory is of interest.

    Args:
        device: A :class:`Device` (returned as it is), anything that ``torch.device`` takes, or None for CUDA, else
            another accelerator, else the CPU. ``"cuda"`` without an index is the device that is current when the
            trainer first uses CUDA.

    Raises:
        InputError: A device that torch doesn't know, or that this machine doesn't have.
    """
    if isinstance(device, Device):
        return device
    import torch

    if device is None:
        return _default(torch)
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device: got {device!r}, expected a torch device such as 'cuda:0' or 'cpu'") from error
    return _named(torch, wanted)


def _default(torch: Any) -> Device:
    # device_count asks NVML first, so that a process that forks later can still use CUDA in its children.
    if torch.cuda.device_count() > 0:
        return CudaDevice()
    kind = _accelerator(torch)
    return CpuDevice() if kind is None else AcceleratorDevice(kind)


def _named(torch: Any, wanted: Any) -> Device:
    if wanted.type == "cpu":
        return CpuDevice()
    if wanted.type == "cuda" and torch.cuda.device_count() > (wanted.index or 0):
        return CudaDevice(wanted.index)
    if wanted.type != "cuda" and wanted.type == _accelerator(torch):
        return AcceleratorDevice(wanted.type, wanted.index)
    raise InputError(f"device: got {str(wanted)!r}, expected 'cpu' or a device here whose memory torch can measure")


def _accelerator(torch: Any) -> str | None:
    """Type of this machine's accelerator when torch counts its memory, such as "xpu"."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not hasattr(accelerator, "memory_stats") or not accelerator.is_available():
        return None
    current = accelerator.current_accelerator()
    return None if current is None or current.type == "mps" else str(current.type)
