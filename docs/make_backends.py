"""Writes the tables of docs/backends.md from the backends' classes: ``python docs/make_backends.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pages.backends import PAGE
from pages.inserts import filled

if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), keep_marks=True), encoding="utf-8")
