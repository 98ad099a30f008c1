"""Other accelerators, such as XPU, through ``torch.accelerator``."""

from __future__ import annotations

from typing import Any, Final

from probe.devices.device import UNKNOWN, Counters, Device, Statistics
from probe.devices.timing_events import elapsed_ns, query


class AcceleratorDevice(Device):
    """Any accelerator whose memory ``torch.accelerator`` counts, such as XPU.

    Args:
        kind: The accelerator's type, as ``torch.device`` names it.
        index: Number of the device; None takes the one that is current when the trainer first uses it.
    """

    source = "accelerator"

    def __init__(self, kind: str, index: int | None = None) -> None:
        import torch

        self._torch: Any = torch
        self._kind = kind
        self._index = index
        self._bound = False

    @property
    def name(self) -> str:
        return self._kind if self._index is None else f"{self._kind}:{self._index}"

    @property
    def description(self) -> str:
        if not self.bind():
            return f"{self._kind} device, not in use yet"
        named = getattr(self._torch.get_device_module(self._kind), "get_device_name", None)
        return self.name if named is None else str(named(self._index))

    def bind(self) -> bool:
        # Empty until the allocator is in use; asking makes no context.
        if not self._bound and self._torch.accelerator.memory_stats(self._index or 0):
            if self._index is None:
                self._index = int(self._torch.accelerator.current_device_index())
            self._bound = True
        return self._bound

    @property
    def bound(self) -> bool:
        return self._bound

    def read(self, *, whole: bool = False) -> Counters:
        if not self._bound and not self.bind():
            return UNKNOWN
        flat = self._torch.accelerator.memory_stats(self._index)
        values = (flat.get(f"{what}_bytes.all.{when}") for when in ("current", "peak") for what in _KINDS)
        counters = Counters(*values)._replace(alloc_retries=flat.get("num_alloc_retries"))
        return counters._replace(**self._whole()) if whole else counters

    def _whole(self) -> dict[str, int]:
        ask = getattr(self._torch.accelerator, "get_memory_info", None)
        if ask is None:
            return {}
        try:
            free, total = ask(self._index)
        except RuntimeError:  # not every accelerator tells
            return {}
        return {"used_bytes": total - free, "total_bytes": total}

    def statistics(self) -> tuple[Statistics, ...]:
        # Of XPU all readers are known. Another vendor's own module may read in a way that can't be folded.
        if not self._bound or self._index is None or self._kind != "xpu":
            return ()
        core = self._torch._C
        pairs = (
            ("_xpu_memoryStats", "_xpu_resetPeakMemoryStats"),
            ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats"),
        )
        return tuple(Statistics(core, read, reset, self._index) for read, reset in pairs if hasattr(core, read))

    def event(self) -> Any | None:
        if not self._bound:
            return None
        try:
            event = self._torch.Event(device=self.name, enable_timing=True)
            event.record(self._torch.accelerator.current_stream(self._index))
        except RuntimeError:  # not every accelerator has timing events
            return None
        return event

    def done(self, event: Any) -> bool:
        return query(event)

    def elapsed_ns(self, begin: Any, end: Any) -> int | None:
        return elapsed_ns(begin, end)


_KINDS: Final = ("allocated", "reserved")
