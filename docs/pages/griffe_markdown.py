"""An extension of griffe: roles and doctests become Markdown before mkdocstrings reads the sections."""

from __future__ import annotations

from typing import Any

import griffe

from pages.markdown import markdown


class MarkdownDocstrings(griffe.Extension):
    """Rewrites each docstring once."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
