"""Batches that are still being made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensordict import TensorDictBase

from probe._check import whole_number
from probe.errors import InputTypeError

#: DataProto, from when it is defined: before that no result is one. Its module has this one's names, so that importing
#: it here would be a circle.
_batch_class: Any = None


def batches_are(kind: type[Any]) -> None:
    """Make ``kind`` the class of the batches that futures wait for."""
    global _batch_class
    _batch_class = kind


@dataclass
class DataProtoFuture:
    """Batches that are still being made, so that they can be handed on without waiting.

    Args:
        collect_fn: Makes one batch of a list of results, such as :meth:`DataProto.concat`.
        futures: Anything with ``result()`` (``concurrent.futures``), Ray object references, batches that are there
            already, or DataProtoFutures.
        dispatch_fn: Is applied to the collected batch.

    Ray is looked for only where the program has imported it already.

    >>> from concurrent.futures import Future
    >>> import torch
    >>> from probe.core.protocol import DataProto
    >>> waiting = Future()
    >>> halves = DataProtoFuture.concat([waiting]).chunk(2)
    >>> waiting.set_result(DataProto.from_dict({"a": torch.arange(4)}))
    >>> halves[1].get().batch["a"].tolist()
    [2, 3]
    """

    collect_fn: Callable[[list[Any]], Any]
    futures: list[Any]
    dispatch_fn: Callable[[Any], Any] | None = None

    @staticmethod
    def concat(data: Sequence[Any]) -> DataProtoFuture:
        """A future of all ``data`` (futures) joined."""
        return DataProtoFuture(collect_fn=_joined, futures=list(data))

    def chunk(self, chunks: int) -> list[DataProtoFuture]:
        """Futures of the ``chunks`` parts of this one. Each collects for itself when asked, as its reader
        may be elsewhere."""
        whole_number("chunks", chunks, 1, expected="an integer")
        return [
            DataProtoFuture(
                self.collect_fn,
                self.futures,
                partial(_part, before=self.dispatch_fn, number=number, chunks=chunks),
            )
            for number in range(chunks)
        ]

    def get(self) -> Any:
        """Wait for all results and make one batch of them.

        Raises:
            InputTypeError: A result is neither a DataProto nor a TensorDict. What a future raises comes as it is.
        """
        results = _results(self.futures)
        for number, result in enumerate(results):
            if not _is_batch(result):
                raise InputTypeError(
                    f"futures[{number}]: its result is a {type(result).__name__}, expected a DataProto"
                )
        collected = self.collect_fn(results)
        return collected if self.dispatch_fn is None else self.dispatch_fn(collected)


def _part(data: Any, before: Callable[[Any], Any] | None, number: int, chunks: int) -> Any:
    return (data if before is None else before(data)).chunk(chunks)[number]


def _results(futures: Sequence[Any]) -> list[Any]:
    ray = sys.modules.get("ray")
    reference = getattr(ray, "ObjectRef", ())
    waiting = [future for future in futures if isinstance(future, reference)]
    # One call for all references: Ray then fetches them side by side.
    fetched = iter(ray.get(waiting)) if ray is not None and waiting else iter(())
    return [next(fetched) if isinstance(future, reference) else _result(future) for future in futures]


def _result(future: Any) -> Any:
    if isinstance(future, DataProtoFuture):
        return future.get()
    wait = getattr(future, "result", None)
    return wait() if callable(wait) and not _is_batch(future) else future


def _joined(results: list[Any]) -> Any:
    if _batch_class is None:
        raise InputTypeError(f"futures: none of their {len(results)} results is a DataProto")
    return _batch_class.concat(results)


def _is_batch(value: Any) -> bool:
    return isinstance(value, TensorDictBase) or (_batch_class is not None and isinstance(value, _batch_class))
