"""What logging 50 metrics costs the training thread: through ``Tracking``, and with the backends directly.

python -m benchmarks.tracking_log
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

METRICS = 50
CALLS = 300
#: A short training step between two calls: caches are cold again, the sending thread does its work.
STEP_S = 0.02
TARGET = "median <= 50 µs"


def metrics() -> dict[str, Any]:
    """50 metrics as a trainer has them: mostly floats, every fifth a 0-d tensor on the CPU."""
    return {
        f"group{index % 6}/metric_{index}": torch.tensor(index / 7) if index % 5 == 0 else index / 7
        for index in range(METRICS)
    }


def median_s(log: Callable[[int], object], calls: int = CALLS) -> float:
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


def ours(backend: str, directory: Path) -> float:
    """Through Tracking."""
    from probe.tracking.tracking import Tracking

    data = metrics()
    with Tracking("benchmark", "ours", backend, directory=directory) as tracking:
        return median_s(lambda step: tracking.log(data, step))


def tensorboard_directly(directory: Path) -> float:
    """50 calls of torch's ``SummaryWriter.add_scalar``, as trainers do it."""
    from torch.utils.tensorboard import SummaryWriter

    data = metrics()
    writer = SummaryWriter(str(directory / "direct"))

    def log(step: int) -> None:
        for name, value in data.items():
            writer.add_scalar(name, value, step)

    try:
        return median_s(log)
    finally:
        writer.close()


def mlflow_directly(directory: Path) -> float:
    """One ``MlflowClient.log_batch`` of 50 metrics to the same kind of sqlite file."""
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.ERROR)  # else it tells of each table that it makes
    client = MlflowClient(tracking_uri=f"sqlite:///{directory / 'direct.db'}")
    run_id = client.create_run(client.create_experiment("direct")).info.run_id
    data = metrics()

    def log(step: int) -> None:
        now = time.time_ns() // 1_000_000
        batch = [Metric(name, float(value), now, step) for name, value in data.items()]
        client.log_batch(run_id, metrics=batch, synchronous=True)

    return median_s(log)


def rows() -> list[dict[str, Any]]:
    """One row a backend: seconds on the calling thread, ours and theirs, and ours / theirs."""
    found = []
    for backend, directly, theirs in (
        ("tensorboard", tensorboard_directly, "SummaryWriter.add_scalar x 50"),
        ("mlflow", mlflow_directly, "MlflowClient.log_batch of 50, sqlite"),
    ):
        with tempfile.TemporaryDirectory() as directory:
            ours_s = ours(backend, Path(directory))
            theirs_s = directly(Path(directory))
        note = f"median of {CALLS} calls on the calling thread, {STEP_S * 1e3:.0f} ms of training between"
        found.append(
            {
                "name": f"Tracking.log of {METRICS} metrics to {backend}",
                "ours_s": ours_s,
                "theirs_s": theirs_s,
                "ratio": ours_s / theirs_s,
                "target": TARGET,
                "note": f"{note}; theirs: {theirs}",
            }
        )
    return found


if __name__ == "__main__":
    for row in rows():
        times = f"{row['ours_s'] * 1e6:.1f} µs against {row['theirs_s'] * 1e6:.0f} µs ({row['ratio']:.3f} of it)"
        print(f"{row['name']}: {times}; target {row['target']}; {row['note']}")
