"""Rows that don't exist yet: the writer's thread makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

import msgspec

from probe.records.row import Row


class Deferred:
    """Rows that don't exist yet. A recorder returns one to move work off the training thread.

    Args:
        build: Makes the rows; called once, in the session's writer thread, inside ``hooks.silenced()``.
        ready: Tells whether ``build`` can be called without waiting (such as a CUDA event's ``query``); polled by the
            writer thread. None means at once.

    It must not keep large tensors alive: that would move the very memory peak that is being measured.

    Attributes:
        partial: Whether ``build`` can be called before it is ready, and then leaves out what isn't known yet. Where the
            run closes meanwhile, such rows are written all the same.
    """

    __slots__ = ("build", "ready")

    partial: ClassVar[bool] = False

    def __init__(self, build: Callable[[], Iterable[Row]], ready: Callable[[], bool] | None = None) -> None:
        self.build = build
        self.ready = ready


class Later(msgspec.Struct, gc=False):
    """A :class:`Deferred` that is one object: its kinds have what their rows are made of in fields, and :meth:`build`.

    Garbage collection doesn't follow it, so that those which wait start none: nothing in a field may refer to it.
    """

    ready: ClassVar[None] = None
    partial: ClassVar[bool] = False

    def build(self) -> Iterable[Row]:
        """The rows; called once, in the session's writer thread."""
        raise NotImplementedError


#: Rows that don't exist yet.
Unbuilt = Deferred | Later
