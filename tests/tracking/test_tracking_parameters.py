from __future__ import annotations

import argparse
import json
import types
from collections import OrderedDict
from dataclasses import dataclass, field, make_dataclass
from pathlib import PurePosixPath

import pytest

from probe.runs.layout import plain as kept_in_run_json
from probe.tracking.parameters import flatten, plain


@dataclass
class Optimizer:
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)


@dataclass
class Config:
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 1
    name: str | None = None


class Plain:
    def __init__(self):
        self.optimizer = {"lr": 1e-6, "betas": [0.9, 0.95]}
        self.seed = 1
        self.name = None
        self._hidden = 2


class Dumped:
    def model_dump(self):
        return {"optimizer": Optimizer(), "seed": 1, "name": None}


TREE = {"optimizer": {"lr": 1e-6, "betas": [0.9, 0.95]}, "seed": 1, "name": None}


@pytest.mark.parametrize(
    "config",
    [
        TREE,
        OrderedDict(TREE),
        types.MappingProxyType(TREE),
        Config(),
        argparse.Namespace(**TREE),
        types.SimpleNamespace(**TREE),
        Plain(),
        Dumped(),
    ],
    ids=lambda config: type(config).__name__,
)
def test_every_shape_gives_the_same_parameters(config):
    assert plain(config) == TREE
    assert flatten(config) == {
        "optimizer/lr": 1e-6,
        "optimizer/betas": "[0.9, 0.95]",
        "seed": 1,
        "name": None,
    }


def test_omegaconf_is_resolved():
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"a": 1, "b": "${a}", "c": {"d": [1, "${a}"]}})
    assert flatten(config) == {"a": 1, "b": 1, "c/d": "[1, 1]"}
    broken = omegaconf.OmegaConf.create({"a": "${nowhere}", "b": "???"})
    assert flatten(broken) == {"a": "${nowhere}", "b": "???"}


def test_odd_things_become_strings():
    assert flatten({"path": PurePosixPath("a"), "kind": int, "set": {2, 1}, 3: b"x"}) == {
        "path": "a",
        "kind": "<class 'int'>",
        "set": json.dumps(["1", "2"]),
        "3": "b'x'",
    }
    assert flatten(None) == {}
    assert flatten({}) == {}
    assert flatten({"a": {}}) == {"a": "{}"}


def test_a_config_that_holds_itself_ends():
    config: dict = {"a": 1}
    config["self"] = config
    assert flatten(config)["a"] == 1


def shaped(kind, **fields):
    """An object of that kind with these fields."""
    if kind == "dict":
        return dict(fields)
    if kind == "namespace":
        return types.SimpleNamespace(**fields)
    if kind == "dataclass":
        return make_dataclass("Part", list(fields))(**fields)
    made = type("Part", (), {})()
    made.__dict__.update(fields)
    return made


def put(thing, name, value):
    if isinstance(thing, dict):
        thing[name] = value
    else:
        setattr(thing, name, value)


KINDS = pytest.mark.parametrize("kind", ["dict", "namespace", "dataclass", "plain object"])
BOTH = pytest.mark.parametrize("made_plain", [plain, kept_in_run_json], ids=["parameters", "run.json"])


@KINDS
@BOTH
def test_25_18_references_back_are_named_as_such(made_plain, kind):
    parent = shaped(kind, lr=1.0, child=None)
    child = shaped(kind, name="c", parent=parent, twice=None, also=None)
    put(parent, "child", child)
    put(child, "twice", child)
    assert made_plain({"actor": parent}) == {
        "actor": {
            "lr": 1.0,
            "child": {"name": "c", "parent": "→ actor", "twice": "→ actor/child", "also": None},
        }
    }
    assert made_plain(parent)["child"]["parent"] == "→ the whole configuration"


@KINDS
@BOTH
def test_25_18_many_that_hold_all_the_others_are_told_at_once(made_plain, kind):
    ring = [shaped(kind, number=number, others=None) for number in range(12)]
    for one in ring:
        put(one, "others", [other for other in ring if other is not one])
    size = len(json.dumps(made_plain({"first": ring[0]})))
    assert size < 40_000  # of 132 references; a repr of the ring itself would never end


@KINDS
@BOTH
def test_25_18_what_is_told_grows_with_the_objects_and_not_with_the_paths_to_them(made_plain, kind):
    def tree(levels):
        below = shaped(kind, lr=1.0)
        for _ in range(levels):
            below = shaped(kind, left=below, right=below)
        return len(json.dumps(made_plain(below)))

    assert tree(30) - tree(20) <= 2 * (tree(20) - tree(10))
    assert tree(30) < 40_000


@BOTH
def test_25_18_what_is_small_is_shown_wherever_it_stands(made_plain):
    optimizer = Optimizer()
    shown = {"lr": 1e-6, "betas": [0.9, 0.95]}
    assert made_plain({"actor": optimizer, "critic": [optimizer, optimizer]}) == {
        "actor": shown,
        "critic": [shown, shown],
    }
