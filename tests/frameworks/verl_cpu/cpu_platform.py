"""A platform of verl's plugin point that has no accelerator, so that its real trainers run on a CPU.

Named in ``VERL_USE_EXTERNAL_MODULES``; verl imports it in every process, while its own package is being imported.
"""

from __future__ import annotations

import contextlib
import os
import random
import types
import uuid
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry, set_platform

GIB = 1024**3


class _Device(types.ModuleType):
    """What stands where ``torch.cuda`` would: nothing is allocated, and what isn't known is ``torch.cpu``'s."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in {"max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"}:
            return lambda *_: 0
        if name in {
            "empty_cache",
            "ipc_collect",
            "reset_peak_memory_stats",
            "set_device",
            "set_per_process_memory_fraction",
        }:
            return lambda *_: None
        return getattr(torch.cpu, name)

    def is_available(self) -> bool:
        return True

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        return 8 * GIB, 16 * GIB

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_: Any) -> None:
        torch.set_rng_state(state)

    def get_device_name(self, *_: Any) -> str:
        return "cpu"

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """Answers what verl asks of an accelerator; Ray is told of GPUs that aren't there."""

    device_name = vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _DEVICE)

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 8

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


_DEVICE: _Device = _Device("verl_cpu_device")
set_platform(CpuPlatform())

_init_process_group = dist.init_process_group


def _one_backend(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
    """verl asks for one backend of the CPU and one of the device, which here are the same."""
    return _init_process_group("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)


dist.init_process_group = _one_backend


def _unpinned(self: CPUOffloadPolicy, pin_memory: bool = False) -> None:
    object.__setattr__(self, "pin_memory", False)


CPUOffloadPolicy.__init__ = _unpinned  # type: ignore[method-assign]  # there is no device to pin memory for

if os.environ.get("REPEATABLE"):  # verl names its prompts by them, and rows are sorted by these names
    _random = random.Random(20)
    uuid.uuid4 = lambda: uuid.UUID(int=_random.getrandbits(128), version=4)
