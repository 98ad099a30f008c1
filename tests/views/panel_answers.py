"""Answers to what a page asks of its run, as the process beside a kernel gives them."""

from __future__ import annotations

from typing import Any

from probe.views.panel.browsing import Browsing
from tests.views import stub_host as host
from tests.waiting import until

#: Questions about samples that nobody has answered.
ASKED = "__host.sent.filter(({ ask, done }) => ask === 'samples' && !done)"


def answer(page: Any, browsing: Browsing) -> None:
    """Answer the next questions about samples, as the process beside a kernel does."""
    until(lambda: page.evaluate(ASKED))
    answer_all(page, browsing)


def answer_all(page: Any, browsing: Browsing) -> None:
    """Answer the questions that there are by now."""
    for question in page.evaluate(f"{ASKED}.map((one) => (one.done = 1, one))"):
        answers = browsing.answer({**question, "attempt": None})
        host.send(page, {"head": {"v": 1, "t": "b", "seq": 0, "q": question["q"], "answer": answers}})
