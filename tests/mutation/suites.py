"""Which tests hold a module: those of its own path, those named after it, those that import it."""

from __future__ import annotations

import re
from pathlib import Path

#: Tests of a package beside ``tests/<the same path>``: where others hold its lines too.
MORE_TESTS: dict[str, tuple[str, ...]] = {
    "probe/analysis": ("tests/figures", "tests/views/test_report.py"),
    "probe/dashboards": ("tests/figures", "tests/publishing"),
    "probe/figures": ("tests/views/test_report.py",),
    "probe/live": (
        "tests/views/test_panel.py",
        "tests/views/test_panel_thread.py",
        "tests/cli/test_cli_tail.py",
        "tests/cli/test_cli_tail_following.py",
    ),
    "probe/publishing": ("tests/tracking/test_tracking_media.py",),
    "probe/recorders": ("tests/test_session.py",),
}


def suite_for(tree: Path, target: str, module: str) -> list[str]:
    """The files whose tests hold a module, those first that kill soonest.

    First the module itself, where it has examples, then the test files named after it, then those that import it.
    """
    path = Path("tests") / Path(target).relative_to("probe")
    own = path.with_name(f"test_{path.name}") if path.suffix else path
    places = [
        own.as_posix(),
        *(more for start, tests in MORE_TESTS.items() if target.startswith(start) for more in tests),
    ]
    files = dict.fromkeys(file for place in places for file in _test_files(tree, place))
    stem = Path(module).stem
    first = [module] if (tree / module).is_file() and ">>> " in (tree / module).read_text("utf-8") else []
    return first + sorted(files, key=lambda file: (stem not in Path(file).stem, not _imports(tree / file, module)))


def _imports(test: Path, module: str) -> bool:
    """Whether a test file imports a module, as a whole or a name of it."""
    package, _, stem = module.removesuffix(".py").replace("/", ".").rpartition(".")
    text = test.read_text("utf-8")
    wanted = rf"^\s*(from|import) {re.escape(package)}(\.{stem}\b| import [^\n]*\b{stem}\b)"
    return re.search(wanted, text, re.MULTILINE) is not None


def _test_files(tree: Path, place: str) -> list[str]:
    path = tree / place
    files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path] if path.exists() else []
    return [file.relative_to(tree).as_posix() for file in files]
