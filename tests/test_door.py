"""`probe_rl`, by which others load probe: it hands over to our package, and says whose it is where it isn't ours."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import probe
import probe_rl
from probe.cli import doctor_checks

ROOT = Path(probe.__file__).parents[1]

THEIRS = 'raise RuntimeError("theirs has been imported")\n'


def python(code: str, *path: Path, program: str = sys.executable, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**environment(), "PYTHONPATH": os.pathsep.join(map(str, path)), **environ}
    return subprocess.run([program, "-P", "-c", code], env=env, capture_output=True, text=True, check=False)


def environment() -> dict[str, str]:
    return {name: one for name, one in os.environ.items() if not name.startswith(("PROBE", "VERL_", "PYTHONPATH"))}


def test_our_package_is_handed_over():
    from probe.adapters import attachment

    assert probe_rl.whose() == ""
    assert probe_rl.load("probe.adapters.attachment") is attachment


@pytest.mark.parametrize("form", ["a file", "a package", "a folder"])
def test_somebody_else_s_probe_is_told_and_not_imported(tmp_path, form):
    place = tmp_path / ("probe.py" if form == "a file" else "probe/__init__.py")
    place.parent.mkdir(exist_ok=True)
    if form != "a folder":
        place.write_text(THEIRS)
    code = "import probe_rl, sys; print(probe_rl.whose()); sys.exit(probe_rl.main())"
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "probe_rl").symlink_to(ROOT / "probe_rl")
    done = python(code, tmp_path, tmp_path / "only", program=make_venv(tmp_path))
    where = "a folder without __init__.py" if form == "a folder" else str(place)
    why = f"the package 'probe' that is imported here, {where}, is not of probe-rl: "
    why += "rename it, or take its folder off the path"
    assert (done.returncode, done.stdout, done.stderr) == (1, f"{why}\n", f"probe-rl: {why}\n")


def test_one_that_has_been_imported_is_told_too(tmp_path):
    (tmp_path / "probe.py").write_text("")
    done = python("import probe, probe_rl; print(probe_rl.whose())", tmp_path, ROOT)
    assert "is not of probe-rl" in done.stdout, done.stderr


def test_where_there_is_none_it_says_so(tmp_path):
    (tmp_path / "probe_rl").symlink_to(ROOT / "probe_rl")
    done = python("import probe_rl; print(probe_rl.whose())", tmp_path, program=make_venv(tmp_path))
    assert done.stdout == "there is no package 'probe': install probe-rl again\n", done.stderr


# ------------------------------------------------------------------------------------------------------------- verl

LOADED = "import sys; before = set(sys.modules); import probe_rl.verl; print(sorted(set(sys.modules) - before))"


def test_verl_s_plugin_loads_nothing_where_nobody_asks():
    done = python(LOADED, ROOT)
    assert done.stdout == "['__future__', 'probe_rl', 'probe_rl.verl']\n", done.stderr
    assert done.stderr == ""


ATTACHED = "import sys, probe_rl.verl; attachment = sys.modules.get('probe.adapters.attachment')\n"
ATTACHED += "print(attachment and [one.framework for one in sys.modules['probe.frameworks'].attached()])"


@pytest.mark.parametrize(
    "environ",
    [{"PROBE_RUN_DIR": "run"}, {"VERL_USE_EXTERNAL_MODULES": "other, probe_rl.verl"}],
    ids=["run directory", "module"],
)
def test_verl_s_plugin_attaches_where_it_is_asked_to(tmp_path, environ):
    assert python(ATTACHED, ROOT, **environ).stdout == "['verl', 'ray']\n"
    (tmp_path / "probe.py").write_text(THEIRS)
    done = python(ATTACHED, tmp_path, ROOT, **environ)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
    (said,) = done.stderr.splitlines()
    assert said.startswith("probe can't observe process ")
    assert f"{tmp_path / 'probe.py'}, is not of probe-rl" in said


TRACKER = """
class Tracking:
    supported_backend = ["console"]

    def __init__(self, project_name, experiment_name, default_backend="console", config=None):
        self.known = list(self.supported_backend)
"""


@pytest.mark.parametrize("ours", [True, False])
def test_without_a_run_directory_verl_s_tracker_brings_probe_and_a_foreign_one_is_passed_over(tmp_path, ours):
    tracker = tmp_path / "verl" / "utils" / "tracking.py"
    tracker.parent.mkdir(parents=True)
    for folder in (tracker.parents[1], tracker.parent):
        (folder / "__init__.py").touch()
    tracker.write_text(TRACKER)
    if not ours:
        (tmp_path / "probe.py").write_text(THEIRS)
    code = "import probe_rl.verl, verl.utils.tracking as one; print(one.Tracking('p', 'e').known, one.__loader__)"
    done = python(code, tmp_path, ROOT)
    assert done.stderr == ""
    assert ("'probe'" in done.stdout) == ours, done.stdout
    assert "SourceFileLoader" in done.stdout


# -------------------------------------------------------------------------------------------------------- Lightning


LIGHTNING = """
import sys, probe_rl.lightning
before = set(sys.modules)
print(probe_rl.lightning.callbacks(), sorted(one for one in set(sys.modules) - before if one.startswith("probe")))
"""


def test_lightning_s_factory_loads_nothing_where_nobody_asks_and_a_foreign_probe_is_told(tmp_path):
    done = python(LIGHTNING, ROOT)
    assert (done.stdout, done.stderr) == ("[] []\n", "")
    (tmp_path / "probe.py").write_text(THEIRS)
    done = python(LIGHTNING, tmp_path, ROOT, PROBE_RUN_DIR="run")
    assert (done.returncode, done.stdout) == (0, "[] []\n"), done.stderr
    assert f"{tmp_path / 'probe.py'}, is not of probe-rl" in done.stderr
    done = python(LIGHTNING, tmp_path, ROOT, PROBE_RUN_DIR="run", PROBE_STRICT="1")
    assert done.returncode == 1
    assert "\nprobe_rl.NotOursError: " in done.stderr


# -------------------------------------------------------------------------------------------------------------- Ray


RAY = """
import sys, probe_rl.ray
before = set(sys.modules)
given = {"pip": ["x"]}
made = probe_rl.ray.runtime_env(given)
print(made is given, sorted(one for one in set(sys.modules) - before if one.startswith("probe")))
"""


def test_ray_s_hook_changes_nothing_where_nobody_asks_and_a_foreign_probe_is_told(tmp_path):
    done = python(RAY, ROOT)
    assert (done.stdout, done.stderr) == ("True []\n", "")
    (tmp_path / "probe.py").write_text(THEIRS)
    done = python(RAY, tmp_path, ROOT, PROBE_RUN_DIR="run")
    assert (done.returncode, done.stdout) == (0, "True []\n"), done.stderr
    assert f"{tmp_path / 'probe.py'}, is not of probe-rl" in done.stderr


# ------------------------------------------------------------------------------- another distribution of the package


def wheel_of_theirs(folder: Path) -> Path:
    """A distribution with a package and a command ``probe``, as pip takes it."""
    files = {
        "probe/__init__.py": THEIRS,
        "acme_probe-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-probe\nVersion: 1.5\n",
        "acme_probe-1.5.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "acme_probe-1.5.dist-info/entry_points.txt": "[console_scripts]\nprobe = probe:main\n",
    }
    lines = []
    made = folder / "acme_probe-1.5-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(text)}")
        archive.writestr("acme_probe-1.5.dist-info/RECORD", "\n".join([*lines, "acme_probe-1.5.dist-info/RECORD,,"]))
    return made


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (ours,) = folder.glob("*.whl")
    return {"ours": ours, "theirs": wheel_of_theirs(folder)}


def make_venv(folder: Path) -> str:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    return str(folder / "venv" / "bin" / "python")


@pytest.mark.slow
@pytest.mark.parametrize("order", [("ours", "theirs"), ("theirs", "ours")], ids=" then ".join)
def test_of_two_distributions_with_a_package_probe_the_later_is_told_and_the_door_is_never_silently_dead(
    tmp_path, wheels, order
):
    program = make_venv(tmp_path)
    for name in order:
        install = [sys.executable, "-m", "pip", "--python", program, "install", "-q", "--no-deps", "--no-index"]
        subprocess.run([*install, str(wheels[name])], check=True, capture_output=True)
    said = python(ATTACHED, program=program, PROBE_RUN_DIR=str(tmp_path / "run"))
    assert said.returncode == 0, said.stderr
    told = python("import probe_rl; print(list(probe_rl.others()), probe_rl.whose() == '')", program=program)
    assert told.stdout == f"['acme-probe 1.5'] {order[-1] == 'ours'}\n", told.stderr
    if order[-1] == "ours":
        assert said.stdout == "['verl', 'ray']\n"
        assert said.stderr == ""
        return
    assert said.stdout == "None\n"
    (place,) = (tmp_path / "venv").glob("lib/python*/site-packages/probe/__init__.py")
    why = f"the package 'probe' that is imported here, {place}, is of acme-probe 1.5: "
    why += "probe-rl needs an environment without it"
    assert said.stderr.endswith(f": {why}\n")
    command = [str(Path(program).with_name("probe-rl")), "doctor"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"probe-rl: {why}\n")


def test_doctor_says_who_else_brings_the_package(tmp_path, monkeypatch):
    (check,) = doctor_checks._package()
    assert check.level == "ok"
    with zipfile.ZipFile(wheel_of_theirs(tmp_path)) as archive:
        archive.extractall(tmp_path / "installed")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    (check,) = doctor_checks._package()
    assert (check.area, check.name, check.level) == ("environment", "package", "warning")
    assert check.message.startswith("acme-probe 1.5 brings a package 'probe' too")
