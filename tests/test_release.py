"""What is released: one version, a changelog for it, and two archives that install in an empty environment."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import probe
from tests import lean_environment
from tests.once import once

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())

RECORD = """
import json
from importlib import metadata

import probe

with probe.start("released", run_dir="run", rank=0, world_size=1) as session:
    for step in range(2):
        with session.step(step), probe.phase("update"):
            pass
print(json.dumps([probe.__version__, metadata.version("probe-rl"), probe.__file__]))
"""


def test_8_the_version_stands_in_one_place() -> None:
    assert SETTINGS["project"]["dynamic"] == ["version"]
    assert SETTINGS["tool"]["hatch"]["version"] == {"path": "probe/__init__.py"}
    assert metadata.version("probe-rl") == probe.__version__
    for told in ("probe/jupyter/lab/package.json", "probe/jupyter/labextension/package.json"):  # npm asks for one
        assert json.loads((ROOT / told).read_text())["version"] == probe.__version__


def test_8_the_changelog_of_the_version_is_read_in_two_minutes() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    newest = re.split(r"^## ", text, flags=re.MULTILINE)[1]
    assert re.match(rf"{re.escape(probe.__version__)} \(\d{{4}}-\d\d-\d\d\)\n", newest)
    assert len(newest.split()) <= 2 * 250  # words that are read in a minute


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("sdist", tmp_path_factory.mktemp("sdist"), ROOT)


def built(kind: str, folder: Path, source: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (made,) = (one for one in folder.iterdir() if one.suffix in {".whl", ".gz"})
    return made


@pytest.mark.slow
def test_8_a_wheel_of_the_source_distribution_is_that_of_the_tree(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    assert sdist.name == f"probe_rl-{probe.__version__}.tar.gz"
    (unpacked,) = tmp_path.iterdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ours, theirs = built("wheel", tmp_path / "a", ROOT), built("wheel", tmp_path / "b", unpacked)
    assert ours.name == theirs.name == f"probe_rl-{probe.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(ours) as one, zipfile.ZipFile(theirs) as other:
        names = [name for name in one.namelist() if "__pycache__" not in name]
        assert sorted(names) == sorted(name for name in other.namelist() if "__pycache__" not in name)
        unlike = [name for name in names if one.read(name) != other.read(name)]
    assert not unlike
    assert "probe/views/agents/SKILL.md" in names


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_8_it_installs_in_an_empty_environment_and_records(
    kind: str, sdist: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if kind == "wheel":
        folder = once(tmp_path_factory, "lean", lean_environment.make)
    else:
        folder = tmp_path / "installed"
        folder.mkdir()
        lean_environment.make(folder, sdist)

    def said(command: str, *arguments: str) -> str:
        there = [str(folder / "env" / "bin" / command), *arguments]
        environ = lean_environment.environment()
        done = subprocess.run(there, capture_output=True, text=True, check=False, env=environ, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert said("probe", "--version") == said("probe-rl", "--version") == f"probe {probe.__version__}\n"
    assert said("probe", "mcp", "--skill").startswith("---\nname: probe\n")  # it needs none of the SDK
    version, installed, place = json.loads(said("python", "-c", RECORD))
    assert version == installed == probe.__version__
    assert Path(place).is_relative_to(folder)
    lean_environment.pip(sys.executable, "--python", str(lean_environment.python_of(folder)), "check")
    with probe.open(tmp_path / "run") as run:
        found = run.sql("select count(*) as n from calls where phase = 'update'")
        assert found["n"][0] == 2
