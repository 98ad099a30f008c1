"""By whose rule a PyTorch ``DataLoader`` makes its batches, as far as the loader says it. Nothing of torch."""

from __future__ import annotations

from typing import Any, Final

#: PyTorch's own: so many neighbours of what the sampler gives are a batch.
_FIXED: Final = "torch.utils.data.sampler.BatchSampler"

#: What Accelerate and Lightning put around a batch sampler, and where they keep it.
_AROUND: Final = {
    "accelerate.data_loader.BatchSamplerShard": "batch_sampler",
    "accelerate.data_loader.SkipBatchSampler": "batch_sampler",
    "lightning.pytorch.overrides.distributed._IndexBatchSamplerWrapper": "_batch_sampler",
    "pytorch_lightning.overrides.distributed._IndexBatchSamplerWrapper": "_batch_sampler",
}


def rule_of_loader(loader: Any) -> dict[str, Any]:
    """What the batches of one process are made by.

    Args:
        loader: A ``DataLoader``, or anything else that gives batches.

    Returns:
        ``rows_each`` (rows of a batch of this process) and ``drop_last`` where PyTorch's own batch sampler makes them;
        ``batch_sampler``, the name of its class, where it is another one, whose rule isn't known; nothing where there
        is no batch sampler, since the data set gives whole batches.
    """
    sampler = getattr(loader, "batch_sampler", None)
    if sampler is None:
        return {}
    shared = 1
    while (inner := _AROUND.get(_name(sampler))) is not None:
        if getattr(sampler, "split_batches", False):
            shared *= int(sampler.num_processes)
        sampler = getattr(sampler, inner)
    rows = getattr(sampler, "batch_size", None)
    if _name(sampler) != _FIXED or not isinstance(rows, int):
        return {"batch_sampler": _name(sampler)}
    if type(loader).__name__ == "DataLoaderDispatcher" and getattr(loader, "split_batches", False):
        shared *= int(loader.state.num_processes)
    return {"rows_each": rows // shared, "drop_last": bool(getattr(sampler, "drop_last", False))}


def _name(one: Any) -> str:
    return f"{type(one).__module__}.{type(one).__qualname__}"
