"""Passes over a batch in later steps than its own: what they make known of its tokens, which stay as many."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import probe
from probe import hooks, testing
from probe.analysis.step_samples import StepSamples
from probe.recorders import sample_rows
from probe.recorders.samples import SamplesRecorder
from probe.records import LaterPasses, Sample, TokenFate


def recorded(steps: list[Any], **options: Any) -> list[list[Any]]:
    """The rows that each step has told as it ended."""
    recorder = SamplesRecorder(**options)
    found = []
    for number, tell in enumerate(steps):
        collect = testing.Collect(recorder)
        with hooks.subscribe(collect, *SamplesRecorder.points), hooks.scope("step", "step", step=number):
            tell()
        found.append(collect.rows())
    return found


def by_fate(rows: list[Any]) -> dict[str, int]:
    tokens: Counter[str] = Counter()
    for row in rows:
        if isinstance(row, TokenFate):
            tokens[row.fate] += row.tokens
    return {fate: many for fate, many in tokens.items() if many}


def trains(*rows: int, clipped: Any = None) -> Any:
    return lambda: probe.trained(list(rows), clipped=clipped)


def test_a_later_step_makes_known_what_was_clipped_and_what_carried() -> None:
    """TRL's case: an answer is trained in the step that samples it, or in the next, and some twice."""

    def first() -> None:
        probe.samples([2, 3, 1], advantages=[1.0, -1.0, 0.0], passes=1)
        probe.trained([0], clipped=[[1, 0, 0]])

    steps = recorded([first, trains(1, 2, clipped=[[1, 0, 1], [0, 0, 0]]), trains()])
    assert by_fate(steps[0]) == {"clipped": 1, "carried": 1, "clip_unknown": 3, "no_advantage": 1}
    moves = {(row.fate, row.tokens, row.samples) for row in steps[1] if isinstance(row, TokenFate)}
    assert moves == {("clip_unknown", -3, -1), ("clipped", 2, 1), ("carried", 1, 1)}
    assert {(row.step, row.trained_step) for row in steps[1]} == {(0, 1)}
    (later,) = [row for row in steps[1] if isinstance(row, LaterPasses)]
    assert (later.rows, later.passes, later.micro_batches) == ([1, 2], [1, 1], [-1, -1])
    assert (later.carried_tokens, later.clipped_tokens) == ([1, 0], [2, 0])
    assert steps[2] == []


def test_several_iterations_say_clipped_only_after_the_last_one() -> None:
    def first() -> None:
        probe.samples([2, 2], advantages=[1.0, 1.0], passes=3)
        probe.trained([0, 1], clipped=[[1, 0], [1, 1]])

    again = trains(0, 1, clipped=[[1, 1], [1, 0]])
    steps = recorded([first, again, again, again])
    assert [by_fate(rows) for rows in steps] == [
        {"carried": 1, "clip_unknown": 3},
        {"carried": 1, "clip_unknown": -1},
        {"clipped": 2, "clip_unknown": -2},
        {},  # a pass more than was told changes nothing that is known
    ]


def test_a_batch_that_was_told_whole_and_the_next_batch_end_it() -> None:
    """Passes are the last batch's; of one without ``passes`` none are expected, and it keeps nothing."""

    def sampled(passes: int | None) -> Any:
        def tell() -> None:
            probe.samples([2], advantages=[1.0], passes=passes)
            probe.trained([0], clipped=[[1, 1]])

        return tell

    again = trains(0, clipped=[[0, 0]])
    assert [by_fate(rows) for rows in recorded([sampled(None), again])] == [{"clipped": 2}, {}]
    assert [by_fate(rows) for rows in recorded([sampled(1), again])] == [{"clipped": 2}, {}]
    assert [by_fate(rows) for rows in recorded([sampled(2), sampled(2), again])] == [
        {"clip_unknown": 2},
        {"clip_unknown": 2},
        {"carried": 2, "clip_unknown": -2},
    ]


@given(st.data())
def test_15_3_over_all_steps_the_fates_sum_to_the_sampled_tokens_and_are_those_of_one_step(data: Any) -> None:
    """As if all passes had been told in the step that sampled the batch."""
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    width, answers, expected = max(lengths), len(lengths), data.draw(st.integers(1, 3))
    advantages = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=answers, max_size=answers))
    order = data.draw(st.permutations([at for at in range(answers) for _ in range(expected)]))
    flags = [data.draw(st.lists(st.booleans(), min_size=width, max_size=width)) for _ in order]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(order)), min_size=2, max_size=2)))

    def part(begin: int, end: int, tells: bool = False) -> Any:
        def tell() -> None:
            if tells:
                probe.samples(lengths, advantages=advantages, passes=expected)
            for at, clipped in zip(order[begin:end], flags[begin:end], strict=True):
                probe.trained([at], clipped=[clipped])

        return tell

    several = recorded([part(0, cuts[0], tells=True), part(*cuts), part(cuts[1], len(order))])
    (once,) = recorded([part(0, len(order), tells=True)])
    rows = [row for step in several for row in step]
    assert by_fate(rows) == by_fate(once)
    for end in range(1, 4):
        assert sum(by_fate([row for step in several[:end] for row in step]).values()) == sum(lengths)
    for fate in ("carried", "clipped", "clip_unknown"):
        told = [
            sum(row.samples for row in each if isinstance(row, TokenFate) and row.fate == fate) for each in (rows, once)
        ]
        assert told[0] == told[1]
    passes = Counter(at for row in rows if isinstance(row, LaterPasses) for at in np.repeat(row.rows, row.passes))
    assert all(len(row.micro_batches) == (row.passes or 0) for row in several[0] if isinstance(row, Sample))
    own = Counter({row.row: row.passes or 0 for row in several[0] if isinstance(row, Sample)})
    assert own + passes == Counter(order)


def test_the_ledger_the_browser_and_the_difference_read_both(tmp_path: Path) -> None:
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        with session.step(0):
            probe.samples([2, 3], prompt_tokens=[4, 4], advantages=[1.0, 1.0], passes=1)
            probe.trained([0], clipped=[[0, 0, 0]])
        early = session.run.ledger()  # nobody waits for the step that ends the batch
        with session.step(1):
            probe.trained([1], clipped=[[1, 1, 0]])
        with session.step(2):
            probe.samples([1], prompt_tokens=[4], advantages=[1.0], passes=1)
    with probe.open(tmp_path / "run") as run:
        book, first = run.ledger(), run.ledger(last=0)
        answers = StepSamples.read(run, 0).answers
        frame = run.table("later_passes")
        live = run.sql("select sum(tokens) as tokens from token_fates where step = 0")["tokens"][0]
        scalars = run.table("scalars")
    assert early is not None
    assert {line.fate: line.tokens for line in early.fates} == {"carried": 2, "clip_unknown": 3}
    assert first is not None
    assert {line.fate: (line.tokens, line.samples) for line in first.fates} == {"carried": (3, 2), "clipped": (2, 1)}
    assert (first.sampled_tokens, first.samples, live) == (5, 2, 5)
    assert book is not None
    assert book.tokens("clip_unknown") == 1
    assert book.sampled_tokens == 6
    assert [(one["passes"], one["carried_tokens"], one["clipped_tokens"]) for one in answers] == [(1, 2, 0), (1, 1, 2)]
    assert all(one["clip_unknown_tokens"] == 0 for one in answers)
    assert frame[["step", "trained_step"]].values.tolist() == [[0, 1]]
    # Metrics are of what a step sampled: the step that trains alone has none.
    sampled = scalars[scalars["key"] == "probe/samples/sampled_tokens"].set_index("step")["value"]
    assert sampled.to_dict() == {0: 5, 2: 1}


@pytest.mark.usefixtures("lenient")
def test_rows_that_fail_hold_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of later passes wait for those of the batch; where these can't be made nobody waits at the end."""

    def fails(*_: Any) -> Any:
        raise ValueError("theirs")

    monkeypatch.setattr(sample_rows, "chosen", fails)
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        with session.step(0):
            probe.samples([2], advantages=[1.0], passes=2)
        with session.step(1):
            probe.trained([0])
    with probe.open(tmp_path / "run") as run:
        incidents = run.incidents
    assert "not ready" not in " ".join(incidents["message"])
    assert len(incidents) == 1
