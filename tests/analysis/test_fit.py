"""The robust fit: known coefficients come back, outliers don't bend it, intervals hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from probe.analysis.fit import fit, student


def drawn(random, count, sigma=1.0):
    rows = np.c_[np.ones(count), random.uniform(0, 10, count), random.uniform(5, 6, count)]
    return rows, rows @ [3.0, 2.0, -1.0] + random.normal(0, sigma, count)


def test_3_intervals_hold_93_to_97_percent_of_2000_draws():
    random, inside = np.random.default_rng(0), 0
    for _ in range(2000):
        rows, values = drawn(random, 41)
        found = fit(["one", "x", "y"], rows[:-1], values[:-1])
        reach = found.reach() * found.spread(rows[-1])[0]
        inside += abs(values[-1] - found.mean(rows[-1:])[0]) <= reach
    assert 0.93 <= inside / 2000 <= 0.97


def test_3_outliers_do_not_bend_it_and_are_counted():
    random = np.random.default_rng(1)
    rows, values = drawn(random, 400, sigma=0.1)
    values[:40] += 50
    found = fit(["one", "x", "y"], rows, values)
    assert found["x"] == pytest.approx(2.0, abs=0.02)
    assert 40 <= found.outliers <= 45
    assert found.sigma == pytest.approx(0.1, rel=0.15)


def test_3_an_exact_line_is_found_and_what_cannot_be_told_apart_is_none():
    rows = np.c_[np.ones(20), np.arange(20.0)]
    found = fit(["one", "x"], rows, 3 + 2 * np.arange(20.0))
    assert found.coefficients == pytest.approx([3, 2])
    assert found.outliers == 0
    assert fit(["one", "x", "again"], np.c_[rows, 2 * rows[:, 1]], np.arange(20.0)) is None
    assert fit(["one", "x"], rows[:6], np.arange(6.0)) is None


def test_the_quantiles_of_student_are_those_of_the_tables():
    for freedom, told in ((5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)):
        assert student(0.975, freedom) == pytest.approx(told, abs=0.01)
