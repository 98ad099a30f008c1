"""A framework of our own making: a package on disk, imported as any other."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probe import frameworks
from probe.adapters import attachment
from probe.adapters.seams import Seam

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
    for one in frameworks.attached():
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
