"""The ranks that save or load one checkpoint together: what fails on one raises on all, and nobody waits for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import torch.distributed as dist

from probe.errors import PeerError
from probe.guard import attempt

T = TypeVar("T")

#: What torch warns of when FSDP1 takes its own way, or one process saves alone; nothing that a user could mend.
_NOT_OURS: Final = (
    "torch.distributed is disabled",
    "TypedStorage is deprecated",
    "Please use DTensor instead",
    "`_get_pg_default_device`",
    "Multiple backends are registered",
)


@contextmanager
def quiet() -> Iterator[None]:
    """Inside the block torch doesn't warn of its own old code."""
    with warnings.catch_warnings():
        for message in _NOT_OURS:
            warnings.filterwarnings("ignore", message=message)
        yield


class Peers:
    """All ranks of a process group; the one process alone where there is no group.

    Args:
        group: The ranks that take part. None means the default group where ``torch.distributed`` is initialised.

    >>> Peers().size, Peers().together(lambda: "done")
    (1, ['done'])
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.agreed_to_fail = False  # whether all ranks know of a failure, so that none of them is still at work
        self.distributed = dist.is_available() and dist.is_initialized()
        self.rank: int = dist.get_rank(group) if self.distributed else 0
        self.size: int = dist.get_world_size(group) if self.distributed else 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that does what only one may do."""
        return self.rank == 0

    def together(self, action: Callable[[], T]) -> list[T]:
        """Run ``action`` on every rank; what each of them returned, by rank. A meeting of all ranks.

        ``action`` returns something small that can be sent, and calls no collective that another rank may have missed.

        Raises:
            PeerError: It failed on another rank. Where it failed on this one, its own exception is raised.
        """
        result, failure = attempt(lambda: self._tried(action), _failed)  # the other ranks wait to be told
        told = self._gather((result, _text(failure)))
        if all(text is None for _, text in told) and failure is None:
            return [one for one, _ in told]
        self.agreed_to_fail = True
        messages = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(told) if text]
        if failure is None or isinstance(failure, PeerError):
            raise PeerError("; ".join(messages) or str(failure))
        raise failure

    def on_first(self, action: Callable[[], T]) -> T | None:
        """Run ``action`` on the first rank; None on the others. A meeting of all ranks, like :meth:`together`."""
        return self.together(action if self.first else _nothing)[self.rank]

    def _tried(self, action: Callable[[], T]) -> tuple[T | None, BaseException | None]:
        from torch.distributed.checkpoint.api import CheckpointException

        try:
            return action(), None
        except CheckpointException as error:  # a BaseException, which callers don't expect
            return None, self._own(error)

    def _gather(self, mine: tuple[Any, str | None]) -> list[tuple[Any, str | None]]:
        if not self.distributed:
            return [mine]
        all_of_them: list[Any] = [None] * self.size
        dist.all_gather_object(all_of_them, mine, group=self.group)
        return all_of_them

    def _own(self, error: Any) -> BaseException:
        """This rank's own part of a failure that torch.distributed.checkpoint has collected from all."""
        own = error.failures.get(self.rank)
        return PeerError("torch.distributed.checkpoint failed") if own is None else _readable(own[0])


def _failed(error: Exception) -> tuple[None, Exception]:
    return None, error


def _readable(error: BaseException) -> BaseException:
    return error if isinstance(error, Exception) else PeerError(str(error))


def _text(failure: BaseException | None) -> str | None:
    """What the other ranks are told; empty where this rank only repeats what another one has said."""
    if failure is None:
        return None
    return "" if isinstance(failure, PeerError) else f"{type(failure).__name__}: {failure}"


def _nothing() -> None:
    return None
