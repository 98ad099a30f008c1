"""Tools read the docstrings: ``docs/check_docstrings.py`` finds nothing, and finds what is wrong where something is."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(importlib.util.find_spec("griffe") is None, reason="griffe isn't installed")


@pytest.fixture(scope="module")
def check() -> Iterator[ModuleType]:
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("check_docstrings", ROOT / "docs" / "check_docstrings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


@pytest.mark.slow
def test_tools_read_every_docstring(check: ModuleType) -> None:
    assert [*check.problems(), *check.problems("probe_rl")] == []


def test_the_front_door_is_among_what_needs_arguments(check: ModuleType) -> None:
    root = check._loaded("probe", ROOT)
    shown = {one.path for one in check.shown(root)}
    assert {
        "probe.session.starting.start",
        "probe.core.protocol.DataProto.concat",
        "probe.core.protocol.DataProto.select",  # of a base class
        "probe.inspection.inspector.inspect",
    } <= shown
    assert "probe.core.seqlen_balancing.karmarkar_karp" not in shown  # it is met where it is defined
    assert "probe.core.balancing.partition.karmarkar_karp" in shown


GOOD = '''
class Thing:
    """A thing.

    Args:
        size: How large it is.

    Attributes:
        size: How large it is.
        weight: How heavy it is.

    Raises:
        ValueError: It is negative.
        probe.errors.InputError: It is too large.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.weight: float = 1.0

    @staticmethod
    def make(*sizes: int, **rest: float) -> None:
        """Make several.

        Args:
            *sizes: One for each,
                on two lines.
            **rest: What else there is.

        Returns:
            Nothing: it
            makes.

        Raises:
            InputError: It can't.
            json.JSONDecodeError: It can't be read.
        """
'''


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("", "", None),
        ("size: How large it is.\n\n    Attr", "width: How large it is.\n\n    Attr", "got width, expected size"),
        ("*sizes: One for each,\n                on", "*sizes: One for each,\n            on", "Failed to get"),
        ("            **rest: What else there is.\n", "", "got *sizes, expected *sizes, **rest"),
        ("*sizes: One for each", "sizes: One for each", "got sizes, **rest, expected *sizes, **rest"),
        (
            "*sizes: One for each,\n                on two lines.\n            **rest: ",
            "*sizes, **rest: ",
            "got *sizes,",
        ),
        ("        weight: How", "        colour: How", "there is no colour"),
        ("ValueError: It", "ValueError, TypeError: It", "is no class of an exception"),
        ("ValueError: It", "Thing: It", "Thing is no class of an exception"),
        ("json.JSONDecodeError", "json.NoSuchError", "json.NoSuchError is no class of an exception"),
        ("probe.errors.InputError: It is too large", "ValueError: It is too large", "an exception has two entries"),
        ("InputError: It can't.", "InputError:", "an entry says nothing"),
    ],
)
def test_what_tools_misread_is_found(check: ModuleType, tmp_path: Path, good: str, bad: str, said: str | None) -> None:
    assert good in GOOD
    (tmp_path / "planted.py").write_text(GOOD.replace(good, bad) if good else GOOD)
    found = check.problems("planted", tmp_path)
    if said is None:
        assert found == []
    else:
        assert any(said in one for one in found), found


def test_what_is_shown_says_its_arguments_and_begins_with_a_sentence(check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(
        'def two(a: int, b: int) -> None:\n    """It takes two."""\n'
        'def one(a: int) -> None:\n    """it takes one"""\n'
        'def good(a: int) -> None:\n    """It takes one."""\n'
    )
    root = check._loaded("planted", tmp_path)
    found = [said for name in ("two", "one", "good") for said in check._of_shown(root[name])]
    assert len(found) == 2
    assert "expected an Args section, as it takes a, b" in found[0]
    assert "expected it to begin with a sentence" in found[1]


def test_what_a_class_shows_of_its_bases_is_read_too(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "__init__.py").touch()
    (tmp_path / "planted" / "base.py").write_text(
        'class Base:\n    """A base."""\n\n'
        '    def two(self, a: int, b: int) -> None:\n        """It takes two."""\n\n'
        '    def one(self, a: int) -> None:\n        """It takes one.\n\n'
        '        Args:\n            c: Not there.\n        """\n'
    )
    (tmp_path / "planted" / "whole.py").write_text(
        'from planted.base import Base\n\n\nclass Whole(Base):\n    """All."""\n'
    )
    found = [one for one in check.problems("planted", tmp_path) if "Args: got c, expected a" in one]
    assert len(found) == 1  # where it is defined
    assert "planted.base.Base.one" in found[0]
    whole = check._loaded("planted", tmp_path)["whole.Whole"]
    assert [one.path for one in check._with_methods(whole)] == ["planted.whole.Whole"]
    monkeypatch.setattr(check.api, "WITH_INHERITED", frozenset({"planted.whole.Whole"}))
    said = [line for one in check._with_methods(whole) for line in check._of_shown(one)]
    assert len(said) == 1
    assert "Whole.two" in said[0]
    assert "base.py" in said[0]
    assert "expected an Args section, as it takes a, b" in said[0]
