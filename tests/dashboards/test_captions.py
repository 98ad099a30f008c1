"""Captions: a reader takes in three short sentences beside a picture; what is longer stands on the panel's page."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from probe import dashboards
from probe.dashboards.quantities import quantities

#: Words that a sentence may have.
WORDS = 20


def sentences(text: str) -> list[str]:
    """The sentences of a text. A semicolon ends one too, or three sentences would become one that is as hard to read.

    >>> sentences("1.25 across ranks is much. Balance them; or wait.")
    ['1.25 across ranks is much.', 'Balance them;', 'or wait.']
    """
    return re.split(r"(?<=[.!?;])\s+", text.strip())


def captions() -> Iterator[tuple[str, str]]:
    """Each field of a text that is shown, by where it stands: one sentence each."""
    for board in dashboards.dashboards():
        yield f"{board.name}: about", board.about
        for panel in board.panels:
            yield from about(f"{board.name}: {panel.id}", panel.about)
            yield f"{board.name}: {panel.id}: missing", panel.missing
    for view in dashboards.views():
        yield f"views: {view.id}: about", view.about
        for shown in view.panels:  # of a panel that a dashboard has, what the live panel says of it
            yield from about(f"views: {view.id}: {shown.id}", shown.about)
            yield f"views: {view.id}: {shown.id}: missing", shown.missing
    for name, spec in (*quantities().items(), *((tile["id"], tile) for tile in dashboards.overview_tiles())):
        for field in ("means", "missing"):
            for key, text in spec.get(field, {}).items():
                yield f"quantities: {name}: {field}: {key}", text


def about(where: str, texts: dashboards.About) -> Iterator[tuple[str, str]]:
    """What a panel shows, how to read it and what to do."""
    for field in ("shows", "read", "do"):
        yield f"{where}: {field}", getattr(texts, field)


CAPTIONS = dict(captions())


@pytest.mark.parametrize("where", CAPTIONS)
def test_a_caption_is_one_short_sentence(where: str) -> None:
    text = CAPTIONS[where]
    told = sentences(text)
    assert len(told) == 1, f"{where} has {len(told)} sentences, expected one: {text}"
    words = len(told[0].split())
    assert words <= WORDS, f"{where} has {words} words, expected at most {WORDS}: {text}"
    assert text.endswith((".", "!", "?")), f"{where} ends without a full stop: {text}"
