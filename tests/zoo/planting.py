"""Faults that begin later, and runs as theirs without what they plant, each made once for all tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from probe.demo.zoo import FAULTS, fault
from probe.demo.zoo.ahead import Ahead
from probe.demo.zoo.graded import Graded
from probe.demo.zoo.healthy import HEALTHY
from probe.demo.zoo.loop import Training
from probe.demo.zoo.processes import Processes
from probe.demo.zoo.sampling import Sampling
from probe.demo.zoo.served import Served
from probe.opened import Run
from tests.once import once

#: Thresholds were set on seeds below 10.
SEED = 17


def planted(factory: pytest.TempPathFactory, name: str, place: Path) -> Path:
    """A copy in ``place`` of the run with that fault at full strength, or of that healthy training.

    Faults of real processes, which are found while they run, are none of these.
    """
    label = "planted_" + "".join(one if one.isalnum() else "_" for one in name)
    made = once(factory, label, lambda folder: _record(name, folder / "run")) / "run"
    shutil.copytree(made, place)
    return place


def _record(name: str, place: Path) -> None:
    if name in FAULTS:
        fault(name)(1.0, SEED).run(place)
    else:
        HEALTHY[name](seed=SEED).run(place)


def sound(factory: pytest.TempPathFactory, name: str) -> tuple[Path, list[str]]:
    """A run as a fault's without what it plants, and the names of what is found in it."""
    kind, told = _sound(fault(name))
    label = "sound_" + "".join(one if one.isalnum() else "_" for one in told)
    place = once(factory, label[:180], lambda place: _look(kind(1.0, SEED), place))
    return place / "run", json.loads((place / "found.json").read_text())


def delayed(kind: type[Training], steps: int) -> type[Training]:
    """A fault's class with so many steps before it, in which nothing is planted."""

    def later(name: str) -> object:
        own, usual = getattr(kind, name), getattr(Training, name)

        def method(self: Training, *given: Any) -> Any:
            at = STEP_OF[name]
            step = given[at]
            if step < steps:
                return usual(self, *given)
            # What is logged is logged in its step; all else is drawn and planted as if the run began now.
            return own(self, *given[:at], step if name == "log" else step - steps, *given[at + 1 :])

        return method

    changed = {name: later(name) for name in STEP_OF if name in vars(kind)}
    shape = type(kind.shape)(**{**vars(kind.shape), "steps": kind.shape.steps + steps})
    place = {} if kind.step is None else {"step": kind.step + steps}
    return type("Delayed", (kind,), {**changed, **place, "shape": shape})


#: Where a method of a training is given the step.
STEP_OF = {
    "lengths": 0,
    "token_s": 0,
    "data_s": 0,
    "kept": 0,
    "held": 0,
    "batch": 1,
    "sampled": 1,
    "losses": 0,
    "metrics": 0,
    "after_step": 1,
    "log": 2,
}


def _look(training: Training, place: Path) -> None:
    with Run(training.run(place / "run")) as run:
        (place / "found.json").write_text(json.dumps([one.name for one in run.findings()]))


def _sound(kind: type[Training]) -> tuple[type[Training], str]:
    """The class of a fault with what it plants taken out, only its shape, packing, configuration and device stay; and
    what tells it from others.
    """
    kept = {name: getattr(kind, name) for name in ("shape", "packed", "config", "device")} | kind.without
    base = next(one for one in (Processes, Sampling, Ahead, Served, Graded, Training) if issubclass(kind, one))
    usual = {name: getattr(base, name) for name in kept}
    unlike = {name: _short(value) for name, value in kept.items() if value != usual[name]}
    return type("Sound", (base,), kept), f"{base.__name__}{unlike}"


def _short(value: object) -> object:
    usual = vars(Training.shape)
    if not isinstance(value, type(Training.shape)):
        return value
    return {name: one for name, one in vars(value).items() if one != usual[name]}
