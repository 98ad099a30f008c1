"""Train a small policy with GRPO under observation, and show what probe saw of it."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from probe._check import needs_views
from probe.errors import InputError, MissingDependencyError
from probe.hooks import OFF, is_off
from probe.text import visible

if TYPE_CHECKING:
    from rich.console import Console

    from probe.analysis.verdict import Findings
    from probe.demo.settings import Settings

ABOUT: Final = "train a small policy under observation, in about a minute"

#: ``console`` is left out because it would write across the progress bar.
DEFAULT_BACKENDS: Final = ["tensorboard", "mlflow", "file"]

TRACK_HELP: Final = (
    "tracking backends joined by commas, out of console, tensorboard, mlflow and file; '' for none "
    f"({','.join(DEFAULT_BACKENDS)})"
)

#: Where ``mlflow ui`` serves, unless it is told otherwise.
MLFLOW_UI: Final = "http://127.0.0.1:5000"

#: Findings that are shown; the report has them all.
SHOWN: Final = 6

#: Where a person finds the dashboards.
_DASHBOARDS: Final = {
    "tensorboard": "In TensorBoard, Custom Scalars has the dashboards, Histograms the lengths of the sequences, Text "
    "what was found.",
    "mlflow": "In MLflow, the run's Overview says what was found, and its artifact figures.html has the figures.",
}

_MARKS: Final = {"alarm": "[red]alarm[/]", "tuning": "[yellow]worth a change[/]", "fine": "[green]fine[/]"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe demo``."""
    add = parser.add_argument
    add("--steps", type=_count, metavar="N", help="training steps (enough to see it learn)")
    add("--ranks", type=_count, default=2, metavar="N", help="processes that train together (2)")
    add("--run-dir", type=Path, metavar="DIR", help="a new run directory (runs/demo/<time>)")
    add("--resume", type=Path, metavar="DIR", help="go on with the run in DIR, from its latest checkpoint")
    add("--track", type=_backends, default=DEFAULT_BACKENDS, metavar="NAMES", help=TRACK_HELP)
    add("--seed", type=_whole, metavar="N", help="seed of the problems and of the training (0)")
    add(
        "--fault",
        metavar="NAME",
        help="plant a fault in a small training, and say what was found; 'list' names the faults",
    )
    add("--strength", type=_share, default=1.0, metavar="X", help="strength of the fault, above 0 and up to 1 (1)")


def run(arguments: argparse.Namespace) -> int:
    """Train, report, and say where everything is."""
    if arguments.fault is not None:
        return _plant(arguments)
    _refuse_what_cannot_work(arguments.track)
    from rich.console import Console

    from probe.demo.launch import launch
    from probe.runs.layout import create_run

    settings = _settings(arguments)
    config = {**asdict(settings), "ranks": arguments.ranks}
    directory = create_run("demo", run_dir=arguments.resume or arguments.run_dir, config=config)
    console = Console()
    rewards: list[float] = []
    quiet = "console" in arguments.track
    with _bar(console, settings.warmup_steps, settings.steps, rewards, quiet=quiet) as on_step:
        locations = launch(settings, directory, ranks=arguments.ranks, track=arguments.track, on_step=on_step)
    with console.status("writing the report"):
        report, found = _look(directory)
    _show_findings(console, found)
    _show_reward(console, rewards)
    _show_places(console, {"run": str(directory), "report": str(report), **commands(locations, mlflow_page(directory))})
    for line in where_to_look(locations):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    return 0


def _plant(arguments: argparse.Namespace) -> int:
    """Plant a fault in a training that takes a second, and say what was found. The exit code says whether it was the
    fault.
    """
    from probe.demo.zoo import FAULTS, fault

    if arguments.fault == "list":
        for name in FAULTS:
            print(f"{name:24}{fault(name).about}")
        return 0
    from probe.runs.layout import create_run

    _refuse_old_run(arguments.run_dir)
    training = fault(arguments.fault)(arguments.strength, arguments.seed or 0)
    directory = create_run("zoo", run_dir=arguments.run_dir, config=training.config)
    found = training.found(directory)
    named = training.is_named_by(found)
    print(f"Planted: {training.about}.\n\n{visible(repr(found))}\n")
    print(f"{'The fault was named first' if named else 'The fault was not named first'}. The run: {directory}")
    return 0 if named else 1


def _settings(arguments: argparse.Namespace) -> Settings:
    """Those of the options; of a run that goes on, its own, with more steps where that was asked for."""
    from probe.demo.settings import Settings
    from probe.runs.layout import read_info

    steps = {"steps": arguments.steps} if arguments.steps else {}
    if arguments.resume is None:
        _refuse_old_run(arguments.run_dir)
        return Settings(seed=arguments.seed or 0, **steps)
    if arguments.run_dir or arguments.seed is not None:
        raise InputError(
            "--resume: got --run-dir or --seed with it, expected neither: the run keeps its directory and seed"
        )
    known = {field.name for field in fields(Settings)}
    before = {name: value for name, value in (read_info(arguments.resume).config or {}).items() if name in known}
    return Settings(**{**before, **steps})


def commands(locations: Mapping[str, str], page: str = "") -> dict[str, str]:
    """Where each backend shows the run that has a view of its own, and what to type for it.

    Args:
        locations: Of the backends.
        page: Of the run, below the address of an MLflow server; see :func:`mlflow_page`.

    Returns:
        An address or a command by what is said of it.

    >>> commands({"tensorboard": "/runs/my demo/tensorboard"})
    {'TensorBoard': "tensorboard --logdir '/runs/my demo'"}
    """
    lines = {}
    if "tensorboard" in locations:
        place = Path(locations["tensorboard"])
        if place.name == "tensorboard":  # as a folder of its log directory the run has a name, which HParams needs
            place = place.parent
        lines["TensorBoard"] = f"tensorboard --logdir {shlex.quote(str(place))}"
    where = locations.get("mlflow", "")
    if where.startswith(("http://", "https://")):
        lines["MLflow"] = where
    elif where:
        lines["MLflow"] = f"{MLFLOW_UI}/{page}"
        lines["served by"] = f"mlflow ui --backend-store-uri {shlex.quote(where)}"
    if "file" in locations:
        lines["metrics"] = locations["file"]
    return lines


def mlflow_page(directory: Path) -> str:
    """The page of the newest attempt's run in MLflow, below the address of a server; "" where it isn't known.

    Args:
        directory: Of the run.

    Returns:
        Such as ``#/experiments/1/runs/4f0c``.
    """
    from probe.tracking.backends.mlflow import page_of
    from probe.tracking.state import State, homes

    known = [State(home, "mlflow").read() for home in homes(directory).values()]
    found = next((one for one in reversed(known) if one.get("run_id") and one.get("experiment_id")), None)
    return page_of(found["experiment_id"], found["run_id"]) if found else ""


def where_to_look(locations: Mapping[str, str]) -> list[str]:
    """Where the dashboards are in each backend that has them.

    >>> where_to_look({"file": "/runs/metrics.jsonl"})
    []
    """
    return [told for name, told in _DASHBOARDS.items() if name in locations]


def _refuse_what_cannot_work(track: list[str]) -> None:
    """Before anything is made, and before ranks fail one by one."""
    if is_off():
        raise InputError(OFF)
    for package in (*(one for one in ("tensorboard", "mlflow") if one in track), "datasets", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError.of("probe demo", package, "demo")
    needs_views("probe demo")


def _refuse_old_run(given: Path | None) -> None:
    from probe.runs.layout import INFO_NAME, RUN_DIR_VARIABLE

    place = given or os.environ.get(RUN_DIR_VARIABLE)
    if place and (Path(place).expanduser() / INFO_NAME).exists():
        raise InputError(f"--run-dir: {str(place)!r} already holds a run, expected a new directory")


@contextmanager
def _bar(
    console: Console, warmup: int, steps: int, rewards: list[float], *, quiet: bool
) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """A progress bar that is moved by what it yields, which also collects the rewards."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[news]}"),
    )
    with Progress(*columns, console=console, disable=quiet) as progress:
        warming = progress.add_task("warm-up", total=warmup, news="")
        training = progress.add_task("GRPO", total=steps, news="", start=False)

        def on_step(step: int, metrics: Mapping[str, float]) -> None:
            if step < 0:
                progress.update(warming, advance=1, news=f"loss {metrics['warm_up/loss']:.2f}")
                return
            if not rewards:
                progress.start_task(training)
                progress.update(warming, visible=progress.tasks[warming].finished)  # a run that goes on has none
            rewards.append(metrics["reward/mean"])
            progress.update(training, completed=step + 1, news=f"reward {rewards[-1]:.2f}")

        yield on_step


def _look(directory: Path) -> tuple[Path, Findings]:
    from probe.analysis.verdict import findings
    from probe.runs.reader import Run
    from probe.views.report.report import write_report

    with Run(directory) as run:
        return write_report(run, directory / "report.html"), findings(run)


def _show_findings(console: Console, found: Findings) -> None:
    from rich.table import Table

    table = Table("", "finding", "what to do", title="What probe found", title_justify="left")
    for one in found[:SHOWN]:
        table.add_row(_MARKS[one.kind], one.sentence, one.change.advice if one.change is not None else "")
    console.print(table)
    if len(found) > SHOWN:
        console.print(f"and {len(found) - SHOWN} more in the report")


def _show_reward(console: Console, rewards: list[float]) -> None:
    """Means over a fifth of the steps at either end: single steps are noisy."""
    count = max(1, len(rewards) // 5)
    before, after = sum(rewards[:count]) / count, sum(rewards[-count:]) / count
    of = f"means of the first {count} and the last {count} of {len(rewards)} steps"
    console.print(f"\nreward {before:.2f} → {after:.2f} ({of})")


def _show_places(console: Console, places: Mapping[str, str]) -> None:
    """Each on a line of its own and unbroken, so that it can be copied."""
    for what, where in places.items():
        console.print(f"{what:12}{where}", soft_wrap=True, markup=False, highlight=False)


def _whole(text: str, least: int = 0) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of at least {least}")
    return int(text)


def _count(text: str) -> int:
    return _whole(text, least=1)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number above 0 and up to 1")
    return value


def _backends(text: str) -> list[str]:
    from probe.tracking.backends import BACKENDS

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in BACKENDS:
            raise argparse.ArgumentTypeError(f"got {name!r}, expected one or more of {', '.join(BACKENDS)}")
    return names
