"""Threads of which nobody hears: they are inside a listener, or silenced."""

from __future__ import annotations

import os
import threading
from typing import Final

_thread_id: Final = threading.get_ident

#: Threads that are inside a listener, or silenced: what they call in turn is not observed. A set, since a thread's own
#: variables cost three times as much to read and write.
busy: Final[set[int]] = set()
if hasattr(os, "register_at_fork"):  # the child's threads may get the numbers of the parent's
    os.register_at_fork(after_in_child=busy.clear)


class silenced:  # reads as an adjective at the point of use: `with silenced():`
    """What the calling thread does inside the block is not observed."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _thread_id() in busy
        busy.add(_thread_id())

    def __exit__(self, *_: object) -> None:
        if not self._before:
            busy.discard(_thread_id())
