"""Which collective this process waits in, as PyTorch's flight recorder tells: it keeps the newest ones of each process.

Source: https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html, and the records of PyTorch 2.13,
which has it on unless ``TORCH_FR_BUFFER_SIZE`` is 0. It is read and nothing else: no process group, no stream and no
other rank is asked.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

#: Functions of ``torch._C._distributed_c10d`` that tell as JSON what is recorded: of NCCL's groups, and of all others.
_TOLD_BY: Final = ("_dump_nccl_trace_json", "_dump_fr_trace_json")

#: Of a group that nobody described.
_UNDESCRIBED: Final = ("", "undefined")

#: Characters of the sizes that are kept.
_SIZES: Final = 200


class Collective(NamedTuple):
    """A collective that was begun and hasn't ended.

    Attributes:
        name: As the recorder names it, such as "nccl:all_reduce".
        group: Its process group: the description, else the name.
        number: Which of that group's collectives it is, from 1: the same on all of its ranks, where all call the same.
            None for a message from rank to rank.
        sizes: Of what goes in, such as "8x3, 4".
        open_ns: How long ago it was begun.
    """

    name: str
    group: str
    number: int | None
    sizes: str
    open_ns: int


def waited_in() -> Collective | None:
    """The oldest collective of this process that hasn't ended: those begun after it in its group wait for it.

    Returns:
        None where there is none, or nothing is recorded.
    """
    entries = [one for one in _entries() if not one.get("retired") and one.get("state") != "completed"]
    begun = [one for one in entries if isinstance(one.get("time_created_ns"), int)]
    return _collective(min(begun, key=lambda one: one["time_created_ns"])) if begun else None


def _entries() -> Iterator[Mapping[str, Any]]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    core = sys.modules.get("torch._C._distributed_c10d")
    for name in _TOLD_BY:
        told = getattr(core, name, None)
        if told is not None:
            yield from json.loads(told(includeCollectives=True, onlyActive=True)).get("entries", ())


def _collective(entry: Mapping[str, Any]) -> Collective:
    name, described = ([*entry.get("process_group", ()), "", ""])[:2]
    number = None if entry.get("is_p2p") else entry.get("collective_seq_id")
    sizes = ", ".join("x".join(map(str, one)) or "scalar" for one in entry.get("input_sizes", ()))
    return Collective(
        name=str(entry.get("profiling_name", "")),
        group=str(name if described in _UNDESCRIBED else described),
        number=number,
        sizes=sizes[:_SIZES],
        open_ns=max(time.time_ns() - int(entry["time_created_ns"]), 0),
    )
