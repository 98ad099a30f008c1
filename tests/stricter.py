"""Where probe refuses what verl or NeMo-RL takes: a use for each row of the table in ``docs/drop_in.md``.

A use is written for the module that it is given, verl's or probe's own, so that both can be asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import nn


def _batch(module: Any) -> Any:
    return module.DataProto.from_dict({"a": torch.zeros(2)})


def _cosine(module: Any) -> Any:
    return module.get_cosine_schedule_with_warmup(torch.optim.SGD([torch.zeros(1)], lr=1.0), 1, -5)


def _wrapped(module: Any, config: Any) -> Any:
    return module.get_fsdp_wrap_policy(nn.Sequential(nn.Linear(2, 2)), config)


def _manager(module: Any, **options: Any) -> Any:
    return module.FSDPCheckpointManager(nn.Linear(1, 1), torch.optim.SGD([torch.zeros(1)], lr=1.0), **options)


#: Row of the table to the module that the use is written for, and the use.
OF_VERL: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "`DataProto` without tensors, arrays of different lengths": (
        "protocol",
        lambda m: m.DataProto(non_tensor_batch={"a": np.zeros(2), "b": np.zeros(3)}),
    ),
    "`DataProto.from_dict`, a text for a column": (
        "protocol",
        lambda m: m.DataProto.from_dict(non_tensors={"a": "ab"}),
    ),
    "`DataProto[[0.5]]`": ("protocol", lambda m: _batch(m)[[0.5]]),
    "`unpad_dataproto`, more rows than there are": ("protocol", lambda m: m.unpad_dataproto(_batch(m), 5)),
    "`make_iterator`, a negative number of epochs": ("protocol", lambda m: list(_batch(m).make_iterator(2, -1))),
    "`collate_fn` of a dataset, a key that only some rows have": (
        "rl_dataset",
        lambda m: m.collate_fn([{"a": 1, "b": 2}, {"a": 3}]),
    ),
    "`collate_fn` of a dataset, a tensor in one row and a number in another": (
        "rl_dataset",
        lambda m: m.collate_fn([{"a": torch.zeros(2)}, {"a": 3}]),
    ),
    "`masked_mean` and `masked_whiten`, a mask of another shape": (
        "torch_functional",
        lambda m: m.masked_mean(torch.ones(2, 3), torch.ones(3)),
    ),
    "`logprobs_from_logits`, labels of another shape": (
        "torch_functional",
        lambda m: m.logprobs_from_logits(torch.zeros(2, 4), torch.tensor([1])),
    ),
    "`gather_from_labels`, labels of another shape": (
        "torch_functional",
        lambda m: m.gather_from_labels(torch.zeros(2, 3, 4), torch.zeros(1, 3, dtype=torch.long)),
    ),
    "`clip_by_value`, bounds of another shape": (
        "torch_functional",
        lambda m: m.clip_by_value(torch.zeros(2, 3), torch.zeros(3), torch.ones(3)),
    ),
    "`get_response_mask`, ids that aren't integers": (
        "torch_functional",
        lambda m: m.get_response_mask(torch.zeros(2, 3), 2),
    ),
    "`pad_sequence_to_length`, a value that the dtype can't hold": (
        "torch_functional",
        lambda m: m.pad_sequence_to_length(torch.zeros(1, 2, dtype=torch.long), 3, 0.5),
    ),
    "`postprocess_data`, a mask of another shape": (
        "torch_functional",
        lambda m: m.postprocess_data(torch.zeros(1, 2), torch.zeros(2, 2), 3, 0),
    ),
    "`get_cosine_schedule_with_warmup`, a negative number of steps": ("torch_functional", _cosine),
    "`get_reverse_idx`, a number twice": ("seqlen_balancing", lambda m: m.get_reverse_idx([0, 0, 2])),
    "`get_seqlen_balanced_partitions`, a negative length": (
        "seqlen_balancing",
        lambda m: m.get_seqlen_balanced_partitions([1, -2, 3], 2, False),
    ),
    "`ulysses_pad`, less than one rank": ("ulysses", lambda m: m.ulysses_pad(torch.zeros(1, 3), None, 0)),
    "`Gather` and `SeqAllToAll`, `async_op=True`": (
        "ulysses",
        lambda m: m.SeqAllToAll.apply(None, torch.zeros(2, 2), 0, 1, True),
    ),
    "`Metric.aggregate_dp`, Metrics of different aggregations": (
        "metric",
        lambda m: m.Metric.aggregate_dp([m.Metric("sum", 1.0), m.Metric("max", 2.0)]),
    ),
    "`get_fsdp_wrap_policy`, a key that isn't known": ("fsdp", lambda m: _wrapped(m, {"transformer_cls": ["Linear"]})),
    "`get_fsdp_wrap_policy`, a negative `min_num_params`": ("fsdp", lambda m: _wrapped(m, {"min_num_params": -3})),
    "`should_save_ckpt_esi`, a negative duration": ("checkpoint", lambda m: m.should_save_ckpt_esi(-1)),
    "`FSDPCheckpointManager`, contents that aren't known": (
        "checkpoint",
        lambda m: _manager(m, checkpoint_config={"save_contents": ["model", "optimiser"]}),
    ),
    "`FSDPCheckpointManager`, an argument that isn't known": ("checkpoint", lambda m: _manager(m, optimiser=None)),
    "`FSDPCheckpointManager.save_checkpoint(None)`": ("checkpoint", lambda m: _manager(m).save_checkpoint(None)),
    "`copy_to_local`, a path that isn't there": ("fs", lambda m: m.copy_to_local("/no/such/file")),
    "`local_mkdir_safe` of a URL": ("fs", lambda m: m.local_mkdir_safe("s3://bucket/model")),
}


def _nested(*rows: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.arange(row) for row in rows], layout=torch.jagged)


def _sharded(module: Any) -> Any:
    batch = module.BatchedDataDict({"ids": torch.zeros(4, 3), "length": torch.full((4,), 3)})
    packing = {
        "algorithm": "concatenative",
        "input_key": "ids",
        "input_lengths_key": "length",
        "max_tokens_per_microbatch": 8,
        "sequence_length_pad_multiple": 1,
        "largest": True,
    }
    return batch.shard_by_batch_size(2, sequence_packing_args=packing)


def _packed(module: Any, **more: Any) -> Any:
    return module.pack_jagged_fields({"ids": torch.zeros(2, 3), **more}, lengths=torch.tensor([3, 1]))


#: The same for NeMo-RL, which isn't on a package index: what it does is in its own code, see the table.
OF_NEMO_RL: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "`to_nested_by_length`, a length above the width": (
        "codec",
        lambda m: m.to_nested_by_length(torch.zeros(2, 3), torch.tensor([4, 1])),
    ),
    "`to_nested_by_length`, a negative length": (
        "codec",
        lambda m: m.to_nested_by_length(torch.zeros(2, 3), torch.tensor([-1, 1])),
    ),
    "`response_from_nested`, a row without a prompt": (
        "codec",
        lambda m: m.response_from_nested(_nested(3, 4), _nested(3, 2)),
    ),
    "`materialize`, a layout that isn't known": ("codec", lambda m: m.materialize(_packed(m), layout="ragged")),
    "`pack_jagged_fields`, an array of another number of rows": (
        "codec",
        lambda m: _packed(m, uid=np.array([1, 2, 3], dtype=object)),
    ),
    "`BatchedDataDict.from_batches`, integers beside floating point": (
        "batched_data_dict",
        lambda m: m.BatchedDataDict.from_batches([{"a": torch.zeros(1, dtype=torch.long)}, {"a": torch.zeros(1)}]),
    ),
    "`BatchedDataDict.shard_by_batch_size`, a key that isn't known": ("batched_data_dict", _sharded),
    "`BatchedDataDict.reorder_data`, a number twice": (
        "batched_data_dict",
        lambda m: m.BatchedDataDict({"a": torch.zeros(2)}).reorder_data([0, 0]),
    ),
}
