"""Findings as a page is told them."""

from __future__ import annotations

from typing import Any

TOPICS = {"overview": "overview", "memory": "memory", "token_balance": "tokens", "reductions": "metrics"}
NOWHERE = dict.fromkeys(("step", "role", "phase", "micro_batch", "rank", "process"))


def finding(kind: str, name: str, sentence: str, topic: str = "overview", **more: Any) -> dict[str, Any]:
    """A finding as a page is told it."""
    where = {**NOWHERE, **more.pop("where", {})}
    return {
        "kind": kind,
        "name": name,
        "topic": topic,
        "sentence": sentence,
        "why": "",
        "since": None,
        "change": None,
        "where": where,
        **more,
    }
