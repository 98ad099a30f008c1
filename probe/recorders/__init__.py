"""The recorders, one file for each table. A new one is a file and a line in :data:`RECORDERS`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, cast

from probe.errors import UnknownNameError

if TYPE_CHECKING:
    from probe.recorders.recorder import Recorder

#: Where each recorder's class is. The order is that of the events: the first one hears of a call's begin
#: first, and of its end last, so that memory is read outside the work of the others.
RECORDERS: Final[dict[str, str]] = {
    "memory": "probe.recorders.memory:MemoryRecorder",
    "host_memory": "probe.recorders.host_memory:HostMemoryRecorder",
    "token_balance": "probe.recorders.token_balance:TokenBalanceRecorder",
    "padding_tax": "probe.recorders.padding_tax:PaddingTaxRecorder",
    "reduction": "probe.recorders.reduction:ReductionRecorder",
    "scalars": "probe.recorders.scalars:ScalarsRecorder",
    "samples": "probe.recorders.samples:SamplesRecorder",
    "timed_samples": "probe.recorders.timed_samples:TimedSamplesRecorder",
    "calls": "probe.recorders.calls:CallsRecorder",
    "counted_calls": "probe.recorders.counted_calls:CountedCallsRecorder",
    "engine_load": "probe.recorders.engine_load:EngineLoadRecorder",
}


def load(name: str) -> type[Recorder]:
    """The class of the recorder called ``name``; its module is imported now.

    Raises:
        UnknownNameError: It is not a name in :data:`RECORDERS`.
    """
    try:
        module, _, attribute = RECORDERS[name].partition(":")
    except KeyError:
        raise UnknownNameError.of("recorder", name, RECORDERS) from None
    return cast("type[Recorder]", getattr(importlib.import_module(module), attribute))
