"""Issue 15: which answers of a large batch are kept, and that each one with its tokens has a row too."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from probe import hooks, testing
from probe.recorders.sample_choice import Seen, chosen
from probe.recorders.samples import SamplesRecorder
from probe.records import Row, Sample, TokenBlock, TokenFate


def recorded(step: int, answers: int, **options: Any) -> list[Row]:
    """The rows of one batch."""
    drawing = np.random.default_rng([step, answers])
    train = -drawing.exponential(1.0, (answers, 12))
    rollout = train + 0.1 * drawing.normal(size=(answers, 12))
    collect = testing.Collect(SamplesRecorder(**options))
    with hooks.subscribe(collect, *SamplesRecorder.points), hooks.scope("step", "step", step=step):
        probe.samples(
            drawing.integers(1, 13, answers).tolist(),
            log_probs=train,
            rollout_log_probs=rollout,
            advantages=drawing.integers(0, 2, answers) * 1.0,
            weight_versions=range(answers),
        )
    return collect.rows()


@pytest.mark.parametrize(
    ("answers", "kept", "blocks"), [(300, 128, 4), (64, 16, 15), (64, 9, 8), (64, 8, 8), (9, 4, 8)]
)
def test_15_1_each_answer_whose_tokens_are_kept_has_a_row(answers: int, kept: int, blocks: int) -> None:
    for step in range(8):
        rows = recorded(step, answers, kept=kept, blocks=blocks)
        samples = {row.row: row for row in rows if isinstance(row, Sample)}
        tokens = [row for row in rows if isinstance(row, TokenBlock)]
        assert len(samples) == kept
        assert len(tokens) == min(blocks, kept)
        assert {row.row for row in tokens} <= set(samples)
        for one in tokens:
            assert one.chosen_by in ("random", samples[one.row].chosen_by)
        assert {(row.kept_samples, row.kept_blocks) for row in rows if isinstance(row, TokenFate)} == {
            (kept, min(blocks, kept))
        }


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_held_answers_are_among_the_kept_ones_and_their_number_stays(count: int, places: int, data: Any) -> None:
    def of(some: Any) -> np.ndarray:
        return np.array(data.draw(st.lists(some, min_size=count, max_size=count)), np.float64)

    seen = Seen(of(st.integers(0, 1)), of(st.floats(0, 9)), of(st.integers(1, 9)), of(st.integers(0, 1)))
    held = chosen(seen, data.draw(st.integers(0, min(places, count))), 1)
    found = chosen(seen, places, 1, held)
    assert len(found) == min(places, count)
    assert set(held) <= set(found)
    assert list(found) == sorted(found)
    if len(found) < count:
        assert all(found[at] != "random" for at, reason in held.items() if reason != "random")


def test_15_1_drawn_rows_are_a_fair_draw_though_some_of_them_are_held() -> None:
    """Each answer that wasn't chosen by what it is has the same chance, and so has each pair of them."""
    count, places, blocks, steps = 26, 12, 4, 3000
    scores = np.arange(count) * 1.0
    seen = Seen(np.zeros(count), scores, scores[::-1].copy(), np.zeros(count))
    drawn, pairs = Counter[int](), Counter[tuple[int, int]]()
    for step in range(steps):
        found = chosen(seen, places, step, chosen(seen, blocks, step))
        random = [at for at, reason in found.items() if reason == "random"]
        drawn.update(random)
        pairs.update((a, b) for a in random for b in random if a < b)
    chances = set(range(count)) - {at for at, reason in found.items() if reason != "random"}
    assert set(drawn) == chances
    many, left = len(random), len(chances)
    for counter, chance in ((drawn, many / left), (pairs, many * (many - 1) / (left * (left - 1)))):
        error = np.sqrt(steps * chance * (1 - chance))
        off = np.array(list(counter.values())) - steps * chance
        assert np.abs(off).max() < 4.5 * error
        assert 0.5 < off.std() / error < 1.5
