"""No value of verl's and TRL's default configurations is taken for a secret: the real files of the installed packages.

Their files are read, nothing of them is imported.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from probe.redaction import REDACTED, Redaction
from probe.runs.layout import plain
from probe.tracking.parameters import flatten

#: Fields of theirs that hold a secret where they are set; all are None by default.
SECRETS = {"hub_token", "push_to_hub_token", "api_key", "hf_token", "token"}

pytestmark = pytest.mark.framework


def package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{name} isn't installed: make test-verl")
    return Path(next(iter(spec.submodule_search_locations)))


def defaults(path: Path) -> Iterator[tuple[str, Any]]:
    """Name and default of each field of the classes in a module, where the default is written out."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ClassDef):
            continue
        for field in node.body:
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name) or field.value is None:
                continue
            value: ast.expr | None = field.value
            if isinstance(value, ast.Call):
                given = {one.arg: one.value for one in value.keywords}
                value = given.get("default")
            try:
                yield field.target.id, None if value is None else ast.literal_eval(value)
            except ValueError:  # an expression
                continue


def test_b_no_value_of_verl_s_yaml_files_is_redacted():
    files = sorted((package("verl") / "trainer" / "config").rglob("*.yaml"))
    assert len(files) > 20
    seen = 0
    for path in files:
        config = yaml.safe_load(path.read_text())
        assert Redaction()(config) == config, path
        assert plain(config) == Redaction()(plain(config)), path
        flat = flatten(config)
        assert flat == flatten(config, redact=False), path
        seen += len(flat)
    assert seen > 1000


@pytest.mark.parametrize("name", ["verl", "trl"])
def test_b_no_default_of_their_configuration_classes_is_redacted(name):
    files = [path for path in package(name).rglob("*.py") if "config" in str(path.relative_to(package(name)))]
    fields = [one for path in files for one in defaults(path)]
    assert len(fields) > 200
    assert sum(isinstance(value, str) for _, value in fields) > 30
    for field, value in fields:
        assert Redaction()({field: value}) == {field: value}
    # Of their names, too, these alone are secrets' once somebody sets them.
    assert {field for field, _ in fields if Redaction()({field: "mine"}) != {field: "mine"}} <= SECRETS


def test_b_what_a_user_adds_to_them_is():
    [path] = (package("verl") / "trainer" / "config").glob("_generated_ppo_trainer.yaml")
    config = yaml.safe_load(path.read_text())
    config["actor_rollout_ref"]["model"]["hf_token"] = "mine"
    config["trainer"]["wandb_api_key"] = "mine"
    found = Redaction()(config)
    assert found["actor_rollout_ref"]["model"]["hf_token"] == found["trainer"]["wandb_api_key"] == REDACTED
    assert str(found).count(REDACTED) == 2
