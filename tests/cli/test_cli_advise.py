"""``probe advise --config``: a patch that ``git apply`` takes, and the advice where a file has no place for it."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import probe
from probe.cli import main
from tests.analysis.planted_batches import Planted, planted

ACTOR = "actor_rollout_ref.actor"
DYNAMIC, CAP, BALANCE = f"{ACTOR}.use_dynamic_bsz", f"{ACTOR}.ppo_max_token_len_per_gpu", "trainer.balance_batch"

BLOCKS = """\
# Größe: tuned by hand
actor_rollout_ref:
  actor:
    use_dynamic_bsz: false
    ppo_max_token_len_per_gpu: 8192  # tokens
trainer:
  nnodes: 1
"""

SCRIPT = """\
python -m verl.trainer.main_ppo \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 \\
    data.path="/data/our files" \\
    trainer.nnodes=1 # it's one; trainer.balance_batch=false
"""


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run with fixed rows whose ranks are uneven."""
    actor = {"ppo_max_token_len_per_gpu": 8192, "use_dynamic_bsz": False}
    told = {"actor_rollout_ref": {"actor": actor}, "trainer": {"balance_batch": False}}
    path = tmp_path_factory.mktemp("uneven") / "run"
    planted(path, Planted(cap=None, balanced=False, steps=6, config=told)).close()
    return str(path)


@pytest.fixture(scope="module")
def wanted(uneven: str) -> dict[str, Any]:
    """What is advised, by dotted key."""
    with probe.open(uneven) as run:
        found = run.advise().values
    assert found.keys() == {DYNAMIC, CAP, BALANCE}
    return found


def applied(patch: bytes, file: Path, *command: str) -> bytes:
    """The file as the patch leaves it."""
    subprocess.run(command or ["git", "apply"], input=patch, cwd=file.parent, check=True, capture_output=True)
    return file.read_bytes()


@pytest.mark.parametrize("command", [["git", "apply"], ["patch", "-p1"]])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_4_a_patch_applies_whatever_ends_the_lines(
    uneven: str,
    wanted: dict[str, Any],
    tmp_path: Path,
    monkeypatch: Any,
    capfdbinary: Any,
    end: str,
    command: list[str],
) -> None:
    file = tmp_path / "ppo.yaml"
    before = BLOCKS.replace("\n", end).encode()
    file.write_bytes(before)
    monkeypatch.chdir(tmp_path)
    assert main(["advise", uneven, "--config", "./ppo.yaml"]) == 0
    after = applied(capfdbinary.readouterr().out, file, *command)
    new = after.replace(b"\r\n", b"\n").decode().splitlines(keepends=True)
    assert after.count(b"\r\n") == (len(after.split(b"\n")) - 1 if end == "\r\n" else 0)
    assert new[0] == "# Größe: tuned by hand\n"
    loaded = yaml.safe_load(after)
    assert loaded["actor_rollout_ref"]["actor"] == {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": wanted[CAP]}
    assert loaded["trainer"] == {"balance_batch": True, "nnodes": 1}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_4_an_override_that_a_script_lacks_is_put_beside_the_others(
    uneven: str, wanted: dict[str, Any], tmp_path: Path, monkeypatch: Any, capfdbinary: Any, end: str
) -> None:
    file = tmp_path / "train.sh"
    file.write_bytes(SCRIPT.replace("\n", end).encode())
    monkeypatch.chdir(tmp_path)
    assert main(["advise", uneven, "--config", "train.sh"]) == 0
    said = capfdbinary.readouterr()
    assert b"by hand" not in said.err
    after = applied(said.out, file).decode()
    expected = SCRIPT.replace(f"{CAP}=8192", f"{DYNAMIC}=true \\\n    {CAP}={wanted[CAP]}")
    expected = expected.replace("trainer.nnodes=1", f"{BALANCE}=true \\\n    trainer.nnodes=1")
    assert after == expected.replace("\n", end)
    words = shlex.split(after.replace(f"\\{end}", " "), comments=True)
    assert {f"{DYNAMIC}=true", f"{CAP}={wanted[CAP]}", f"{BALANCE}=true"} <= set(words)
    assert len(words) == 8


FLOW = "actor_rollout_ref: {actor: {ppo_max_token_len_per_gpu: 8192}}\ntrainer:\n  nnodes: 1\n"
ALIAS = (
    "on: &no false\nactor_rollout_ref:\n  actor:\n    use_dynamic_bsz: *no\n    ppo_max_token_len_per_gpu: 8192\n"
    "trainer: {balance_batch: *no}\n"
)


@pytest.mark.parametrize(
    ("name", "text", "by_hand", "in_patch"),
    [
        (
            "f.yaml",
            FLOW,
            {f"{DYNAMIC}: true": "isn't in the file", CAP: f"goes with {DYNAMIC}"},
            ["+  balance_batch: true"],
        ),
        ("a.yaml", ALIAS, {f"{DYNAMIC}: true": "plain value", CAP: "goes", f"{BALANCE}: true": "plain value"}, []),
        ("t.py", "train(balance_batch=False)\n", {"use_dynamic_bsz=True": "isn't"}, ["+train(balance_batch=True)"]),
        ("t.sh", "train --trainer.x 3\n", {f"{DYNAMIC}=true": "isn't", f"{CAP}=": "isn't", BALANCE: "isn't"}, []),
        ("2.sh", f"a {CAP}=1\nb {CAP}=2\n", {f"{DYNAMIC}=true": "isn't", f"{CAP}=": "more than once in the file"}, []),
    ],
)
def test_4_all_that_has_no_place_is_named_behind_the_advice_and_the_rest_is_a_patch(
    uneven: str,
    wanted: dict[str, Any],
    tmp_path: Path,
    capsys: Any,
    name: str,
    text: str,
    by_hand: dict[str, str],
    in_patch: list[str],
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert main(["advise", uneven, "--config", str(file)]) == 0
    said = capsys.readouterr()
    advice, _, left = said.err.partition(f"these settings aren't in the patch; set them in {file} by hand:")
    assert f"{DYNAMIC}: false → true" in advice
    assert f"{BALANCE}: false → true" in advice
    lines = left.splitlines()
    for setting, why in by_hand.items():
        assert any(setting in line and why in line for line in lines), (setting, left)
    assert [line for line in said.out.splitlines() if line.startswith("+") and not line.startswith("++")] == in_patch
    assert main(["advise", uneven, "--config", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["patch"] == said.out
    changed = {BALANCE} if in_patch else set()
    assert {one["key"]: one["value"] for one in told["by_hand"]} == {
        key: value for key, value in wanted.items() if key not in changed
    }


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [("f.yaml", "- 1\n", "has no mapping"), ("t.py", "(", "isn't Python"), ("e.yaml", "[", "YAML")],
)
def test_4_a_file_that_cannot_be_read_hides_no_advice(
    uneven: str, tmp_path: Path, capsys: Any, name: str, text: str, why: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert main(["advise", uneven, "--config", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{DYNAMIC}: false → true" in said.err
    assert why in said.err.split("confidence")[-1]
    assert main(["advise", uneven, "--config", str(file), "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert "patch" not in told
    assert told["suggestions"]
