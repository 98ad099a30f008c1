"""What logging 50 metrics costs: through ``Tracking``, and with the backends directly.

Three times: on the training thread; until one call is durable in the backend, that is in its file or database; and
until a burst of calls is, such as after a backend was away.

python -m benchmarks.tracking_log
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from benchmarks.measure import Size, row

if TYPE_CHECKING:
    from probe.tracking.tracking import Tracking

METRICS = 50
CALLS = 300
DURABLE_CALLS = 100
#: A short training step between two calls: caches are cold again, the sending thread does its work.
STEP_S = 0.02
TARGET = "median <= 50 µs"


def metrics() -> dict[str, Any]:
    """50 metrics as a trainer has them: mostly floats, every fifth a 0-d tensor on the CPU."""
    return {
        f"group{index % 6}/metric_{index}": torch.tensor(index / 7) if index % 5 == 0 else index / 7
        for index in range(METRICS)
    }


def median_s(log: Callable[[int], object], calls: int) -> float:
    """Median time of ``log(step)`` on this thread."""
    times: list[float] = []
    weights = torch.randn(512, 512)

    def train() -> None:
        end = time.perf_counter() + STEP_S
        while time.perf_counter() < end:
            torch.matmul(weights, weights)

    for step in range(calls):
        begin = time.perf_counter()
        log(step)
        times.append(time.perf_counter() - begin)
        train()
    return statistics.median(times)


def ours_on_the_thread(backend: str, directory: Path, calls: int) -> float:
    """Through Tracking."""
    with opened(backend, directory / "thread") as tracking:
        data = metrics()
        return median_s(lambda step: tracking.log(data, step), calls)


def opened(backend: str, directory: Path) -> Tracking:
    """A Tracking of that backend; it tells where it writes only once in this process."""
    from probe.tracking.tracking import Tracking

    return Tracking("benchmark", "ours", backend, directory=directory, announce=False)


class Direct(Protocol):
    """A backend used as trainers use it."""

    def log(self, data: Mapping[str, Any], step: int) -> object:
        """Log one step."""
        ...

    def flush(self) -> object:
        """Wait until it is durable."""
        ...

    def close(self) -> object:
        """Give up its files."""
        ...


class TensorBoardDirectly:
    """50 calls of torch's ``SummaryWriter.add_scalar``; durable after its ``flush``."""

    theirs = "SummaryWriter.add_scalar x 50"

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory / "direct"))

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """As trainers do it."""
        for name, value in data.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """To the file."""
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class MLflowDirectly:
    """One ``MlflowClient.log_batch`` of 50 metrics to the same kind of sqlite file; durable when it returns."""

    theirs = "MlflowClient.log_batch of 50, sqlite"

    def __init__(self, directory: Path) -> None:
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.ERROR)  # else it tells of each table that it makes
        self._client = MlflowClient(tracking_uri=f"sqlite:///{directory / 'direct.db'}")
        self._run_id = self._client.create_run(self._client.create_experiment("direct")).info.run_id

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """As a trainer with one call a step does it."""
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        batch = [Metric(name, float(value), now, step) for name, value in data.items()]
        self._client.log_batch(self._run_id, metrics=batch, synchronous=True)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""


def durable_s(tracking: Tracking, direct: Direct, calls: int) -> tuple[float, float]:
    """Median seconds from the call until it is in the file or database, ours and theirs; they take turns."""
    data = metrics()
    ours: list[float] = []
    theirs: list[float] = []

    def through_tracking(step: int) -> None:
        tracking.log(data, step)
        tracking.flush(60)

    def directly(step: int) -> None:
        direct.log(data, step)
        direct.flush()

    for step in range(calls):
        ours.append(seconds(partial(through_tracking, step)))
        theirs.append(seconds(partial(directly, step)))
    return statistics.median(ours), statistics.median(theirs)


def burst_s(tracking: Tracking, direct: Direct, calls: int) -> tuple[float, float]:
    """Seconds a call where many come at once, until the last is durable, ours and theirs."""

    def burst(log: Callable[[Mapping[str, Any], int], object], flush: Callable[[], object]) -> float:
        def work() -> None:
            for step in range(DURABLE_CALLS, DURABLE_CALLS + calls):
                log(data, step)
            flush()

        return seconds(work) / calls

    data = metrics()
    return burst(tracking.log, lambda: tracking.flush(120)), burst(direct.log, direct.flush)


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """Three rows a backend: seconds, ours and theirs, and ours / theirs."""
    found: list[dict[str, Any]] = []
    for backend, make in (("tensorboard", TensorBoardDirectly), ("mlflow", MLflowDirectly)):
        with tempfile.TemporaryDirectory() as folder:
            found += _rows_of(backend, make, Path(folder), *size.pick((2, 2), (CALLS, DURABLE_CALLS)))
    return found


def _rows_of(
    backend: str, make: Callable[[Path], Direct], directory: Path, calls: int, durable_calls: int
) -> list[dict[str, Any]]:
    name = f"Tracking.log of {METRICS} metrics to {backend}"
    theirs = f"theirs: {make.theirs}"  # type: ignore[attr-defined]  # a class
    direct = make(directory)
    try:
        data = metrics()
        ours_s = ours_on_the_thread(backend, directory, calls)
        theirs_s = median_s(lambda step: direct.log(data, step), calls)
        note = (
            f"median of {calls} calls on the calling thread, {STEP_S * 1e3:.0f} ms of training between calls; {theirs}"
        )
        thread = row(f"{name}, on the training thread", ours_s, theirs_s, TARGET, note)
        with opened(backend, directory / "durable") as tracking:
            note = f"median of {durable_calls} calls, each stored in the file or database before the next; {theirs}"
            durable = row(f"{name}, until durable", *durable_s(tracking, direct, durable_calls), "", note)
            note = f"time per call: {calls} calls without a pause, until the last is stored in the file or database; "
            note += theirs
            burst = row(f"{name}, a burst until durable", *burst_s(tracking, direct, calls), "", note)
    finally:
        direct.close()
    return [thread, durable, burst]


if __name__ == "__main__":
    for one in rows():
        times = f"{one['ours_s'] * 1e6:.1f} µs against {one['theirs_s'] * 1e6:.0f} µs ({one['ratio']:.3f} of it)"
        target = f"; target {one['target']}" if one["target"] else ""
        print(f"{one['name']}: {times}{target}; {one['note']}")
