"""A training loop with steps of about 5 ms, plain, under probe, and under what others record of it: taking turns.

Each of them runs the same steps: a batch is put together, cut into micro-batches, trained on, and ten metrics of it are
logged. Under probe all recorders are on, and each phase and micro-batch is a scope; OpenTelemetry gets a span for each
of those; the others get the metrics. What isn't installed is left out.

TraceML and probing change torch for as long as their process lives. Each of their turns is a process of its own
(``benchmarks.fast_steps_alone``), and so is each turn of the plain steps that they are compared with.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.measure import Size, row
from probe.core.metric import reduce_metrics
from probe.core.protocol import DataProto
from probe.core.seqlen_balancing import rearrange_micro_batches
from probe.core.torch_functional import logprobs_from_logits
from probe.hooks import current_scope, phase
from probe.recorders.memory import MemoryRecorder
from probe.session import start

ROUNDS = 12
STEPS = 60

Phase = Callable[[str], AbstractContextManager[Any]]
Log = Callable[[dict[str, float], int], Any]
#: What runs a step: how a step and a phase are opened, and who is told of the metrics.
Recorder = tuple[Callable[[int], AbstractContextManager[Any]], Phase, Log]


class Loop:
    """The training; it knows nothing of who records it, but for the scopes that it is given."""

    def __init__(self, hidden: int = 96, vocabulary: int = 128) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(vocabulary, hidden), torch.nn.Linear(hidden, hidden), torch.nn.Linear(hidden, vocabulary)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.ids = torch.randint(0, vocabulary, (16, 64))
        lengths = torch.randint(16, 65, (16, 1))
        self.mask = (torch.arange(64)[None] < lengths).long()

    def step(self, number: int, phase: Phase, log: Log) -> None:
        with phase("prepare"):
            data = DataProto.from_single_dict({"input_ids": self.ids.clone(), "attention_mask": self.mask.clone()})
        with phase("update"):
            micro_batches, _ = rearrange_micro_batches(data.batch, max_token_len=256)  # type: ignore[arg-type]  # it has one
            losses = []
            for micro in micro_batches:
                logits = self.model(micro["input_ids"])
                taken = logprobs_from_logits(logits, micro["input_ids"])
                loss = -(taken * micro["attention_mask"]).sum() / 256
                loss.backward()
                losses.append(loss.item())
            self.optimizer.step()
            self.optimizer.zero_grad()
        metrics = reduce_metrics({f"loss/{index}": losses for index in range(10)})
        log(metrics, number)


def _nothing(_: Any) -> AbstractContextManager[Any]:
    return nullcontext()


@contextmanager
def _plain(folder: Path) -> Iterator[Recorder]:  # all have one signature
    yield _nothing, _nothing, lambda *_: None


@contextmanager
def _probe(folder: Path) -> Iterator[Recorder]:
    with start("benchmark", run_dir=folder / "run") as session:
        yield session.step, phase, session.log


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Recorder]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))

    def log(metrics: dict[str, float], step: int) -> None:
        for key, value in metrics.items():
            writer.add_scalar(key, value, step)

    yield _nothing, _nothing, log
    writer.close()


@contextmanager
def _mlflow(folder: Path) -> Iterator[Recorder]:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment("benchmark")
    with mlflow.start_run():
        yield _nothing, _nothing, mlflow.log_metrics


@contextmanager
def _wandb(folder: Path) -> Iterator[Recorder]:
    import wandb

    with wandb.init(mode="offline", dir=str(folder), settings=wandb.Settings(console="off", silent=True)) as run:
        yield _nothing, _nothing, lambda metrics, step: run.log(metrics, step=step)


@functools.cache
def _trackio_folder() -> str:
    """Of all turns of this process, and gone when it ends."""
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return folder.name


@contextmanager
def _trackio(folder: Path) -> Iterator[Recorder]:
    os.environ["TRACKIO_DIR"] = _trackio_folder()  # read once, when it is imported
    import trackio

    trackio.init(project="benchmark", embed=False)
    yield _nothing, _nothing, lambda metrics, step: trackio.log(metrics, step=step)
    trackio.finish()


@contextmanager
def _opentelemetry(folder: Path) -> Iterator[Recorder]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    with (folder / "spans.json").open("w") as file:
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=file)))
        tracer = provider.get_tracer("benchmark")

        def log(metrics: dict[str, float], step: int) -> None:
            with tracer.start_as_current_span("log", attributes={**metrics, "step": step}):
                pass

        yield (lambda _: tracer.start_as_current_span("step")), tracer.start_as_current_span, log
        provider.shutdown()


#: Who records, and the package that it needs.
RECORDERS: dict[str, tuple[Callable[[Path], AbstractContextManager[Recorder]], str]] = {
    "plain": (_plain, "torch"),
    "probe": (_probe, "torch"),
    "TensorBoard": (_tensorboard, "tensorboard"),
    "MLflow": (_mlflow, "mlflow"),
    "W&B offline": (_wandb, "wandb"),
    "trackio": (_trackio, "trackio"),
    "OpenTelemetry": (_opentelemetry, "opentelemetry.sdk"),
}


class Alone(NamedTuple):
    """Who records in a process of its own: the distribution that it needs, how its process is started, and what it is
    told by environment variables."""

    package: str
    command: Callable[[Path], list[str]]
    environment: dict[str, str]
    note: str


def _python(_: Path) -> list[str]:
    return [sys.executable, str(SCRIPT)]


def _traceml_run(folder: Path) -> list[str]:
    """The launcher, which starts a process that gathers and the training, through torchrun."""
    launcher = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", str(SCRIPT)]
    return [*launcher, "--logs-dir", str(folder), "--run-name", "benchmark", "--args"]


#: What a turn of a process of its own runs.
SCRIPT = Path(__file__).parent / "fast_steps_alone.py"

#: Those that can't be taken back from a process, as their documentation starts them.
ALONE: dict[str, Alone] = {
    "plain": Alone("torch", _python, {}, ""),
    "TraceML": Alone("traceml-ai", _traceml_run, {}, '`traceml run`, `init(mode="auto")`, `trace_step`; no metrics'),
    "probing": Alone(
        "probing",
        _python,
        {"PROBING": "1", "PROBING_TORCH_PROFILING": "on"},
        "`PROBING=1 PROBING_TORCH_PROFILING=on`, a span for each scope, an event for the metrics",
    ),
}


class Turn:
    """What one of them made of its steps, seconds; and how many collections began meanwhile."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.cpu: list[float] = []
        self.collections = 0

    def add(self, other: Turn) -> None:
        self.times += other.times
        self.cpu += other.cpu
        self.collections += other.collections


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    usual = ["plain", "probe", "TensorBoard", "OpenTelemetry"]
    everybody = list(RECORDERS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        turns = take_turns(size.pick(usual, usual, everybody), size.pick(0, ROUNDS), size.pick(2, STEPS))
    finally:
        torch.set_num_threads(threads)
    plain = turns.pop("plain")
    found = [_compared(name, turn, plain, _told(RECORDERS[name][1])) for name, turn in turns.items()]
    alone = take_turns_alone(size.pick(0, 0, ROUNDS // 2), 2 * STEPS)
    if alone:
        plain = alone.pop("plain")
        found += [
            _compared(name, turn, plain, _told(ALONE[name].package), ALONE[name].note) for name, turn in alone.items()
        ]
    return [*found, _floor(size.pick(2, 200))]


def _told(package: str) -> str:
    """A package and its version; nothing where it comes with the loop itself."""
    distribution = {"opentelemetry.sdk": "opentelemetry-sdk"}.get(package, package)
    return "" if package == "torch" else f"{distribution} {version(distribution)}"


def _floor(rounds: int) -> dict[str, Any]:
    """A scope's end after real work, beside the two readings of the kernel that it consists of at the least."""
    loop, recorder, event = Loop(), MemoryRecorder("cpu"), _Ended()
    statm = os.open("/proc/self/statm", os.O_RDONLY)
    works: dict[str, Callable[[], Any]] = {
        "scope": lambda: recorder.leave(event, opened),  # type: ignore[arg-type]  # it has what is asked for
        "readings": lambda: (os.pread(statm, 128, 0), resource.getrusage(resource.RUSAGE_THREAD)),
    }
    times: dict[str, list[int]] = {name: [] for name in works}
    for number in range(rounds):
        for name, work in works.items():
            opened = recorder.enter(event)  # type: ignore[arg-type]  # as above
            loop.step(number, _nothing, lambda *_: None)
            event.end_ns = time.monotonic_ns()
            begin = time.perf_counter_ns()
            work()
            times[name].append(time.perf_counter_ns() - begin)
    os.close(statm)
    recorder.close()
    ours, theirs = (statistics.median(times[name]) / 1e9 for name in works)
    note = "the memory recorder's part; the alternative only reads /proc/self/statm and getrusage; "
    note += "both after a step's work"
    return row("end of a memory scope in a real step / its two readings", ours, theirs, "15 µs", note)


class _Ended:
    """An event as the memory recorder sees it."""

    __slots__ = ("begin_ns", "end_ns", "scope")

    def __init__(self) -> None:
        self.begin_ns = self.end_ns = time.monotonic_ns()
        self.scope = current_scope()


def take_turns(names: list[str], rounds: int, steps: int) -> dict[str, Turn]:
    loop = Loop()
    chosen = {name: RECORDERS[name][0] for name in names if _installed(RECORDERS[name][1])}
    turns = {name: Turn() for name in chosen}
    for index in range(rounds + 1):  # the first imports, fills caches and warms up: where there is no other it counts
        for name, make in list(chosen.items())[:: 1 if index % 2 else -1]:
            found = one_turn(loop, make, steps)
            if index or not rounds:
                turns[name].add(found)
    return turns


def take_turns_alone(rounds: int, steps: int) -> dict[str, Turn]:
    """As :func:`take_turns`, each turn in a process of its own; empty where nobody is installed to be compared."""
    names = [name for name, one in ALONE.items() if _has_version(one.package)]
    turns = {name: Turn() for name in names} if rounds and len(names) > 1 else {}
    for index in range(rounds):
        for name in list(turns)[:: 1 if index % 2 else -1]:
            turns[name].add(turn_alone(name, steps))
    return turns


def turn_alone(name: str, steps: int) -> Turn:
    """One turn of one of :data:`ALONE`, in a process that it starts and waits for.

    Raises:
        RuntimeError: The process ended without a result; with what it said.
    """
    one, turn = ALONE[name], Turn()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "turn.json"
        path = os.pathsep.join(filter(None, (str(SCRIPT.parent.parent), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [*one.command(Path(folder) / "logs"), name, str(steps), str(result)],
            env={**os.environ, **one.environment, "PYTHONPATH": path},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if not result.exists():
            raise RuntimeError(f"a turn of {name} ended with {done.returncode} and no result: {done.stderr[-2000:]}")
        vars(turn).update(json.loads(result.read_text()))
    return turn


def _has_version(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package.partition(".")[0]) is not None and (
        "." not in package or importlib.util.find_spec(package) is not None
    )


def one_turn(
    loop: Loop, make: Callable[[Path], AbstractContextManager[Recorder]], steps: int, warm_up: int = 5
) -> Turn:
    """Some steps that aren't measured, then ``steps`` that are."""
    turn = Turn()
    with tempfile.TemporaryDirectory() as folder, make(Path(folder)) as (step, phase, log):
        for number in range(warm_up):
            with step(number):
                loop.step(number, phase, log)
        gc.collect()
        before = sum(one["collections"] for one in gc.get_stats())
        for number in range(warm_up, steps + warm_up):
            cpu, begin = time.thread_time_ns(), time.perf_counter_ns()
            with step(number):
                loop.step(number, phase, log)
            turn.times.append((time.perf_counter_ns() - begin) / 1e9)
            turn.cpu.append((time.thread_time_ns() - cpu) / 1e9)
        turn.collections = sum(one["collections"] for one in gc.get_stats()) - before
    return turn


def _compared(name: str, turn: Turn, plain: Turn, *told: str) -> dict[str, Any]:
    ours, theirs = statistics.median(turn.times), statistics.median(plain.times)
    mean = statistics.fmean(turn.times) / statistics.fmean(plain.times) - 1
    tail = _p99(turn.times) / _p99(plain.times) - 1
    cpu = (statistics.fmean(turn.cpu) - statistics.fmean(plain.cpu)) * 1e3
    note = (
        f"median {ours / theirs - 1:+.1%}, mean {mean:+.1%}, 99th percentile {tail:+.1%}; CPU time of its thread "
        f"{cpu:+.2f} ms per step; garbage collections in {len(turn.times)} steps: {turn.collections} against "
        f"{plain.collections}"
    )
    note = "; ".join(filter(None, (note, *told)))
    return row(f"one step under {name} / plain", ours, theirs, "1.02" if name == "probe" else "", note)


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


if __name__ == "__main__":
    for one in rows(Size.asked(sys.argv)):
        print(one["name"], f"{one['ratio']:.3f}", one["note"])
