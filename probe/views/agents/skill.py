"""The skill file: what an agent is told of how to ask, in the form that agents take such files."""

from __future__ import annotations

from importlib import resources


def skill() -> str:
    """``SKILL.md``: Markdown behind a head with ``name`` and ``description``."""
    return (resources.files("probe.views.agents") / "SKILL.md").read_text(encoding="utf-8")
