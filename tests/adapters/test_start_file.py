"""The start file of ``probe run``: it waits for a framework and leaves everything else as it is."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from probe.adapters.attachment import ADAPTERS
from probe.adapters.startup import __path__ as startup
from probe.runs.reader import Run
from tests.adapters.start_file import ROOT, TIMER, package, python, variables

LOADED = (
    "import sys; print(sorted(one for one in sys.modules if one.partition('.')[0] in ('probe', 'torch', 'nemo_rl')))"
)

TRAINS = """
from nemo_rl.utils.timer import Timer
with Timer().time("generation"):
    pass
"""


@pytest.fixture
def nemo(tmp_path: Path) -> Path:
    return package(tmp_path / "packages", "nemo_rl", **{"utils.timer": TIMER})


def test_4_the_start_file_waits_for_the_packages_of_all_adapters():
    tree = ast.parse((Path(startup[0]) / "sitecustomize.py").read_text())
    found = next(one.value for one in tree.body if isinstance(one, ast.Assign) and one.targets[0].id == "PACKAGES")
    assert set(ast.literal_eval(found)) == {one.package for one in ADAPTERS.values()}


def test_4_a_process_that_imports_no_framework_loads_nothing_more(tmp_path, nemo):
    modules = "import sys; print(sorted(sys.modules))"
    without = python("-c", modules, env={**os.environ, "PYTHONPATH": ROOT}).stdout
    observed = python("-c", modules, env=variables(tmp_path / "run", nemo)).stdout
    assert "sitecustomize" in eval(observed)
    assert set(eval(observed)) - set(eval(without)) <= {"sitecustomize"}  # some Pythons have one of their own
    assert not (tmp_path / "run").exists()


def test_4_a_framework_is_attached_as_it_is_imported_and_torch_is_not(tmp_path, nemo):
    code = "import nemo_rl.utils.timer; " + LOADED
    done = python("-c", code, env=variables(tmp_path / "run", nemo))
    assert done.returncode == 0, done.stderr
    loaded = eval(done.stdout)
    assert "probe.adapters.nemo_rl" in loaded
    assert not {"torch", "probe.session"} & set(loaded)


def test_4_a_process_records_at_the_first_thing_that_is_observed(tmp_path, nemo):
    done = python("-c", TRAINS, env=variables(tmp_path / "run", nemo))
    assert (done.returncode, done.stderr) == (0, "")
    with Run(tmp_path / "run") as run:
        assert set(run.memory["phase"].dropna()) == {"generation"}
        assert "nemo_rl: 1 of 5 points" in run.processes["adapters"].iloc[-1]


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_4_out_of_reach_is_what_the_page_says(tmp_path, nemo, flag):
    code = f"import sys\nsys.path[:0] = [{str(nemo)!r}]\n{TRAINS}\n{LOADED}"
    done = python(flag, "-c", code, env=variables(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "probe" not in done.stdout
    assert not (tmp_path / "run").exists()


def test_4_a_container_with_a_start_file_of_its_own_is_out_of_reach_as_the_page_says(tmp_path, nemo):
    """Its image's PYTHONPATH takes the place of ours: its own start file runs, and the program as without probe."""
    own = tmp_path / "image"
    own.mkdir()
    (own / "sitecustomize.py").write_text(THEIRS)
    env = variables(tmp_path / "run", nemo) | {"PYTHONPATH": os.pathsep.join([str(own), str(nemo), ROOT])}
    done = python(
        "-c", f"{TRAINS}\nimport builtins, sys; print(hasattr(builtins, 'theirs'), 'probe' in sys.modules)", env=env
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True False\n", "")
    assert not (tmp_path / "run").exists()
    page = Path(ROOT, "docs", "frameworks", "probe_run.md").read_text(encoding="utf-8")
    assert "**`python -I`, `-E` and `-S`**" in page
    assert "If the image has its own `PYTHONPATH` and start file" in page


def test_4_children_of_multiprocessing_and_of_the_shell_are_of_the_same_run(tmp_path, nemo):
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing, subprocess, sys\n"
        f"def train():\n    {TRAINS.strip().replace(chr(10), chr(10) + '    ')}\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=train, name='spawned')\n"
        "    child.start(); child.join()\n"
        f"    subprocess.run([sys.executable, '-c', {TRAINS!r}], check=True)\n"
        "    train()\n"
    )
    done = python(str(script), env=variables(tmp_path / "run", nemo))
    assert done.returncode == 0, done.stderr
    with Run(tmp_path / "run") as run:
        assert run.attempts == [1]
        assert set(run.processes["process"]) == {"spawned", "python", "train"}


def test_4_probe_off_observes_nothing(tmp_path, nemo):
    done = python("-c", TRAINS, env=variables(tmp_path / "run", nemo, PROBE="off"))
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "run").exists()


def test_4_without_probe_in_its_environment_a_process_goes_on_and_says_so(tmp_path, nemo):
    """An environment of its own, as NeMo-RL gives its workers."""
    env = variables(tmp_path / "run", nemo)
    env["PYTHONPATH"] = os.pathsep.join([startup[0], str(nemo)])
    own = make_venv(tmp_path)
    done = python("-c", TRAINS + "print('trained')", env=env, program=own, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("\n") == 1
    assert "probe can't observe process" in done.stderr


# -------------------------------------------------------------------------------- a start file that was there before

THEIRS = "import builtins, os\nbuiltins.theirs = os.getpid()\n"
ASKS = (
    "import sys, builtins; print(getattr(builtins, 'theirs', None) is not None, sys.modules['sitecustomize'].__file__)"
)


def make_venv(folder: Path) -> str:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    return str(folder / "venv" / "bin" / "python")


@pytest.mark.parametrize("place", ["on PYTHONPATH", "in site-packages", "of the user"])
def test_4_a_start_file_that_was_there_before_is_run_too(tmp_path, nemo, place):
    own = make_venv(tmp_path)
    folders = {
        "on PYTHONPATH": tmp_path / "before",
        "in site-packages": next((tmp_path / "venv" / "lib").glob("python*/site-packages")),
        "of the user": tmp_path / "linked",
    }
    folder = folders[place]
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(THEIRS)
    if place == "of the user":  # a directory that a .pth file adds
        (folders["in site-packages"] / "more.pth").write_text(f"{folder}\n")
    path = [nemo, folder] if place == "on PYTHONPATH" else [nemo]
    done = python(
        "-c",
        f"{ASKS}; import nemo_rl.utils.timer; print('probe.hooks' in sys.modules)",
        env=variables(tmp_path / "run", *path),
        program=own,
    )
    said = done.stdout.split()
    before = os.pathsep.join([str(one) for one in path] + [ROOT])
    without = python("-c", ASKS, env={**os.environ, "PYTHONPATH": before}, program=own).stdout.split()
    if without[1] != str(folder / "sitecustomize.py"):  # a Python that has one of its own finds that first
        assert place != "on PYTHONPATH"
        assert not Path(without[1]).is_relative_to(tmp_path)
    assert said[:2] == without, done.stderr
    assert "probe can't observe" in done.stderr or said[2] == "True"  # ours is there: the venv has no msgspec


ERRORS = {
    "an error": "raise ValueError('theirs')",
    "a module that isn't there": "import not_there_at_all",
    "the end": "raise SystemExit(3)",
    "a path that it changes": "import sys; sys.path.append('/theirs')",
    "no error": THEIRS,
}


@pytest.mark.parametrize("what", ERRORS)
def test_4_errors_of_another_start_file_are_as_without_ours(tmp_path, what):
    before = tmp_path / "before"
    before.mkdir()
    (before / "sitecustomize.py").write_text(ERRORS[what])
    code = "import sys; print('went on', 'sitecustomize' in sys.modules, '/theirs' in sys.path)"
    without = python("-c", code, env={**os.environ, "PYTHONPATH": f"{before}:{ROOT}"})
    observed = python("-c", code, env=variables(tmp_path / "run", before))
    assert (observed.returncode, observed.stdout) == (without.returncode, without.stdout)
    if what == "the end":  # the traceback of this one goes through our file, too
        assert observed.stderr.splitlines()[-1] == without.stderr.splitlines()[-1]
    else:
        assert observed.stderr == without.stderr


def test_4_the_path_is_as_it_was_but_for_one_entry(tmp_path, nemo):
    code = "import sys; print(sys.path)"
    without = python("-c", code, env={**os.environ, "PYTHONPATH": f"{nemo}:{ROOT}"}).stdout
    observed = python("-c", code, env=variables(tmp_path / "run", nemo)).stdout
    assert [one for one in eval(observed) if one != startup[0]] == eval(without)
    again = variables(tmp_path / "run", nemo)
    assert variables(tmp_path / "run", nemo)["PYTHONPATH"].count(startup[0]) == 1
    assert again["PYTHONPATH"].startswith(startup[0])
