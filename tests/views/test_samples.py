"""Questions and answers about samples: of the process beside a panel, and of those who ask it."""

from __future__ import annotations

import base64
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.runs.reader import Run
from probe.views.panel import static_bundle
from probe.views.panel.browsing import MOST_LINES, Browsing, kept, serve
from probe.views.panel.samples import Samples, question_of
from probe.views.server.panel import ServedPanel
from tests.told_samples import told_samples
from tests.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return told_samples(tmp_path_factory.mktemp("samples") / "run")


@pytest.fixture
def browsing(directory: Path) -> Any:
    made = Browsing(str(directory))
    yield made
    made.close()


def asked(browsing: Browsing, **question: Any) -> dict[str, Any]:
    """An answer as it comes out of the process: strict JSON, as a page reads it."""
    lines: list[str] = []
    serve(browsing, [json.dumps({"attempt": None, "step": 2, **question})], lines.append)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found: dict[str, Any] = json.loads(lines[0], parse_constant=refuse)
    return found


def test_a_window_of_lines_has_those_and_no_more(browsing: Browsing) -> None:
    whole = asked(browsing, of="rows", count=99)
    assert [line["kind"] for line in whole["lines"]] == ["group", *["answer"] * 3] * 2
    assert (whole["total"], whole["answers"], whole["kept"], whole["sampled"]) == (8, 6, 6, 6)
    window = asked(browsing, of="rows", **{"from": 3, "count": 2})
    assert (window["lines"], window["total"]) == (whole["lines"][3:5], 8)
    assert asked(browsing, of="rows", **{"from": 80, "count": 2})["lines"] == []
    group = whole["lines"][0]
    assert (group["group"], group["answers"], group["equal"], group["truncated"], group["dropped"]) == (
        "b",
        3,
        True,
        1,
        1,
    )
    assert (group["reward"], group["tokens"]) == (1.0, 6.0)


def test_an_answer_is_never_longer_than_its_limit(browsing: Browsing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.views.panel.browsing.MOST_LINES", 2)
    assert len(asked(browsing, of="rows", count=10**6)["lines"]) == 2 < MOST_LINES


def test_the_tokens_of_one_answer_come_alone(browsing: Browsing) -> None:
    lines = asked(browsing, of="rows", only="blocks")["lines"]
    line = next(one for one in lines if one["kind"] == "answer" and one["row"] == 1)
    told = asked(browsing, of="tokens", key=line["key"])
    numbers = {name: np.frombuffer(base64.b64decode(text), "<f4") for name, text in told["arrays"].items()}
    assert {len(one) for one in numbers.values()} == {told["tokens"]} == {4}
    assert (numbers["log_probs"] - numbers["rollout_log_probs"]).argmin() == told["answer"]["difference_at"] == 2
    assert (told["text"], told["prompt"], told["ids"]) == ("answer 1", "What is <b>0</b>?", [11] * 4)


def test_a_step_without_samples_says_where_there_are_some(browsing: Browsing) -> None:
    found = asked(browsing, of="rows", step=40)
    assert (found["kept"], found["near"], found["lines"]) == (0, 2, [])


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ({"of": "tokens", "key": ["nobody", 0, 0]}, "expected process, batch and row of an answer of step 2"),
        ({"of": "everything"}, "expected rows, tokens, batches, what_if, lanes or funnel"),
        ({"of": "rows", "sort": "colour"}, "expected one of difference"),
    ],
)
def test_what_cant_be_answered_is_refused_with_its_reason(
    browsing: Browsing, question: dict[str, Any], reason: str
) -> None:
    assert reason in asked(browsing, **question)["refused"]


def test_a_page_cant_ask_for_what_isnt_offered() -> None:
    good = {"of": "rows", "step": 2, "from": 0, "count": 60, "search": "a", "micro_batch": None}
    assert (
        question_of({**good, "v": 1, "t": "mark", "ask": "samples", "attempt": 3}) == good
    )  # the attempt is the panel's
    wrong: list[dict[str, Any]] = [
        {"of": "sql"},
        {"step": "2; drop"},
        {"step": True},
        {"step": None},
        {"from": -1},
        {"search": "x" * 201},
        {"sort": ["reward"]},
        {"micro_batch": 1.5},
        {"of": "tokens"},
        {"of": "tokens", "key": ["a", 1]},
        {"of": "tokens", "key": ["a", "1", 2]},
    ]
    assert [question_of({**good, **one}) for one in wrong] == [None] * len(wrong)


def test_nothing_is_read_before_somebody_asks_and_each_answer_goes_to_who_asked(directory: Path) -> None:
    panel = ServedPanel(str(directory))
    try:
        assert panel._samples.aside.process is None
        mark = {"v": 1, "t": "mark", "id": 4, "ask": "samples", "q": "mine", "of": "rows", "step": 2, "count": 3}
        answer = panel.message(mark)
        assert (answer["t"], answer["q"], answer["answer"]["total"]) == ("b", "mine", 8)
        assert "understood" in panel.message({**mark, "step": "two"})["answer"]["refused"]
        process = panel._samples.aside.process
    finally:
        panel.close()
    assert process is not None
    assert process.poll() is not None
    assert "was closed" in panel._samples.ask(mark, None)["answer"]["refused"]


def test_who_waits_in_a_kernel_is_told_by_another_thread_and_idle_processes_end(directory: Path) -> None:
    samples, told, done = Samples(str(directory), idle_s=0.2), [], threading.Event()

    def deliver(answer: dict[str, Any]) -> None:
        told.append((threading.current_thread(), answer))
        done.set()

    try:
        samples.submit({"q": "q", "of": "rows", "step": 2, "count": 1}, None, deliver)
        assert done.wait(PATIENCE_S)
        thread, answer = told[0]
        assert thread is not threading.current_thread()
        assert answer["answer"]["total"] == 8
        until(lambda: samples.aside.process, lambda process: process is None)
    finally:
        samples.close()


def test_a_saved_copy_keeps_the_worst_of_the_last_step_without_texts(directory: Path) -> None:
    with Run(directory) as run:
        found = kept(run)
    assert found is not None
    assert [line["row"] for line in found["rows"]["lines"]] == [4, 5, 3, 1, 0, 2]
    assert found["rows"]["step"] == 2
    assert len(found["tokens"]) == 4
    assert {(one["text"], one["prompt"]) for one in found["tokens"]} == {(None, None)}
    assert "What is" not in json.dumps(found)
    page = static_bundle.copy(overview(found), "key")["text/html"]
    assert "<details" in page
    assert "6 answers of step 2, the worst first" in page
    assert "−3" in page


def overview(samples: dict[str, Any] | None) -> static_bundle.Overview:
    return static_bundle.Overview(title="t", facts="f", hint="h", readings=[], samples=samples)


def test_names_of_users_are_text_in_a_saved_copy(directory: Path) -> None:
    with Run(directory) as run:
        found = kept(run)
    assert found is not None
    found["rows"]["lines"][0] |= {"group": "<script>x</script>", "ended": "<img src=x>"}
    page = static_bundle.copy(overview(found), "key")["text/html"]
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "samples" not in static_bundle.copy(overview(None), "key")["text/html"]
