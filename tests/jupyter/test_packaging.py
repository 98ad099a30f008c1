"""The plugin as the wheel brings it: found, enabled, and gone without a trace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.jupyter.plugin import ROOT, shared_data

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (made,) = place.glob("*.whl")
    return made


def test_6_the_wheel_has_the_plugin_once_and_no_source_of_it(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    for source, target in shared_data().items():
        files = (
            [one for one in (ROOT / source).rglob("*") if one.is_file()]
            if (ROOT / source).is_dir()
            else [ROOT / source]
        )
        for one in files:
            below = one.relative_to(ROOT / source).as_posix() if (ROOT / source).is_dir() else ""
            assert any(name.endswith(f"/data/{target}{'/' if below else ''}{below}") for name in names), one
    inside = [name for name in names if name.startswith("probe/jupyter/")]
    assert inside
    assert all(name.endswith(".py") for name in inside), inside


def test_6_it_is_enabled_by_its_installation_and_leaves_nothing(wheel: Path, tmp_path: Path):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    before = sorted(one for one in environment.rglob("*") if one.is_file())
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    told = {
        **os.environ,
        "JUPYTER_PATH": str(environment / "share" / "jupyter"),
        "JUPYTER_CONFIG_DIR": str(shutil.copytree(environment / "etc" / "jupyter", tmp_path / "config")),
    }

    def said(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *command], env=told, capture_output=True, text=True, check=True, cwd=tmp_path
        )
        return done.stdout + done.stderr

    lab = said("jupyter", "labextension", "list")
    (line,) = {one.strip() for one in lab.splitlines() if "probe-lab" in one}
    assert "enabled" in line
    assert "OK" in line
    server = said("jupyter", "server", "extension", "list")
    assert any("probe.jupyter" in one and "enabled" in one for one in server.splitlines())
    subprocess.run([*pip, "uninstall", "-y", "probe-rl"], check=True, capture_output=True)
    assert sorted(one for one in environment.rglob("*") if one.is_file()) == before


def test_6_the_bundle_has_the_same_bytes_whatever_folder_it_is_built_in(tmp_path: Path):
    modules = (ROOT / "node_modules").resolve()
    builder = "node_modules/@jupyter/builder/lib/build-labextension.js"
    if not (ROOT / builder).exists() or not shutil.which("node"):
        if os.environ.get("PROBE_REQUIRE_NODE"):
            pytest.fail("JupyterLab's builder isn't there: `make js` installs it")
        pytest.skip("JupyterLab's builder isn't there (needs node: `make js`)")
    clone = tmp_path / "of another" / "depth"
    lab = "probe/jupyter/lab"
    for source in (lab, "probe/views/panel/static/src"):
        shutil.copytree(ROOT / source, clone / source)
    # No link to the folder: names in the bundle depend on where the packages lie. Links to the files take no space.
    shutil.copytree(modules, clone / "node_modules", symlinks=True, copy_function=linked)
    build = ["node", str(clone / builder), "--core-package-file", "core.package.json", "."]
    subprocess.run(build, cwd=clone / lab, check=True, capture_output=True)
    made, kept = (contents(place / "probe" / "jupyter" / "labextension") for place in (clone, ROOT))
    assert {name for name in made.keys() | kept.keys() if made.get(name) != kept.get(name)} == set(), "`make js`"


def linked(source: str, target: str) -> None:
    """A hard link, or a copy where the folders are of two file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def contents(place: Path) -> dict[str, bytes]:
    return {one.relative_to(place).as_posix(): one.read_bytes() for one in place.rglob("*") if one.is_file()}
