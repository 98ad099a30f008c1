from __future__ import annotations

import argparse
import json
import types
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import pytest

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
