"""Limits of `probe check` on runs: what is compared in pairs, exactly, or not at all, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.analysis.limits import Limit, check
from probe.cli import main
from probe.errors import InputError
from probe.records import GIB, Memory, MicroBatch, Row, Scalar
from tests.sample_run import clock, open_run

STEPS = 40


def made(
    path: Path,
    times: Sequence[float],
    *,
    peaks: Sequence[float] = (),
    tokens: Sequence[int] = (),
    rewards: Sequence[float] = (),
    first: int = 0,
) -> Any:
    """A run of one rank with these step times (s), peaks (GiB), tokens and rewards."""
    rows: list[Row] = []
    now = clock(0)
    for at, took in enumerate(times):
        step, peak = first + at, int((peaks[at] if len(peaks) else 20) * GIB)
        stamp: dict[str, Any] = {
            "rank": 0, "step": step, "kind": "step", "name": "step", "scope": "step", "device": "cuda:0",
            "source": "cuda", "scope_id": step + 1, "allocated_bytes": 10 * GIB, "reserved_bytes": 60 * GIB,
            "device_total_bytes": 80 * GIB, "device_used_bytes": 61 * GIB, "non_torch_bytes": GIB,
        }  # fmt: skip
        rows.append(Memory(time_ns=now, edge="enter", **stamp))
        if len(tokens):
            rows.append(
                MicroBatch(
                    rank=0, time_ns=now + 1, step=step, batch_id=step, micro_batch=0, micro_batches=1, sequences=1,
                    lengths=[tokens[at]], indices=[0], tokens=tokens[at], width_tokens=tokens[at],
                    workload=float(tokens[at]), source="planted",
                )
            )  # fmt: skip
        if len(rewards):
            key = "reward/mean"
            rows.append(Scalar(rank=0, time_ns=now + 2, step=step, key=key, value=rewards[at], source="user"))
        now += int(took * 1e9)
        rows.append(
            Memory(
                time_ns=now, edge="leave", peak_allocated_bytes=peak, peak_reserved_bytes=peak, peak_kind="exact",
                host_duration_ns=int(took * 1e9), **stamp,
            )
        )  # fmt: skip
        now += 1_000_000
    return open_run(path, {0: rows})


def steps(seed: int, spread: float = 0.02, count: int = STEPS, mean: float = 1.0) -> Any:
    return mean * np.exp(spread * np.random.default_rng(seed).standard_normal(count))


def judged(base: Any, run: Any, *limits: str, side: Any = "max", confidence: float = 0.95) -> Any:
    return check(base, run, [Limit.of(one, side) for one in limits], confidence=confidence)


@pytest.mark.slow
def test_6_step_time_is_within_beyond_or_neither_and_the_sentence_says_how_sure(tmp_path: Path) -> None:
    with (
        made(tmp_path / "a", steps(1)) as a,
        made(tmp_path / "b", steps(2)) as b,
        made(tmp_path / "c", steps(3, mean=1.15)) as c,
        made(tmp_path / "d", steps(4, spread=0.3)) as d,
    ):
        (within,), (beyond,), (neither,) = (judged(a, one, "step=+5%") for one in (b, c, d))
        (sure,) = judged(a, b, "step=+5%", confidence=0.999)
    assert (within.verdict, within.kept, within.steps_needed) == ("within", True, None)
    assert within.change.paired
    assert within.change.steps == STEPS - 1  # the first is left out
    assert within.sentence().startswith("step_time is within its limit of +5 %: the typical step changes by ")
    assert "(95 % confidence; 39 pairs of steps)" in within.sentence()
    assert "Median: " in within.sentence()
    assert sure.change.interval[1] > within.change.interval[1]

    assert (beyond.verdict, beyond.kept) == ("beyond", False)
    assert ", at least +" in beyond.sentence()
    assert "Mean time of a step: " in beyond.sentence()
    assert "differ as much" not in beyond.sentence()

    assert (neither.verdict, neither.kept) == ("not_shown", None)
    assert neither.steps_needed > STEPS
    assert "step_time is not shown to be within its limit of +5 %: " in neither.sentence()
    assert f"About {neither.steps_needed:,} steps of each run would tell" in neither.sentence()


def test_6_steps_with_the_same_tokens_are_said_to_have_them_and_one_other_step_is_enough_not_to(tmp_path: Path) -> None:
    sizes = [int(one) for one in steps(0, spread=0.5, mean=1000)]
    took, other = (np.array(sizes) * steps(seed, spread=0.01) for seed in (1, 2))
    with (
        made(tmp_path / "a", took, tokens=sizes) as a,
        made(tmp_path / "b", other, tokens=sizes) as b,
        made(tmp_path / "c", other, tokens=[*sizes[:-1], sizes[-1] + 1]) as c,
    ):
        (same, tokens), (differs, counted) = (judged(a, one, "step=+2%", "tokens=+0%") for one in (b, c))
    assert same.same_tokens
    assert "39 pairs of steps, with the same tokens in each" in same.sentence()
    assert same.verdict == differs.verdict == "within"  # batches drop out step by step
    assert not differs.same_tokens
    assert tokens.change.is_constant
    assert tokens.verdict == "within"
    assert "tokens is within its limit of +0 %: it is the same in each of 39 steps" in tokens.sentence()
    assert counted.verdict != "beyond"  # one token in one step


def test_6_runs_without_a_step_in_common_are_compared_as_a_whole(tmp_path: Path) -> None:
    with made(tmp_path / "a", steps(1)) as a, made(tmp_path / "b", steps(2, count=25), first=100) as b:
        (one,) = judged(a, b, "step=+5%")
    assert one.verdict == "within"
    assert not one.change.paired
    assert not one.same_tokens
    assert "; 24 steps)" in one.sentence()


@pytest.mark.slow
def test_6_a_change_of_the_peak_is_of_the_typical_step_and_a_larger_largest_one_is_no_pass(tmp_path: Path) -> None:
    peaks = steps(1, spread=0.005, mean=40)
    spike = [*peaks[:-1], 50.0]
    with (
        made(tmp_path / "a", steps(1), peaks=peaks) as a,
        made(tmp_path / "b", steps(2), peaks=steps(2, spread=0.005, mean=40)) as b,
        made(tmp_path / "c", steps(3), peaks=spike) as c,
        made(tmp_path / "d", steps(4), peaks=steps(4, spread=0.005, mean=44)) as d,
    ):
        (fine,), (spiked, absolute), (more,) = (
            judged(a, b, "peak=+3%"),
            judged(a, c, "peak=+3%", f"peak={45 * GIB}"),
            judged(a, d, "peak=+3%"),
        )
    assert fine.verdict == "within"
    assert "Largest: 40" in fine.sentence()
    assert (spiked.verdict, spiked.steps_needed) == ("not_shown", None)
    assert "But the largest step is beyond it: " in spiked.sentence()
    assert "50.0 GiB" in spiked.sentence()
    assert (absolute.verdict, absolute.change) == ("beyond", None)  # what runs out of memory is the largest, exactly
    assert more.verdict == "beyond"


def test_6_a_logged_metric_is_compared_over_its_history_and_by_its_last_value_without_one(tmp_path: Path) -> None:
    learning = np.linspace(0.1, 0.9, STEPS)
    with (
        made(tmp_path / "a", steps(1), rewards=learning * steps(1, 0.01)) as a,
        made(tmp_path / "b", steps(2), rewards=learning * steps(2, 0.01)) as b,
        made(tmp_path / "c", steps(3), rewards=0.9 * learning * steps(3, 0.01)) as c,
        made(tmp_path / "d", [1.0], rewards=[0.8]) as d,
        made(tmp_path / "e", [1.0], rewards=[0.7]) as e,
    ):
        (same,), (worse,) = (judged(a, one, "reward/mean=-2%", side="min") for one in (b, c))
        (once,), (step,) = judged(d, e, "reward/mean=-2%", side="min"), judged(d, e, "step=+5%")
    assert same.verdict == "within"  # what both learn drops out
    assert "Last: " in same.sentence()
    assert ", at least −" in same.sentence()
    assert worse.verdict == "beyond"
    assert ", at most −" in worse.sentence()
    assert (once.verdict, once.change) == ("beyond", None)
    assert step.verdict == "within"  # the same number is no more, however few the steps


def test_6_of_a_base_of_zero_the_change_is_told_in_its_own_unit(tmp_path: Path) -> None:
    with (
        made(tmp_path / "a", [1.0] * 8, rewards=[0.0] * 8) as a,
        made(tmp_path / "b", [1.0] * 8, rewards=[0.03] * 8) as b,
    ):
        (one,) = judged(a, b, "reward/mean=+5%")
    assert one.verdict == "beyond"
    assert "it changes by +0.03 in each of 7 steps" in one.sentence()


def test_6_one_step_is_too_few_to_tell(tmp_path: Path) -> None:
    with made(tmp_path / "a", [1.0]) as a, made(tmp_path / "b", [2.0]) as b:
        (one,) = judged(a, b, "step=+5%")
    assert (one.verdict, one.steps_needed) == ("not_shown", None)
    assert "in the only step, which says nothing of noise" in one.sentence()
    assert json.loads(json.dumps(one.to_dict(), allow_nan=False))["interval"] == [-1.0, None]


def test_6_exit_codes_of_what_is_not_shown_and_the_fields_of_json(tmp_path: Path, capsys: Any) -> None:
    with made(tmp_path / "a", steps(1)) as a, made(tmp_path / "b", steps(4, spread=0.3)) as b:
        paths = [a.path, b.path]
    assert main(["check", *paths, "--max", "step=+5%"]) == 0
    told = capsys.readouterr()
    assert "not shown to be within" in told.out
    assert told.err == "warning: 1 limit is not shown to be kept; with --unsure fail the check fails.\n"
    assert main(["check", *paths, "--max", "step=+5%", "--unsure", "fail"]) == 1
    assert capsys.readouterr().err == ""
    assert main(["check", *paths, "--max", "step=+5%", "--max", "step=0.1"]) == 1  # one is beyond
    capsys.readouterr()

    assert main(["check", *paths, "--max", "step=+5%", "--confidence", "0.9", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["kept"], answer["exit_code"]) == (False, 0)
    (limit,) = answer["limits"]
    assert limit["verdict"] == "not_shown"
    assert limit["kept"] is None
    assert (limit["confidence"], limit["paired"], limit["same_tokens"], limit["steps"]) == (0.9, True, False, 39)
    assert limit["interval"][0] < limit["change"] < limit["interval"][1]
    assert limit["steps_needed"] > STEPS

    for wrong in ("1.5", "0.2", "1", "nan"):
        assert main(["check", *paths, "--max", "step=+5%", "--confidence", wrong]) == 2
        assert "confidence: got" in capsys.readouterr().err


def test_6_the_confidence_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with made(tmp_path / "a", [1.0]) as a, pytest.raises(InputError, match="confidence: got 1, expected at least"):
        judged(a, a, "step=+5%", confidence=1.0)
