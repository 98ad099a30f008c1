"""Memory counters, capacity and timing events of one device, behind one small interface.

:func:`detect` finds the device: CUDA, else another accelerator, else the CPU, where memory is the process's
resident set. Three promises hold for each of them:

* nothing here synchronises: events are recorded and asked whether they are done, never waited for;
* nothing here creates a device context: until the trainer itself uses the device its counters are None;
* a number that isn't known is None.

All names are imported from here.
"""

from __future__ import annotations

from probe.devices.accelerator import AcceleratorDevice
from probe.devices.cpu import SAME_NS, CpuDevice, process_rss_bytes
from probe.devices.cuda import CudaDevice
from probe.devices.detecting import detect
from probe.devices.device import UNKNOWN, Counters, Device, Statistics, counters_of
from probe.devices.nvml import Gpu, GpuProcess, Gpus, Nvml

__all__ = [
    "SAME_NS",
    "UNKNOWN",
    "AcceleratorDevice",
    "Counters",
    "CpuDevice",
    "CudaDevice",
    "Device",
    "Gpu",
    "GpuProcess",
    "Gpus",
    "Nvml",
    "Statistics",
    "counters_of",
    "detect",
    "process_rss_bytes",
]
