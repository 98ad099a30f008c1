"""The structure is tested like behaviour: exports, import cost, the README's commands, the docs' tables."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import probe

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "probe").rglob("*.py")
    if path.stem != "__main__"
)


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


#: What is written by hand: the panel's bundle is built.
SOURCES = [
    path
    for folder in ("probe", "probe_rl", "tests", "docs", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".js", ".css", ".ts"}
    and "labextension" not in path.parts
    and path.name not in {"panel.js", "panel.css"}
]
MOST_LINES = 500


def test_no_file_is_longer_than_a_reader_keeps_in_mind():
    assert len(SOURCES) > 1_000
    long = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in long.items() if lines > MOST_LINES} == {}


@pytest.mark.parametrize("name", sorted(probe.EXPORTS))
def test_every_export_is_there(name):
    module, attribute = probe.EXPORTS[name].split(":")
    assert getattr(probe, name) is getattr(import_module(module), attribute)
    assert name in dir(probe)


def test_type_checkers_see_the_same_exports():
    tree = ast.parse((ROOT / "probe" / "__init__.py").read_text())
    (block,) = [one for one in tree.body if isinstance(one, ast.If)]
    imported = [alias for one in block.body if isinstance(one, ast.ImportFrom) for alias in one.names]
    given = {one.targets[0].id for one in block.body if isinstance(one, ast.Assign)}
    # A name that is imported `as` itself, or assigned, is one that strict type checkers let others have.
    assert {alias.name for alias in imported if alias.asname == alias.name} | given == set(probe.EXPORTS)


def test_strict_type_checkers_let_users_have_them(tmp_path):
    """Without the settings of ours that an installed package doesn't come with. For the names no import is followed."""
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "__init__.py").write_text((ROOT / "probe" / "__init__.py").read_text())
    used = tmp_path / "used.py"
    used.write_text("import probe\n\n" + "".join(f"print(probe.{name})\n" for name in sorted(probe.EXPORTS)))
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=skip", "--config-file="]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    command += ["probe/__init__.py", "used.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = probe.nonsense


def test_importing_probe_brings_nothing_heavy():
    loaded = json.loads(
        run_python("import sys, json; import probe; print(json.dumps([m for m in sys.modules if '.' not in m]))")
    )
    assert not {"torch", "numpy", "pandas", "plotly", "msgspec", "tensordict"} & set(loaded)


@pytest.mark.slow
def test_a_training_worker_never_loads_what_only_views_need():
    code = (
        "import sys, json, tempfile, pathlib; import probe\n"
        "with probe.start('p', 'e', run_dir=pathlib.Path(tempfile.mkdtemp()) / 'run') as session:\n"
        "    with session.step(1), probe.phase('update'): pass\n"
        "print(json.dumps([m for m in sys.modules if '.' not in m]))"
    )
    assert not {"pandas", "plotly", "ipywidgets"} & set(json.loads(run_python(code)))


@pytest.mark.parametrize("module", MODULES)
def test_every_module_imports_on_its_own_and_quietly(module):
    # One process for all would hide an import cycle behind the first import; spawning one each costs too much.
    import_module(module.removesuffix(".__init__"))


# ------------------------------------------------------------------------------------------- commands and what they run

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = dict(re.findall(r"^([a-z0-9-]+):(?!=)[^\n]*\n((?:\t[^\n]*\n)+)", MAKEFILE, re.MULTILINE))
CI = (ROOT / ".ci" / "run").read_text()


def commands_named(page: str) -> set[str]:
    """The targets of make that a page tells its reader to run."""
    text = (ROOT / page).read_text()
    return set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", text, re.MULTILINE))


def test_pages_name_commands_that_the_makefile_has():
    assert {"demo", "check", "test"} <= commands_named("README.md") <= set(TARGETS)
    assert {"demo", "check", "test", "lint", "fuzz"} <= commands_named("CONTRIBUTING.md") <= set(TARGETS)


def test_the_readme_s_test_command_leaves_nothing_out_and_is_what_ci_runs():
    assert TARGETS["test"].split() == ["$(BIN)/python", "$(TWICE)", "$(WORKERS)"]
    assert "\nTWICE := tests/twice.py --durations 40 --durations-min 10\n" in MAKEFILE
    assert re.search(r"^WORKERS := -n \$\(JOBS\) --dist \w+$", MAKEFILE, re.MULTILINE)
    assert re.search(r"^make test$", CI, re.MULTILINE)


def test_make_check_is_lint_and_the_tests_without_patience():
    assert TARGETS["check"].split()[-2:] == ["lint", "quick"]
    (chosen,) = re.findall(r"^QUICK := (.+)$", MAKEFILE, re.MULTILINE)
    assert '-m "$(QUICK)"' in TARGETS["quick"]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    markers = {one.split(":")[0] for one in settings["markers"]}
    left_out = set(chosen.removeprefix("not ").split(" and not "))
    assert {"slow", "browser", "multiprocess"} == left_out <= markers


@pytest.mark.slow
def test_tests_pass_where_sigint_is_ignored():
    """A shell starts a background job so, and whatever that starts inherits it."""
    one = "tests/publishing/test_publisher.py::test_ctrl_c_while_the_last_edition_is_made_leaves_nothing_behind"
    command = f"trap '' INT; exec {sys.executable} -m pytest -q -p no:cacheprovider {one}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout


def test_a_failure_is_looked_at_twice_in_every_target_of_ci_and_told_at_its_end():
    for name, recipe in TARGETS.items():
        if name == "test" or name.startswith("test-"):
            assert "$(TWICE)" in recipe
            assert "-m pytest" not in recipe
    assert "UNSTABLE=test-artifacts/unstable.txt" in CI
    assert CI.splitlines()[-1].startswith("[ ! -s $UNSTABLE ] ||")


def test_ci_runs_every_command_that_can_fail():
    lines = CI.replace("\\\n", " ").splitlines()
    ran = {word for line in lines if line.startswith("make ") for word in line.split()}
    assert {"lint", "demo", "docs", "test", *(name for name in TARGETS if name.startswith("test-"))} <= ran


@pytest.mark.slow
def test_every_hook_point_stands_in_the_docs_and_their_page_is_current():
    # In a process of its own: other tests make points, too. It imports all there is, so that one has to do for both.
    modules = [module.removesuffix(".__init__") for module in MODULES]
    code = (
        f"import json, sys; from importlib import import_module\nfor name in {modules!r}: import_module(name)\n"
        "from probe import hooks; points = {name: one.about for name, one in hooks.points().items()}\n"
        f"sys.path.insert(0, {str(ROOT / 'docs')!r}); import make_hooks\n"
        "print(json.dumps([points, make_hooks.page()]))"
    )
    ours, page = json.loads(run_python(code))
    documented = set(re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs" / "hooks.md").read_text(), re.MULTILINE))
    assert all(ours.values()), f"points without a word about them: {[n for n, about in ours.items() if not about]}"
    assert documented == set(ours)
    assert page == (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8"), "run python docs/make_hooks.py"


def test_no_user_error_is_an_assert():
    for path in (ROOT / "probe").rglob("*.py"):
        asserts = re.findall(r"^\s+assert .*$", path.read_text(), re.MULTILINE)
        assert not asserts, f"{path.name}: {asserts}"


def test_nothing_names_a_registry_host_or_prints_in_the_library():
    for path in (ROOT / "probe").rglob("*.py"):
        if "cli" in path.parts or "demo" in path.parts:
            continue
        assert not re.search(r"^\s+print\(", path.read_text(), re.MULTILINE), path
