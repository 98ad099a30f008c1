"""What verl's trainers do: steps, phases, rows dealt to ranks, rectangles, reducers and metrics."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple

from probe.adapters import telling
from probe.adapters.seams import Call, Tell
from probe.adapters.verl_agents import timed
from probe.adapters.verl_batches import row_lengths, token_fields
from probe.adapters.verl_settings import packer
from probe.hooks import call_of, emit, phase, point
from probe.moments import tell_added, tell_dealt

LOG: Final = point("session.log", "a trainer logs the metrics of a step; carries metrics and step")
REDUCED: Final = point("metric.reduce_metrics")


class Driver:
    """The training that this process drives.

    Attributes:
        trainer: The trainer whose ``fit`` runs; None outside of one.
        fillers: Rows that were added to fill the current batch up.
    """

    def __init__(self) -> None:
        self.trainer: Any = None
        self.fillers = 0


#: Of this process: it drives one training at a time.
DRIVER: Final = Driver()


def training(call: Call) -> Generator[None, None, None]:
    """A trainer's loop, from its first step to its last."""
    DRIVER.trainer = call.args[0]
    _be_the_driver()
    try:
        yield
    finally:
        DRIVER.trainer = None
        telling.end_step()


def step(call: Call) -> Generator[None, None, None]:
    """A step of the V1 trainer, where its own timer hasn't told of it: probe came when the loop was running."""
    _be_the_driver()
    DRIVER.trainer = call.args[0]
    telling.follow_step(int(call.args[0].global_steps))
    yield


def timer(call: Call) -> Generator[None, None, None]:
    """A stretch that verl times is a phase, and its timer "step" the begin of a step, which lasts until it is logged.

    Agent loops time each of their samples, many at once in one thread: such a stretch is no phase of the process.
    """
    name = str(call.argument("name"))
    if _runs_tasks():
        yield from timed(name)
        return
    if DRIVER.trainer is None:
        return
    if name == "step":
        telling.follow_step(int(DRIVER.trainer.global_steps))
        yield
        return
    with phase(name):
        yield


def engines(name: str) -> Tell:
    """A Tell for a call that lets the rollout's engines sleep or wake, as the phase ``name``.

    Where an event loop runs, verl's function returns before they do.

    Args:
        name: The phase.
    """

    def tell(call: Call) -> Generator[None, None, None]:
        del call
        if DRIVER.trainer is None or _runs_tasks():
            return
        with phase(name):
            yield

    return tell


def logged(call: Call) -> None:
    """The metrics of a step are logged, which is the last thing that happens in it."""
    number, metrics = call.argument("step"), call.argument("data")
    emit(LOG, metrics=metrics, step=number)
    if DRIVER.trainer is not None and telling.followed_step() == number:
        telling.end_step()


# ------------------------------------------------------------------------------------------------------------- rows


def filled_up(call: Call) -> None:
    """Dummy rows were added so that the number of rows divides; they stand at the end."""
    DRIVER.fillers = 0
    tags = call.result.tags
    fillers = [int(tag["seq_len"]) for tag in tags if tag.get("is_padding")]
    real = [int(tag["seq_len"]) for tag in tags if not tag.get("is_padding")]
    DRIVER.fillers = len(fillers)
    if fillers:
        source = "verl.upsample_batch_to_divisible_size"
        tell_added(cause="filler_rows", tokens=sum(real), pad_tokens=sum(fillers), rows=len(tags), source=source)


def dealt(call: Call) -> None:
    """Rows were dealt to the data-parallel ranks; verl has lengths and parts on the CPU for its own figures."""
    partitions = call.argument("partitions")
    fillers, DRIVER.fillers = DRIVER.fillers, 0
    tell_dealt(
        lengths=[int(length) for length in call.argument("seqlen_list")],
        partitions=partitions,
        padded_rows=fillers,
        source="verl.get_seqlen_balanced_partitions",
        packer=packer(),
        arguments={"k_partitions": len(partitions), "equal_size": True, "weights": "24576*s + s*s, int64"},
    )


def made_rectangular(call: Call) -> None:
    """The driver makes rectangles of jagged columns: columns of the same lengths are one rectangle."""
    if DRIVER.trainer is None:
        return
    data = call.args[0]
    columns: dict[tuple[int, ...], list[str]] = {}
    for name, column in data.items():
        columns.setdefault(tuple(row_lengths(column) or ()), []).append(name)
    columns.pop((), None)  # what isn't jagged
    for lengths, names in columns.items():
        valid, rectangle = sum(lengths), len(lengths) * max(lengths)
        tell_added(
            cause="longest_row",
            tokens=valid,
            pad_tokens=rectangle - valid,
            rows=len(lengths),
            source="verl.to_padded_tensor",
            fields=token_fields(data, names),
        )


# --------------------------------------------------------------------------------------------------------- reducers


class Aggregated(NamedTuple):
    """The values of one key that verl's trainer reduces at a step's end, and by which of its rules.

    Attributes:
        aggregation: ``max``, ``min``, ``sum``, ``time_sum``, ``last`` or ``weighted_avg``.
        values: One for each part of the step.
        samples: How many samples each part had; None where verl wasn't told of each of them.
        chosen_by: "name": the rule was found in the key's spelling.
    """

    aggregation: str
    values: list[float]
    samples: list[float] | None = None
    chosen_by: str = "name"


def aggregated(call: Call) -> Generator[None, None, None]:
    """verl's second reducer, with rules of its own."""
    aggregator = call.args[0]
    values: Mapping[str, list[float]] = aggregator.metric_values
    given = {
        key: Aggregated(aggregator._get_aggregation_type(key), list(kept), _samples(aggregator, key, len(kept)))
        for key, kept in values.items()
    }
    with call_of(REDUCED, call.function, (given,), {}) as told:
        yield
        told.result = call.result


def _samples(aggregator: Any, key: str, count: int) -> list[float] | None:
    """The weights that verl has of the values of a key; what it was told nothing of it counts as 0 samples."""
    weights = list(getattr(aggregator, "metric_weights", {}).get(key, ()))
    return [float(one) for one in weights] if len(weights) == count and all(weights) else None


def _be_the_driver() -> None:
    open_now = telling.session()
    if open_now is not None and open_now.process.role is None:
        open_now.learn(role="driver")


def _runs_tasks() -> bool:
    """Whether an event loop runs in this thread."""
    asyncio: Any = sys.modules.get("asyncio.events")
    return asyncio is not None and asyncio._get_running_loop() is not None
