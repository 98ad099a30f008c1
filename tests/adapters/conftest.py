"""A framework of our own making, a package on disk, imported as any other; and stand-ins for those of others."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.adapters import attachment
from probe.adapters.seams import Seam
from probe.frameworks import attached
from probe.hooks import subscribe
from tests.adapters.heard import Told
from tests.adapters.stand_ins import REAL, STAND_INS
from tests.adapters.start_file import package

ENGINE = """
    import asyncio

    def register(function):
        function.mode = "dispatched"
        return function

    @register
    def pack(lengths, cap=8, *, strict=True):
        "Cut lengths."
        if cap < 1:
            raise ValueError("cap")
        return [[one] for one in lengths]

    class Base:
        def inherited(self):
            return "base"

    class Engine(Base):
        @register
        def forward(self, batch, scale=2):
            return [scale * one for one in batch]

        @staticmethod
        def still(x):
            return x + 1

        @classmethod
        def of(cls, x):
            return cls, x

        async def sync(self, step):
            await asyncio.sleep(0)
            return step
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package ``acme``, not imported yet: ``acme.engine`` and ``acme.trainer``, which takes copies of it."""
    package = tmp_path / "packages" / "acme"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "engine.py").write_text(textwrap.dedent(ENGINE))
    (package / "later.py").write_text("def save(): ...\n")
    (package / "trainer.py").write_text("from acme.engine import pack as cut, Engine\n")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delenv("PROBE_RUN_DIR", raising=False)
    yield package
    for one in attached():
        one.detach()
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
        del sys.modules[name]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the framework "acme" these seams."""

    def give(*seams: Seam) -> None:
        monkeypatch.setattr(sys.modules[__name__], "SEAMS", seams, raising=False)
        made = attachment.Adapter(f"{__name__}:SEAMS", "acme", "acme")
        monkeypatch.setitem(attachment.ADAPTERS, "acme", made)

    return give


@pytest.fixture
def frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Puts a framework's stand-in on the path, or takes the real one; gives a function that imports of it."""
    folder = tmp_path / "packages"
    for name, modules in STAND_INS.items():
        if name not in REAL:
            package(folder, name, **modules)
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module
    for one in attached():
        one.detach()
    for name in [name for name in sys.modules if name.partition(".")[0] in STAND_INS]:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    with probe.start("others", run_dir=tmp_path / "run") as opened:
        yield opened


@pytest.fixture
def told() -> Iterator[Callable[..., Told]]:
    """Listens to points until the test ends."""
    subscriptions = []

    def listen(*points: str) -> Told:
        listener = Told()
        subscriptions.append(subscribe(listener, *points))
        return listener

    yield listen
    for one in subscriptions:
        one.close()
