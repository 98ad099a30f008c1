"""Rows of memory: of a device, and of the machine."""

from __future__ import annotations

from typing import ClassVar, Final

from probe.records.row import Row

GIB: Final = 1024**3


class Memory(Row, kw_only=True, tag="memory"):
    """Memory of one device at one moment: an end of a scope, or a sample in between.

    On a machine without an accelerator ``source`` is "process_rss" and allocated means the process's resident set;
    there is nothing to reserve, and ``reserved_bytes`` stays None.
    """

    sampled: ClassVar[bool] = True

    edge: str  #: "enter", "leave" or "sample"
    kind: str = ""  #: kind of the scope: "step", "phase", "watch", "micro_batch"; "" for a sample
    name: str = ""  #: name of the scope
    parent_id: int | None = None  #: scope_id of the enclosing scope
    device: str = ""
    source: str = ""  #: "cuda", "accelerator", "process_rss" or "fake"
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    #: Only at "leave": the largest value between the scope's ends, its children's included.
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    #: "exact"; "at_most" (counters were never reset, so the peak may be older); "at_least" (only samples are known)
    peak_kind: str | None = None
    device_used_bytes: int | None = None  #: all processes on the device
    device_total_bytes: int | None = None
    #: device_used − reserved − other_processes: context and libraries, and other processes where they aren't known
    non_torch_bytes: int | None = None
    other_processes_bytes: int | None = None  #: of the device, as the driver counts them by process id
    process_rss_bytes: int | None = None
    host_duration_ns: int | None = None  #: only at "leave", and always there
    device_duration_ns: int | None = None  #: from device events; None where there are none
    #: how often, since the process began, an allocation failed at first and went well after torch gave its cache back
    alloc_retries: int | None = None


class HostMemory(Row, kw_only=True, tag="host_memory"):
    """What a process and its container hold of the machine's memory, as Linux counts it; sampled every half minute."""

    sampled: ClassVar[bool] = True

    rss_bytes: int | None = None  #: resident, what is shared with others included
    pss_bytes: int | None = None  #: resident, what is shared divided by those who share it
    uss_bytes: int | None = None  #: resident and of nobody else: what goes when the process ends
    shared_bytes: int | None = None  #: resident and mapped by others, too: libraries, files, memory of a parent
    shmem_bytes: int | None = (
        None  #: its part of shared memory such as /dev/shm, which loaders' workers send batches in
    )
    pinned_bytes: int | None = (
        None  #: locked or pinned, as far as the kernel knows; a driver's own pins may not be in it
    )
    torch_pinned_bytes: int | None = None  #: that torch's allocator of pinned memory has, in use or kept for later
    torch_pinned_active_bytes: int | None = None  #: of it in use; both None where torch counts neither
    swapped_bytes: int | None = None
    cgroup_limit_bytes: int | None = None  #: at which the container's processes are killed; None without a limit
    cgroup_used_bytes: int | None = None  #: by all processes of the container, cached files included
    cgroup_reclaimable_bytes: int | None = None  #: of it cached files that the kernel gives up first
