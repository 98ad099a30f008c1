"""probe: what a reinforcement-learning training step does with memory, tokens and padding, while it happens.

The front door. Names load on first use, so that ``import probe`` costs next to nothing and brings neither torch nor
plotly; see :data:`EXPORTS` for where each lives.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__distribution__ = "probe-rl"  # by which `probe_rl` knows this package from others of its name

if TYPE_CHECKING:  # `as`: names that type checkers let others have
    from probe.adapters.attachment import attach as attach
    from probe.analysis.verdict import findings as findings
    from probe.comparing import compare as compare
    from probe.core.batched_data_dict import BatchedDataDict as BatchedDataDict
    from probe.core.checkpoint import FSDPCheckpointManager as FSDPCheckpointManager
    from probe.core.checkpoint import find_latest_ckpt_path as find_latest_ckpt_path
    from probe.core.codec import materialize as materialize
    from probe.core.codec import pack_jagged_fields as pack_jagged_fields
    from probe.core.codec import response_from_nested as response_from_nested
    from probe.core.codec import to_nested_by_length as to_nested_by_length
    from probe.core.fs import copy_to_local as copy_to_local
    from probe.core.fsdp import get_fsdp_wrap_policy as get_fsdp_wrap_policy
    from probe.core.memory_logger import GPUMemoryLogger as GPUMemoryLogger
    from probe.core.memory_logger import log_gpu_memory_usage as log_gpu_memory_usage
    from probe.core.metric import Metric as Metric
    from probe.core.metric import append_to_dict as append_to_dict
    from probe.core.metric import reduce_metrics as reduce_metrics
    from probe.core.micro_batch import micro_batch as micro_batch
    from probe.core.protocol import DataProto as DataProto
    from probe.core.protocol import DataProtoItem as DataProtoItem
    from probe.core.rl_dataset import RLHFDataset as RLHFDataset
    from probe.core.seqlen_balancing import micro_batches as micro_batches
    from probe.core.seqlen_balancing import rearrange_micro_batches as rearrange_micro_batches
    from probe.core.timing import marked_timer as marked_timer
    from probe.core.timing import simple_timer as simple_timer
    from probe.core.torch_functional import get_constant_schedule_with_warmup as get_constant_schedule_with_warmup
    from probe.core.torch_functional import logprobs_from_logits as logprobs_from_logits
    from probe.core.torch_functional import masked_mean as masked_mean
    from probe.core.torch_functional import masked_whiten as masked_whiten
    from probe.core.ulysses import gather_outpus_and_unpad as gather_outpus_and_unpad
    from probe.core.ulysses import gather_outputs_and_unpad as gather_outputs_and_unpad
    from probe.core.ulysses import ulysses_pad_and_slice_inputs as ulysses_pad_and_slice_inputs
    from probe.hooks import Listener as Listener
    from probe.hooks import emit as emit
    from probe.hooks import observed as observed
    from probe.hooks import phase as phase
    from probe.hooks import point as point
    from probe.hooks import points as points
    from probe.hooks import scope as scope
    from probe.hooks import subscribe as subscribe
    from probe.hooks import watch as watch
    from probe.inspection.inspector import inspect as inspect
    from probe.notebook.magic import load_ipython_extension as load_ipython_extension
    from probe.notebook.magic import unload_ipython_extension as unload_ipython_extension
    from probe.notebook.training import run as run
    from probe.opened import Run as Run
    from probe.opened import open_run
    from probe.replaying import replay as replay
    from probe.runs.lake import lake as lake
    from probe.sampled import samples as samples
    from probe.sampled import trained as trained
    from probe.session import Session as Session
    from probe.session import current_session as current_session
    from probe.session import start as start
    from probe.tracking.tracking import Tracking as Tracking
    from probe.transformers import TrainerCallback as TrainerCallback
    from probe.views.report.report import write_report as write_report

    open = open_run

#: Public name → "module:attribute".
EXPORTS = {
    "BatchedDataDict": "probe.core.batched_data_dict:BatchedDataDict",
    "DataProto": "probe.core.protocol:DataProto",
    "DataProtoItem": "probe.core.protocol:DataProtoItem",
    "FSDPCheckpointManager": "probe.core.checkpoint:FSDPCheckpointManager",
    "GPUMemoryLogger": "probe.core.memory_logger:GPUMemoryLogger",
    "Listener": "probe.hooks:Listener",
    "Metric": "probe.core.metric:Metric",
    "RLHFDataset": "probe.core.rl_dataset:RLHFDataset",
    "Run": "probe.opened:Run",
    "Session": "probe.session:Session",
    "Tracking": "probe.tracking.tracking:Tracking",
    "TrainerCallback": "probe.transformers:TrainerCallback",
    "attach": "probe.adapters.attachment:attach",
    "append_to_dict": "probe.core.metric:append_to_dict",
    "compare": "probe.comparing:compare",
    "copy_to_local": "probe.core.fs:copy_to_local",
    "current_session": "probe.session:current_session",
    "emit": "probe.hooks:emit",
    "find_latest_ckpt_path": "probe.core.checkpoint:find_latest_ckpt_path",
    "findings": "probe.analysis.verdict:findings",
    "gather_outpus_and_unpad": "probe.core.ulysses:gather_outpus_and_unpad",
    "gather_outputs_and_unpad": "probe.core.ulysses:gather_outputs_and_unpad",
    "get_constant_schedule_with_warmup": "probe.core.torch_functional:get_constant_schedule_with_warmup",
    "get_fsdp_wrap_policy": "probe.core.fsdp:get_fsdp_wrap_policy",
    "inspect": "probe.inspection.inspector:inspect",
    "lake": "probe.runs.lake:lake",
    "load_ipython_extension": "probe.notebook.magic:load_ipython_extension",
    "log_gpu_memory_usage": "probe.core.memory_logger:log_gpu_memory_usage",
    "logprobs_from_logits": "probe.core.torch_functional:logprobs_from_logits",
    "marked_timer": "probe.core.timing:marked_timer",
    "masked_mean": "probe.core.torch_functional:masked_mean",
    "masked_whiten": "probe.core.torch_functional:masked_whiten",
    "materialize": "probe.core.codec:materialize",
    "micro_batch": "probe.core.micro_batch:micro_batch",
    "micro_batches": "probe.core.seqlen_balancing:micro_batches",
    "observed": "probe.hooks:observed",
    "open": "probe.opened:open_run",
    "pack_jagged_fields": "probe.core.codec:pack_jagged_fields",
    "phase": "probe.hooks:phase",
    "point": "probe.hooks:point",
    "points": "probe.hooks:points",
    "rearrange_micro_batches": "probe.core.seqlen_balancing:rearrange_micro_batches",
    "replay": "probe.replaying:replay",
    "reduce_metrics": "probe.core.metric:reduce_metrics",
    "response_from_nested": "probe.core.codec:response_from_nested",
    "run": "probe.notebook.training:run",
    "samples": "probe.sampled:samples",
    "scope": "probe.hooks:scope",
    "simple_timer": "probe.core.timing:simple_timer",
    "start": "probe.session:start",
    "subscribe": "probe.hooks:subscribe",
    "to_nested_by_length": "probe.core.codec:to_nested_by_length",
    "trained": "probe.sampled:trained",
    "ulysses_pad_and_slice_inputs": "probe.core.ulysses:ulysses_pad_and_slice_inputs",
    "unload_ipython_extension": "probe.notebook.magic:unload_ipython_extension",
    "watch": "probe.hooks:watch",
    "write_report": "probe.views.report.report:write_report",
}

#: Names that a module has already (`from probe import *` leaves them what they are), or that need another package.
_NOT_BY_STAR = frozenset({"TrainerCallback", "inspect", "open"})

__all__ = [*sorted(EXPORTS.keys() - _NOT_BY_STAR), "__version__"]


def __getattr__(name: str) -> Any:
    try:
        module, attribute = EXPORTS[name].split(":")
    except KeyError:
        raise AttributeError(f"module 'probe' has no attribute {name!r}") from None
    try:
        value = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        from probe._check import view_missing_in  # the front door itself costs next to nothing

        missing = view_missing_in(error, f"probe.{name}")
        if missing is None:
            raise
        raise missing from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *EXPORTS})
