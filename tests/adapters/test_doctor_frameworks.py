"""``probe doctor`` says which frameworks can be observed, without importing one, and what of a run was."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import probe
from probe.adapters import locating
from probe.adapters.attachment import ADAPTERS
from probe.adapters.seams import Seam
from probe.cli import doctor_frameworks as doctor
from probe.cli.doctor_run import run_checks
from tests.adapters.start_file import package, python

ENGINE = """
    raise RuntimeError("nobody imports this")

    try:
        from elsewhere import fast as borrowed
    except ImportError:
        def borrowed():
            pass

    if True:
        def branched():
            pass

    assigned = branched

    class Base:
        def inherited(self):
            pass

    class Engine(Base):
        def own(self):
            pass

        alias = own

    class Foreign(borrowed.Base):
        pass
"""


def nothing(call):
    yield


@pytest.fixture
def acme(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(package(tmp_path / "packages", "acme", engine=ENGINE)))
    locating.source_of.cache_clear()
    yield
    locating.source_of.cache_clear()


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("borrowed", True),
        ("branched", True),
        ("assigned", True),
        ("gone", False),
        ("Engine.own", True),
        ("Engine.alias", True),
        ("Engine.inherited", True),
        ("Engine.gone", False),
        ("Foreign.perhaps", True),  # of a base class that the file doesn't show
        ("Missing.own", False),
    ],
)
def test_5_functions_are_found_in_the_files_without_an_import(acme, name, there):
    assert locating.is_there(Seam("acme.engine", name, "x", nothing)) is there
    assert not [one for one in sys.modules if one.startswith("acme")]


def test_5_a_point_is_missing_when_none_of_its_functions_is_there(acme):
    seams = [
        Seam("acme.engine", "Engine.own", "both", nothing),
        Seam("acme.engine", "Engine.gone", "both", nothing),
        Seam("acme.engine", "gone", "one", nothing),
        Seam("acme.later", "save", "two", nothing),
    ]
    assert locating.locate(seams) == (["both", "one", "two"], ["one", "two"], ["acme.later"])


def test_5_doctor_lists_what_is_installed_and_what_is_missing_in_it(acme, monkeypatch):
    seams = [Seam("acme.engine", "gone", "saving", nothing), Seam("acme", "x", "y", nothing)]
    table = type("Table", (), {"SEAMS": seams})
    monkeypatch.setitem(sys.modules, "acme_table", table)
    made = ADAPTERS["ray"]._replace(table="acme_table:SEAMS", package="acme", distribution="pytest")
    monkeypatch.setattr("probe.adapters.attachment.ADAPTERS", {"acme": made})
    (check,) = doctor.frameworks()
    assert (check.name, check.level) == ("acme", "warning")
    assert check.message == f"{pytest.__version__}: 0 of 2 hook points are in its files; not found: saving, y"


def test_5_doctor_says_that_nothing_is_installed(monkeypatch):
    monkeypatch.setattr(doctor, "installed", dict)
    (check,) = doctor.frameworks()
    assert check.level == "ok"
    assert check.message.startswith("none of ")


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """The entry point of an installed distribution, also in processes; gives the folder that is on their path."""
    folder = tmp_path / "installed"
    info = folder / "someone-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: someone\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[verl.plugins]\nprobe = probe_rl.verl\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(Path(probe.__file__).parents[1])]))
    return folder


def test_5_doctor_says_that_verl_has_no_entry_point_to_load(monkeypatch):
    monkeypatch.setattr(doctor, "PLUGIN", "probe_rl.another")
    (check,) = doctor._plugin()
    assert check.level == "error"
    assert "no entry point of verl.plugins names probe_rl.another" in check.message


def test_5_doctor_loads_verls_plugin_as_verl_does_and_tells_what_verl_swallows(entry, monkeypatch):
    (check,) = doctor._plugin()
    assert (check.level, check.message) == ("ok", "entry point 'probe' of verl.plugins loads")
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    (check,) = doctor._plugin()
    assert check.level == "error"
    assert "VERL_USE_EXTERNAL_PLUGINS='none'" in check.message


def test_5_doctor_tells_of_a_plugin_that_fails(entry):
    (entry / "sitecustomize.py").write_text("import sys; sys.modules['probe.adapters.attachment'] = None\n")
    (check,) = doctor._plugin()
    assert check.level == "error"
    assert "it fails, and verl doesn't say so" in check.message


def test_5_doctor_of_a_run_tells_what_was_observed_and_what_was_not_found(tmp_path, monkeypatch):
    said = "acme 1.0: 7 of 9 points are observed; not found: gone, lost; ray 2.60.0: 3 of 3 points are observed"
    with probe.start("doctor", run_dir=tmp_path / "run") as session:
        session.recording.tell_adapters = lambda: None
        session.recording.writer.mark(lambda: session.recording.writer.tell(adapters=said))
        session.flush()
    checks = [one for one in run_checks(str(tmp_path / "run")) if one.name == "frameworks"]
    assert [(one.level, one.message.partition(" (in")[0]) for one in checks] == [
        ("warning", "acme 1.0: 7 of 9 points are observed; not found: gone, lost"),
        ("ok", "ray 2.60.0: 3 of 3 points are observed"),
    ]


def test_5_all_tables_can_be_loaded_without_torch():
    code = (
        "import importlib, sys\n"
        "from probe.adapters.attachment import ADAPTERS\n"
        "for one in ('nemo_rl', 'openrlhf', 'ray', 'sglang', 'torchtitan', 'vllm'):\n"
        "    module, _, name = ADAPTERS[one].table.partition(':')\n"
        "    assert getattr(importlib.import_module(module), name)\n"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# ------------------------------------------------------------------------------------------------- what a wheel has


@pytest.mark.parametrize(
    ("group", "value"),
    [
        ("verl.plugins", "probe_rl.verl"),
        ("lightning.pytorch.callbacks_factory", "probe_rl.lightning:callbacks"),
        ("pytorch_lightning.callbacks_factory", "probe_rl.lightning:callbacks"),
        ("vllm.general_plugins", "probe_rl.engines:vllm"),
        ("sglang.srt.plugins", "probe_rl.engines:sglang"),
    ],
)
def test_1_the_installed_distribution_has_the_entry_points_of_frameworks(group, value):
    found = {one.name: one.value for one in metadata.entry_points(group=group) if one.dist.name == "probe-rl"}
    assert found == {"probe": value}


def test_1_a_wheel_has_the_entry_point_and_the_start_file(tmp_path):
    hatchling = pytest.importorskip("hatchling.builders.wheel", reason="builds the wheel")
    root = Path(probe.__file__).parents[1]
    (wheel,) = hatchling.WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entries = next(one for one in names if one.endswith("entry_points.txt"))
        assert "[verl.plugins]\nprobe = probe_rl.verl" in archive.read(entries).decode()
    assert "probe/adapters/startup/sitecustomize.py" in names
    assert "sitecustomize.py" not in names  # on nobody's path who hasn't asked for it


def test_1_named_in_verl_use_external_modules_the_plugin_observes(tmp_path):
    code = (
        "import probe.adapters.plugin; from probe.frameworks import attached;"
        "print([one.framework for one in attached()])"
    )
    env = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "other, probe.adapters.plugin"}
    env.pop("PROBE_RUN_DIR", None)
    done = python("-c", code, env=env)
    assert done.stdout == "['verl', 'ray']\n", done.stderr
