"""A hook with nobody listening, and with every recorder on, against a span and a string-formatting decorator."""

from __future__ import annotations

import functools
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from opentelemetry.sdk.trace import TracerProvider

from benchmarks.measure import Size, row, seconds
from probe import hooks
from probe.core.metric import append_to_dict, reduce_metrics
from probe.core.micro_batch import micro_batch
from probe.session import start


def plain(value: int) -> int:
    return value


@hooks.observed("benchmark.plain", "a function that returns its argument")
def hooked(value: int) -> int:
    return value


def memory_logging(function: Callable[..., Any]) -> Callable[..., Any]:
    """What such decorators do in the field: read memory and format a line before and after."""
    logger = logging.getLogger("benchmark")
    process = psutil.Process()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for head in ("Before", "After"):
            used = process.memory_info().rss / 1024**3
            total = psutil.virtual_memory().total / 1024**3
            line = f"{head} {function.__name__}, memory allocated (GB): {used:.2f}, "
            line += f"device memory used/total (GB): {used:.2f}/{total:.2f}"
            logger.debug(line)
            if head == "Before":
                result = function(*args, **kwargs)
        return result

    return call


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    made = [_silent(size.pick(1, 2000))]
    repeats = size.pick(1, 4000)
    tracer = TracerProvider().get_tracer("benchmark")

    def span() -> None:
        with tracer.start_as_current_span("plain"):
            plain(1)

    logged = memory_logging(plain)
    with tempfile.TemporaryDirectory() as folder, start("benchmark", run_dir=Path(folder) / "run") as session:
        ours, theirs, strings = seconds(lambda: hooked(1), span, lambda: logged(1), repeats=repeats)
        with session.step(1):
            in_step, _ = seconds(lambda: hooked(1), span, repeats=repeats)
    made += [
        row("observed call, all recorders on / OpenTelemetry span", ours, theirs, "5 µs"),
        row("observed call, all recorders on / decorator that logs memory as text", ours, strings, ""),
        row("observed call inside a step, all recorders on / OpenTelemetry span", in_step, theirs, "5 µs"),
        _weighed(size.pick(1, 600)),
        _import_time(size.pick(1, 7)),
    ]
    return made


def _weighed(repeats: int) -> dict[str, Any]:
    """The metrics of a step, collected in its micro-batches and reduced, with and without their weights beside them."""

    def step() -> None:
        metrics: dict[str, Any] = {}
        for index in range(16):
            with micro_batch(index, lengths=[512] * 8):
                append_to_dict(metrics, {f"actor/metric_{one}": 0.5 for one in range(8)})
        reduce_metrics(metrics)

    def unheard() -> None:
        with hooks.silenced():
            step()

    with (
        tempfile.TemporaryDirectory() as folder,
        start("benchmark", run_dir=Path(folder) / "run", recorders=["reduction"]),
    ):
        ours, theirs = seconds(step, unheard, repeats=repeats)
    note = f"{(ours - theirs) * 1e6:.0f} µs more per step, on the training thread"
    return row("8 metrics of 16 micro-batches, collected and reduced / without a listener", ours, theirs, "", note)


def _silent(repeats: int) -> dict[str, Any]:
    ours, theirs = seconds(_hundred(hooked), _hundred(plain), repeats=repeats)
    note = f"{(ours - theirs) * 1e7:.0f} ns more per call" if ours > theirs else "no measurable difference"
    return row("hook without a listener / plain call", ours / 100, theirs / 100, "100 ns more", note)


def _hundred(function: Callable[[int], int]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(100):
            function(1)

    return run


def _import_time(repeats: int) -> dict[str, Any]:
    """``import probe`` beside an interpreter that imports nothing."""

    def run(code: str) -> float:
        samples = []
        for _ in range(repeats):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            samples.append(time.perf_counter() - begin)
        return statistics.median(samples)

    bare, ours = run("pass"), run("import probe")
    return row(
        "python -c 'import probe' / python -c pass",
        ours,
        bare,
        "150 ms more",
        f"{(ours - bare) * 1e3:.0f} ms more",
    )


if __name__ == "__main__":
    for one in rows():
        print(one)
