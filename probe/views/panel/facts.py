"""What is said of a run that is followed: its title, how far it is, and one line of facts."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from probe.live.feed import Feed


def title_of(feed: Feed) -> str:
    """Project and experiment."""
    return f"{feed.info.project} / {feed.info.experiment or Path(feed.path).name}"


def progress(feed: Feed) -> tuple[int | None, ...]:
    """Numbers one of which is another as soon as a copy would show anything else."""
    return (feed.step, feed.complete_step, *(table.next for table in feed.tables.values()))


def facts_of(feed: Feed, state: dict[str, Any]) -> str:
    """Ranks, step, how it goes on, when it started, and what was left out, on one line.

    Args:
        feed: Follows the run.
        state: What the panel tells beside its tables.
    """
    ranks = f"{feed.world_size} rank{'' if feed.world_size == 1 else 's'}" if feed.world_size else "no rank yet"
    complete = feed.complete_step
    step = "no step yet" if feed.step is None else f"up to step {feed.step if complete is None else complete}"
    ended = state["ended"]["sentence"] if state["ended"] else "finished"
    how = ended if state["finished"] else "recording" if state["live"] else "panel closed"
    if state["newest_at"] is not None and not state["finished"]:
        newest = datetime.fromtimestamp(state["newest_at"]).astimezone()
        said = "its process is gone, last row at" if state["writers"] == "gone" else "no rows since"
        how = f"{said} {newest:%Y-%m-%d %H:%M}"
    started = feed.info.started_at.replace("T", " ")[:16]
    dropped = f"{state['dropped']} rows dropped" if state["dropped"] else ""
    told = (ranks, step, how, f"started {started}" if started else "", dropped, state["repeated"].rstrip("."))
    return " · ".join(filter(None, told))
