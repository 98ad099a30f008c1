"""Findings: what is said about a run, in which order, and that nothing is said without rows."""

from __future__ import annotations

import html
from pathlib import Path

import pandas as pd
import pytest
import torch

from probe.analysis import overview
from probe.analysis.findings import findings
from probe.analysis.listing import Findings
from probe.core.protocol import DataProto
from probe.core.seqlen_balancing import micro_batches
from probe.records import GIB, Incident, Memory, MicroBatch, Reduction, Row
from probe.runs.reader import Run
from probe.session import start
from tests.sample_run import MS, clock, open_run, sample_rows


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    with open_run(tmp_path_factory.mktemp("run"), sample_rows(4, 6)) as run:
        return findings(run)


def the(found: pd.DataFrame, words: str) -> dict[str, str]:
    rows = found[found["finding"].str.contains(words, regex=False)]
    assert len(rows) == 1, found["finding"].tolist()
    return rows.iloc[0].to_dict()


def test_problems_come_first(found: pd.DataFrame) -> None:
    order = found["severity"].map({"problem": 0, "notice": 1, "fine": 2}).tolist()
    assert order == sorted(order)


def test_the_peak_is_named_down_to_the_batch(found: pd.DataFrame) -> None:
    row = the(found, "The largest peak of GPU memory")
    assert "update_actor · micro-batch 0 · step 3 · rank 1" in row["finding"]
    assert "4,990 tokens" in row["finding"]
    assert "of the device's 80.0 GiB was left" in row["finding"]


def test_cap_violations_are_a_problem(found: pd.DataFrame) -> None:
    assert the(found, "over the cap")["severity"] == "problem"


def test_the_straggler_is_named(found: pd.DataFrame) -> None:
    assert "Rank 1 was the straggler" in the(found, "The fullest rank")["finding"]


def test_an_accidental_reducer_is_named_with_its_word(found: pd.DataFrame) -> None:
    row = the(found, "reduced by accident")
    assert "timing/update_actor shows the smallest value because of “min” in “timing”" in row["finding"]


def test_nan_and_dropped_rows_are_told(found: pd.DataFrame) -> None:
    assert the(found, "NaN went into actor/pg_loss")["severity"] == "problem"
    assert "17 rows were dropped" in found["finding"][0]


def test_padding_is_told_by_cause(found: pd.DataFrame) -> None:
    text = the(found, "Padding fills")["finding"]
    assert "fixed width" in text
    assert "longest row" in text


def test_own_cost_is_told(found: pd.DataFrame) -> None:
    assert the(found, "probe took")["severity"] == "fine"


def test_without_an_accelerator_memory_is_called_rss(tmp_path: Path) -> None:
    with open_run(tmp_path, sample_rows(1, 2, accelerator=False)) as run:
        row = the(findings(run), "The largest peak")
    assert "process memory (RSS) was at least" in row["finding"]
    assert "GPU" not in row["finding"]


def test_an_empty_run_has_no_findings(tmp_path: Path) -> None:
    with open_run(tmp_path, {0: []}) as run:
        assert findings(run).empty


def even_batches(largest: list[int]):
    """Two ranks with one micro-batch in each batch; ``largest`` names the fuller rank of each."""
    return {
        rank: [
            MicroBatch(
                rank=rank,
                time_ns=clock(rank) + i,
                step=i,
                phase="update",
                micro_batch=0,
                batch_id=i,
                micro_batches=1,
                sequences=1,
                lengths=[60 if rank == fullest else 40],
                tokens=60 if rank == fullest else 40,
            )
            for i, fullest in enumerate(largest)
        ]
        for rank in (0, 1)
    }


def test_a_rank_that_is_fullest_by_chance_is_no_straggler(tmp_path: Path) -> None:
    with open_run(tmp_path / "a", even_batches([0, 1, 0, 1, 0])) as run:
        text = the(findings(run), "The fullest rank")["finding"]
        assert "No rank stands out: rank 0 leads, fullest in 3 of 5 batches." in text
        assert "1.20× the mean tokens in a usual step" in text
    with open_run(tmp_path / "b", even_batches([1, 1, 1, 1, 0])) as run:
        assert "Rank 1 was the straggler in 4 of 5" in the(findings(run), "The fullest rank")["finding"]


def test_waiting_once_is_not_told_twice(tmp_path: Path) -> None:
    with open_run(tmp_path, even_batches([1, 1])) as run:
        row = the(findings(run), "Within a rank")
    assert row["severity"] == "fine"
    assert "wait" not in row["finding"]


def peaked(rank: int, phase: str, peak_gib: float, scope: int) -> Memory:
    return Memory(
        edge="leave", kind="phase", name=phase, phase=phase, scope_id=scope, parent_id=0, source="fake", rank=rank,
        step=0, time_ns=clock(rank) + scope * MS, host_duration_ns=MS, peak_allocated_bytes=int(peak_gib * GIB),
        peak_kind="exact",
    )  # fmt: skip


def test_the_phase_in_which_ranks_peak_least_alike_is_named(tmp_path: Path) -> None:
    heights = {"generate": (20, 19.5), "update": (10, 7.5), "reward": (9, 8)}
    rows: dict[int, list[Row]] = {
        rank: [peaked(rank, phase, peaks[rank], scope) for scope, (phase, peaks) in enumerate(heights.items(), 1)]
        for rank in (0, 1)
    }
    with open_run(tmp_path, rows) as run:
        row = the(findings(run), "peak unequally")
    assert row["severity"] == "notice"
    assert "Ranks peak unequally in update: 10.0 GiB on rank 0, 7.50 GiB on the lowest." in row["finding"]


def test_a_peak_before_the_first_step_is_told_too(tmp_path: Path) -> None:
    row = peaked(0, "load", 5, 1)
    row.step = None
    with open_run(tmp_path, {0: [row]}) as run:
        assert "5.00 GiB, made by load" in the(findings(run), "The largest peak")["finding"]


def test_ranks_that_peak_nearly_alike_are_no_finding(tmp_path: Path) -> None:
    rows: dict[int, list[Row]] = {rank: [peaked(rank, "update", 10 - 0.9 * rank, 1)] for rank in (0, 1)}
    with open_run(tmp_path, rows) as run:
        assert not findings(run)["finding"].str.contains("unequally").any()


@pytest.mark.parametrize(("off", "severity"), [(False, "notice"), (True, "problem")])
def test_trouble_with_the_instrumentation_is_a_problem_where_a_listener_was_switched_off(off, severity, tmp_path):
    failed = Incident(kind="listener", where="memory", message="ValueError: why", switched_off=off)
    away = [Incident(kind="backend", where="mlflow", message="away", step=step) for step in (1, 2, 3)]
    for row in (failed, *away):
        row.rank, row.time_ns = 0, clock(0)
    with open_run(tmp_path, {0: [failed, *away]}) as run:
        row = the(findings(run), "incidents, most often")
    assert row["severity"] == severity
    assert row["finding"].startswith("4 incidents, most often backend at mlflow: away.")
    assert ("switched off" in row["finding"]) == off


def test_a_long_message_is_cut_to_its_length_and_one_that_fits_is_not(tmp_path: Path) -> None:
    told = {}
    for length in (120, 121):
        row = Incident(kind="listener", where="memory", message="x" * length, rank=0, time_ns=clock(0))
        with open_run(tmp_path / str(length), {0: [row]}) as run:
            told[length] = the(findings(run), "1 incident, most often")["finding"].rpartition(": ")[2]
    assert told == {120: "x" * 120 + ".", 121: "x" * 119 + "…."}


@pytest.mark.parametrize(("largest", "severity"), [(1.0, "notice"), (2.0, "problem")])
def test_an_accidental_reducer_is_a_problem_where_it_matters(largest, severity, tmp_path: Path) -> None:
    row = Reduction(
        key="timing/step", reducer="min", chosen_by="name", count=2, smallest=1.0, largest=largest, nan_count=0,
        value=1.0, rank=0, step=0, time_ns=clock(0),
    )  # fmt: skip
    with open_run(tmp_path, {0: [row]}) as run:
        found = the(findings(run), "reduced by accident")
    assert found["severity"] == severity
    assert found["advice"].endswith("never differed so far") == (severity == "notice")


def test_what_waiting_after_each_micro_batch_costs_is_told(tmp_path: Path) -> None:
    rows: dict[int, list[Row]] = {
        rank: [
            MicroBatch(
                rank=rank,
                time_ns=clock(rank) + index,
                step=0,
                phase="update",
                micro_batch=index,
                batch_id=1,
                micro_batches=2,
                sequences=1,
                lengths=[tokens],
                tokens=tokens,
            )
            for index, tokens in enumerate(own)
        ]
        for rank, own in enumerate([(80, 20), (20, 80)])
    }
    with open_run(tmp_path, rows) as run:
        row = the(findings(run), "Within a rank")
    assert "where ranks wait for each other after each one, that costs 60 % more time" in row["finding"]
    assert row["severity"] == "problem"


@pytest.mark.parametrize("packed", [True, False])
def test_d_padding_is_judged_by_the_slots_that_are_computed(tmp_path: Path, packed: bool) -> None:
    """A batch that is mostly padding costs a model that packs its micro-batches bytes, and no compute."""
    mask = (torch.arange(20) < torch.tensor([20, 2, 2, 2]).unsqueeze(1)).long()
    with start("padding", run_dir=tmp_path / "run") as session:
        for step in range(3):
            with session.step(step):
                data = DataProto.from_dict(tensors={"input_ids": mask.clone(), "attention_mask": mask})
                for _ in micro_batches(data, max_token_len=40, packed=packed):
                    pass
    with Run(tmp_path / "run") as run:
        found = findings(run)
        tile = overview.numbers(run).set_index("name").loc["padding_tax"]
    one = found[found["topic"] == "padding_tax"].iloc[0]
    if packed:
        assert (one["severity"], tile["value"], tile["status"]) == ("notice", 0, "good")
        # Of 80 slots 54, in each of 3 steps; in bytes of the two columns of 8 bytes a token.
        assert "The batches that are put together before hold 68 % of it, 2.53 KiB over the run" in one["finding"]
    else:
        assert (one["severity"], tile["status"]) == ("problem", "alarm")
        assert "Padding fills 68 % of the token slots" in one["finding"]


def test_g_a_notebook_shows_findings_as_a_list_of_whole_sentences(found: Findings) -> None:
    page, text = found._repr_html_() or "", " ".join(repr(found).split())
    assert page.count("<li") == len(found) > 0
    for row in found.to_dict("records"):
        assert html.escape(row["finding"]) in page  # nothing is cut
        assert html.escape(row["advice"][1:]) in page
        assert " ".join(row["finding"].split()) in text


def test_g_findings_are_still_a_frame(found: Findings) -> None:
    assert isinstance(found, pd.DataFrame)
    assert found[found["severity"] == "problem"]._repr_html_() is not None
    counted = found.groupby("severity").size()
    assert counted.sum() == len(found)
    assert "<table" in (found[["severity", "topic"]]._repr_html_() or "")
    pd.testing.assert_frame_equal(pd.DataFrame(found.to_dict("records")), pd.DataFrame(found))


def test_g_users_text_in_a_list_of_findings_is_no_markup() -> None:
    found = Findings(
        [("notice", "x", "<b>a</b> is bad", "see <i>")], columns=["severity", "topic", "finding", "advice"]
    )
    assert "<b>a</b>" not in (found._repr_html_() or "")
    assert "Nothing was recorded" in repr(found.head(0))
