"""Writes into the pages what their blocks print: ``python docs/make_outputs.py [PAGE ...]``; a test compares."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

from pages import blocks  # noqa: E402  (found through the line above)


def written(text: str, name: str) -> str:
    """The page with the outputs that its blocks have now."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        shutil.copytree(DOCS / "example_run", "runs/first")
        for block, printed in reversed(list(blocks.run(text, name))):
            text = text[: block.span[0]] + printed + text[block.span[1] :]
    return text


def main() -> None:
    """Rewrite the pages that are named, or all hand-written ones."""
    for page in [Path(one).resolve() for one in sys.argv[1:]] or sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if "<!-- output -->" in text:
            page.write_text(written(text, str(page)), encoding="utf-8")


if __name__ == "__main__":
    main()
