"""torchtitan: its spans are our phases, its packed rows our micro-batches.

``log_trace_span`` is a class whose instances are entered and left, so that both ends are seams of their own. The step's
number is asked of torchtitan's own state, where ``set_step`` has put it: in its asynchronous actors a step begins in
one task and goes on in others. Spans that its engine opens for each token, or each group of rollouts at the same time,
are left out: they are no phases of a process.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Final

from probe.adapters.seams import Call, Seam
from probe.adapters.telling import session, step
from probe.hooks import current_scope, scope
from probe.moments import tell_dealt, tell_partition

#: Spans that stand for a whole training step.
STEPS: Final = frozenset({"step", "train_step"})

#: Spans that run for each token or for many rollouts at once.
LEFT_OUT: Final = frozenset({"vllm_engine_step", "vllm_engine_step_burst", "engine_loop", "rollout_group", "generate"})

_STATE: Final = "torchtitan.observability.structured_logger.step_state"
_SPANS: Final = "torchtitan.observability.structured_logger.structured_logging"
_BATCHER: Final = "torchtitan.experiments.rl.components.batcher"

_open: Final[weakref.WeakKeyDictionary[Any, Any]] = weakref.WeakKeyDictionary()


def _step_number() -> int | None:
    state: Any = sys.modules.get(_STATE)
    number = None if state is None else state.get_step()
    return number if isinstance(number, int) else None


def _span_begins(call: Call) -> None:
    (span,) = call.args
    if session() is None or span.base_name in LEFT_OUT:
        return
    number = _step_number()
    opened: Any
    if span.base_name in STEPS and number is not None:
        opened = step(number)
    else:
        own = number if current_scope().step is None else None
        opened = scope("phase", span.base_name, phase=span.base_name, step=own)
    opened.__enter__()
    _open[span] = opened


def _span_ends(call: Call) -> None:
    opened = _open.pop(call.args[0], None)
    if opened is not None:
        error = call.args[2] if len(call.args) > 2 else None
        opened.__exit__(None if error is None else type(error), error, None)


def _batch_packed(call: Call) -> None:
    """Each row is a rectangle's row with several samples behind each other; rows that only fill up hold none."""
    batcher, rows = call.args[0], call.argument("packed_rows")
    lengths = [sum(row["seq_lens"]) for row in rows]
    effective = [int(row["loss_mask"].sum()) if row["loss_mask"].device.type == "cpu" else 0 for row in rows]
    ranks, count = batcher._dp_degree, len(call.result)
    parts = [list(range(start, len(rows), count * ranks)) for start in range(count * ranks)]
    arguments = {"seq_len": batcher.seq_len, "local_batch_size": batcher.local_batch_size, "dp_degree": ranks}
    tell_partition(
        lengths=lengths,
        partitions=parts,
        source=f"{_BATCHER}.Batcher",
        width_tokens=batcher.seq_len,
        effective=effective,
        packer="torchtitan next-fit",
        arguments={**arguments, "order": "micro-batch, then rank"},
    )
    tell_dealt(
        lengths=lengths,
        partitions=[sorted(row for part in parts[rank::ranks] for row in part) for rank in range(ranks)],
        source=f"{_BATCHER}.Batcher",
        padded_rows=sum(not length for length in lengths),
        packer="torchtitan round-robin",
        arguments=arguments,
    )


SEAMS: Final = (
    Seam(_SPANS, "log_trace_span.__enter__", "phases", _span_begins),
    Seam(_SPANS, "log_trace_span.__exit__", "ends of phases", _span_ends, begins=False),
    Seam(_BATCHER, "Batcher._build_microbatch_grid", "micro-batches", _batch_packed),
)
