"""``python -m benchmarks [NAME…] [--small | --full] [--write]``: each row is a ratio measured in one run."""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.measure import Size, duration

NAMES = (
    "hooks",
    "start_file",
    "memory_scope",
    "now",
    "partition",
    "packing",
    "balance",
    "what_if",
    "codec",
    "data_proto",
    "functional",
    "tracking_log",
    "producer",
    "panel",
    "demo_overhead",
    "own_cost",
    "samples",
    "fast_steps",
    "fast_steps_floor",
    "large_run",
    "last_edition",
    "watching",
    "jupyter_server",
    "perfetto",
)
TITLES = {
    "large_run": "A run of 1,024 ranks and 10,000,000 rows",
    "hooks": "Hooks and recorders",
    "start_file": "The cost of `probe run` for a starting process",
    "memory_scope": "A memory scope",
    "now": "Recording where each process is (`run.now()`)",
    "partition": "Partitioner against textbook Karmarkar–Karp",
    "packing": "Sequence packing against first-fit decreasing over lists",
    "balance": "Micro-batches of equal work against verl's",
    "last_edition": "Closing a published session",
    "what_if": "What-if: replaying steps under other settings",
    "codec": "The jagged codec against plain torch",
    "data_proto": "DataProto against a bare TensorDict",
    "functional": "Torch functionals",
    "tracking_log": "Tracking.log of 50 metrics",
    "producer": "The cost of a row on the training thread",
    "panel": "The live panel against FigureWidget, in the kernel",
    "panel_browser": "The live panel against plotly with whole traces, in the browser",
    "samples_browser": "The Samples view against a page with all samples, in the browser",
    "demo_overhead": "A step of the demo, with and without probe",
    "samples": "Recording samples and the fates of their tokens",
    "own_cost": "A run's own account of its cost against the measured cost",
    "trl_cost": "Transformers' Trainer with probe",
    "lightning_cost": "Lightning's Trainer with probe",
    "verl_cost": "verl's GRPO with probe",
    "fast_steps": "Steps of 5 ms under probe and other tools, against plain steps",
    "fast_steps_floor": "The cost of recording a 5 ms step, against the minimum",
    "watching": "Searching for findings while a run is written",
    "jupyter_server": "The Jupyter server extension",
    "jupyter_lab": "How soon JupyterLab shows a change",
    "perfetto": "Export to Perfetto",
}
#: What a reader has to know before a table.
NOTES = {
    "last_edition": (
        "A close doesn't wait for the last edition of the figures: its publisher makes them after the "
        "training has ended. In a container and in a batch job of Slurm the close waits for them, on purpose. "
        "There the publisher is killed as soon as the training ends, and the last figures would be missing. "
        "It waits 10 s at most, and says so. `PROBE_LAST_EDITION=leave` waits for none; `probe doctor RUN "
        "--recover` makes them later."
    ),
    "fast_steps": (
        "The compared tools do different work. probe, OpenTelemetry and probing record each scope; TraceML "
        "records each step and its forward and backward passes; the others take ten metrics a step. TraceML "
        "and probing change torch until their process ends. Each of their turns is a process of its own, "
        "compared with plain steps in such processes. SwanLab is left out, because it needs an older protobuf "
        "than the other tools do. Profilers that record each operator or kernel are left out, because they "
        "aren't meant to be on during a whole training."
    ),
}
DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def table(name: str, rows: list[dict[str, Any]]) -> str:
    lines = [
        f"## {TITLES[name]}",
        "",
        *([NOTES[name], ""] if name in NOTES else []),
        "| what | ours | the alternative | ratio | target | note |",
        "|---|---|---|---|---|---|",
    ]
    for one in rows:
        ours, theirs = one.get("ours_s"), one.get("theirs_s")
        lines.append(
            f"| {one['name']} | {'' if ours is None else _quantity(one, ours)} | "
            f"{'' if theirs is None else _quantity(one, theirs)} | {one['ratio']:.3g} | "
            f"{one.get('target', '')} | {one.get('note', '')} |"
        )
    return "\n".join(lines) + "\n"


def _quantity(one: dict[str, Any], value: float) -> str:
    return f"{value:g} {one['unit']}" if one.get("unit") else duration(value)


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "tensordict", "numpy"))
    return f"{os.cpu_count()} cores of {cpu}, {platform.system()}, Python {platform.python_version()}, {packages}"


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = _parsed(arguments)
    parts: dict[str, str] = {}
    for name in chosen.names or NAMES:
        rows = importlib.import_module(f"benchmarks.{name}").rows
        parts[name] = table(name, rows(chosen.size))
        print(parts[name], flush=True)
    if chosen.write:
        DOCUMENT.write_text(document(parts, DOCUMENT.read_text() if chosen.names else ""))


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = f"one of {', '.join(TITLES)}; none means all but those that need a browser or a framework's environment"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    size = parser.add_mutually_exclusive_group()
    size.set_defaults(size=Size.USUAL)
    small = "the smallest form of each, for its running and not for its figures"
    size.add_argument("--small", dest="size", action="store_const", const=Size.SMALL, help=small)
    full = "the slow rows too (several minutes)"
    size.add_argument("--full", dest="size", action="store_const", const=Size.FULL, help=full)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.names if name not in TITLES]:
        parser.error(f"no benchmark {', '.join(unknown)}: choose from {', '.join(TITLES)}")
    if chosen.write and chosen.size is Size.SMALL:
        parser.error("--small gives no figures that could be written: leave out --small or --write")
    return chosen


def document(parts: dict[str, str], before: str) -> str:
    """The page with new tables; those of ``before`` that weren't measured now stay as they are, with their day."""
    told = f"Measured on {datetime.datetime.now(datetime.UTC).date()}: {machine()}.\n"
    titles = {f"## {title}": name for name, title in TITLES.items()}
    kept: dict[str, str] = {}
    day = "".join(line + "\n" for line in before.splitlines() if line.startswith("Measured on"))
    for section in re.split(r"^(?=## )", before, flags=re.MULTILINE)[1:]:
        name = titles.get(section.partition("\n")[0])
        if name is not None:
            kept[name] = section.rstrip("\n") + "\n"
    fresh = {name: text if not kept else text.replace("\n\n", f"\n\n{told}\n", 1) for name, text in parts.items()}
    ordered = [{**kept, **fresh}[name] for name in TITLES if name in kept or name in fresh]
    head = (
        "# Benchmarks\n\nThis page measures what each part of probe costs, against an alternative that does the same. "
        "Both sides of a row run in turns in one run; times are medians. The ratio is ours divided by the "
        f"alternative.\n`make bench` writes this page.\n\n{day.splitlines()[0] if day else told.strip()}\n\n"
    )
    return head + "\n".join(ordered)


if __name__ == "__main__":
    main()
