"""Findings: what is said about a run, in which order, and that nothing is said without rows."""

from __future__ import annotations

import html
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from probe.analysis import overview
from probe.analysis.verdict import Change, Finding, Findings, findings
from probe.core.protocol import DataProto
from probe.core.seqlen_balancing import micro_batches
from probe.hooks import phase
from probe.opened import Run
from probe.records import GIB, Incident, Memory, MicroBatch, Reduction, Row, Sample, Scalar
from probe.session import start
from probe.text import plain
from tests.sample_run import MS, clock, open_run, sample_rows, write_run


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    with open_run(tmp_path_factory.mktemp("run"), sample_rows(4, 6)) as run:
        return findings(run)


def the(found: Findings, words: str) -> Finding:
    rows = [one for one in found if words in one.sentence]
    assert len(rows) == 1, found
    return rows[0]


def test_alarms_come_first(found: Findings) -> None:
    order = [("alarm", "tuning", "fine").index(one.kind) for one in found]
    assert order == sorted(order)
    assert set(order) == {0, 1, 2}


def test_the_peak_is_named_down_to_the_batch(found: Findings) -> None:
    row = the(found, "The largest peak of GPU memory")
    assert "update_actor · micro-batch 0 · step 3 · rank 1" in row.sentence
    assert "4,990 tokens" in row.sentence
    assert "of the device's 80.0 GiB was left" in row.sentence


def test_cap_violations_are_a_problem(found: Findings) -> None:
    assert the(found, "over the cap").kind == "tuning"


def test_an_accidental_reducer_is_named_with_its_word(found: Findings) -> None:
    row = the(found, "reduced by accident")
    assert "timing/update_actor shows the smallest value because of “min” in “timing”" in row.sentence


def test_nan_and_dropped_rows_are_told(found: Findings) -> None:
    assert the(found, "NaN went into actor/pg_loss").kind == "alarm"
    assert the(found, "17 rows were dropped").kind == "tuning"


def test_padding_is_told_by_cause(found: Findings) -> None:
    text = the(found, "Padding fills").sentence
    assert "fixed width" in text
    assert "shorter than the longest of their batch" in text


def test_own_cost_is_told(found: Findings) -> None:
    assert the(found, "probe took").kind == "fine"


@pytest.mark.parametrize(("share", "kind", "status"), [(0.0085, "fine", "good"), (0.012, "tuning", "warn")])
def test_own_cost_is_worth_a_change_where_its_tile_is(tmp_path: Path, share: float, kind: str, status: str) -> None:
    rows = [
        Scalar(key=f"probe/cost/{key}", value=value, source="probe", step=step, time_ns=clock(0) + step * MS)
        for step in range(1, 5)
        for key, value in {"overhead_ms": 1000 * share, "step_ms": 1000.0, "overhead_ratio": share}.items()
    ]
    with open_run(tmp_path, {0: rows}) as run:
        found, tile = findings(run), overview.numbers(run).set_index("name").loc["own_cost"]
        cost = found.named("own_cost")
        assert cost is not None
        assert (cost.kind, tile["status"]) == (kind, status)
        assert len(run.sql(cost.evidence_sql)) == (4 if kind == "tuning" else 0)
    assert (cost.change is not None) == (kind == "tuning")
    assert cost.why == "The target is 0.5 %; from 1.0 % on it is worth a change."


def test_without_an_accelerator_memory_is_called_rss(tmp_path: Path) -> None:
    with open_run(tmp_path, sample_rows(1, 2, accelerator=False)) as run:
        row = the(findings(run), "The largest peak")
    assert "process memory (RSS) was at least" in row.sentence
    assert "GPU" not in row.sentence


def test_an_empty_run_has_no_findings(tmp_path: Path) -> None:
    with open_run(tmp_path, {0: []}) as run:
        assert not findings(run)


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


def test_a_rank_that_is_fullest_by_chance_is_not_named(tmp_path: Path) -> None:
    with open_run(tmp_path / "a", even_batches([0, 1, 0, 1, 0])) as run:
        one = the(findings(run), "The fullest rank of a batch")
        assert "1.20× the mean tokens in a usual step" in one.sentence
        assert one.where.rank is None
    with open_run(tmp_path / "b", even_batches([1, 1, 1, 1, 1])) as run:
        one = the(findings(run), "The fullest rank of a batch")
        assert (one.name, one.kind, one.where.rank) == ("uneven_ranks", "tuning", 1)
        assert "It is always rank 1." in one.sentence
        assert "straggler" not in one.sentence  # that is a matter of time
        assert len(run.sql(one.evidence_sql)) == 5


def with_a_long_sequence(others: int):
    """Two ranks of ten sequences, one of which is long; ``others`` tokens have the rest of its rank's."""
    every = {0: [100] * 10, 1: [2_000] + [others] * 9}
    return {
        rank: [
            MicroBatch(
                rank=rank,
                time_ns=clock(rank) + step,
                step=step,
                phase="update",
                micro_batch=0,
                batch_id=step,
                micro_batches=1,
                sequences=len(lengths),
                lengths=lengths,
                tokens=sum(lengths),
            )
            for step in range(4)
        ]
        for rank, lengths in every.items()
    }


def test_2_one_sequence_is_the_cause_only_where_it_explains_80_percent_of_the_excess(tmp_path: Path) -> None:
    with open_run(tmp_path / "a", with_a_long_sequence(100)) as run:
        one = the(findings(run), "One long sequence")
        assert (one.name, one.where.rank) == ("giant_sequence", 1)
        assert one.explained is not None
        assert one.explained >= 0.8
    # Without it the rank would have 2.5 times the others' tokens all the same.
    with open_run(tmp_path / "b", with_a_long_sequence(300)) as run:
        one = the(findings(run), "The fullest rank of a batch")
        assert (one.name, one.where.rank, one.explained) == ("uneven_ranks", 1, None)


def test_waiting_once_is_not_told_twice(tmp_path: Path) -> None:
    with open_run(tmp_path, even_batches([1, 1])) as run:
        row = the(findings(run), "Within a rank")
    assert row.kind == "fine"
    assert "wait" not in row.sentence


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
    assert row.kind == "tuning"
    assert "Ranks peak unequally in update: 10.0 GiB on rank 0, 7.50 GiB on the lowest." in row.sentence


def test_a_peak_before_the_first_step_is_told_too(tmp_path: Path) -> None:
    row = peaked(0, "load", 5, 1)
    row.step = None
    with open_run(tmp_path, {0: [row]}) as run:
        assert "5.00 GiB, made by load" in the(findings(run), "The largest peak").sentence


def test_ranks_that_peak_nearly_alike_are_no_finding(tmp_path: Path) -> None:
    rows: dict[int, list[Row]] = {rank: [peaked(rank, "update", 10 - 0.9 * rank, 1)] for rank in (0, 1)}
    with open_run(tmp_path, rows) as run:
        assert findings(run).named("unequal_memory") is None


@pytest.mark.parametrize("off", [False, True])
def test_trouble_with_the_instrumentation_says_where_a_listener_was_switched_off(off, tmp_path):
    failed = Incident(kind="listener", where="memory", message="ValueError: why", switched_off=off)
    away = [Incident(kind="backend", where="mlflow", message="away", step=step) for step in (1, 2, 3)]
    for row in (failed, *away):
        row.rank, row.time_ns = 0, clock(0)
    with open_run(tmp_path, {0: [failed, *away]}) as run:
        row = the(findings(run), "incidents, most often")
    assert row.kind == "tuning"  # the training itself is in order
    assert row.sentence.startswith("4 incidents, most often backend at mlflow: away.")
    assert ("switched off" in row.sentence) == off


def test_a_long_message_is_cut_to_its_length_and_one_that_fits_is_not(tmp_path: Path) -> None:
    told = {}
    for length in (120, 121):
        row = Incident(kind="listener", where="memory", message="x" * length, rank=0, time_ns=clock(0))
        with open_run(tmp_path / str(length), {0: [row]}) as run:
            told[length] = the(findings(run), "1 incident, most often").sentence.rpartition(": ")[2]
    assert told == {120: "x" * 120 + ".", 121: "x" * 119 + "…."}


@pytest.mark.parametrize(("largest", "kind"), [(1.0, "fine"), (2.0, "alarm")])
def test_an_accidental_reducer_is_an_alarm_where_it_matters(largest, kind, tmp_path: Path) -> None:
    row = Reduction(
        key="timing/step", reducer="min", chosen_by="name", count=2, smallest=1.0, largest=largest, nan_count=0,
        value=1.0, rank=0, step=0, time_ns=clock(0),
    )  # fmt: skip
    with open_run(tmp_path, {0: [row]}) as run:
        found = the(findings(run), "reduced by accident")
    assert found.kind == kind
    assert ("never differed so far" in found.why) == (kind == "fine")


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
    assert "where ranks wait for each other after each one, that costs 60 % more time" in row.sentence
    assert row.kind == "tuning"


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
    (one,) = [each for each in found if each.topic == "padding_tax"]
    if packed:
        assert (one.kind, tile["value"], tile["status"]) == ("fine", 0, "good")
        # Of 80 slots 54, in each of 3 steps; in bytes of the two columns of 8 bytes a token.
        assert "Before packing, 68 % of the batches is padding, 2.53 KiB over the run" in one.sentence
    else:
        assert (one.kind, tile["status"]) == ("tuning", "alarm")
        assert "Padding fills 68 % of the token slots" in one.sentence
        assert one.name == "wide_row"
        assert (one.where.step, one.where.micro_batch) == (0, 0)


def test_g_a_notebook_shows_findings_as_a_list_of_whole_sentences(found: Findings) -> None:
    page, text = found._repr_html_(), " ".join(repr(found).split())
    assert page.count("<li") == len(found) + len(found.withheld) > 0
    for one in found.everything:
        assert html.escape(one.sentence) in page  # nothing is cut
        assert " ".join(one.sentence.split()) in text
        if one.change is not None:
            assert html.escape(one.change.advice) in page


def test_2_findings_are_a_frame_when_asked(found: Findings) -> None:
    frame = found.to_frame()
    assert list(frame["sentence"]) == [one.sentence for one in found]
    one, row = found[0], frame.iloc[0]
    assert (row["kind"], row["where_step"], row["since_step"]) == ("alarm", one.where.step, one.since.step)
    assert len(Findings().to_frame()) == 0


def test_2_every_finding_that_is_wrong_has_rows_that_show_it(found: Findings, tmp_path: Path) -> None:
    with open_run(tmp_path, sample_rows(4, 6)) as run:
        for one in found:
            if one.kind != "fine":
                assert len(run.sql(one.evidence_sql)), one.name


def test_2_findings_are_json(found: Findings) -> None:
    told = json.loads(json.dumps(plain([one.to_dict() for one in found])))
    assert told[0]["kind"] == "alarm"
    assert set(told[0]["where"]) == {"attempt", "step", "role", "phase", "micro_batch", "rank", "process", "token"}


def test_g_users_text_in_a_list_of_findings_is_no_markup() -> None:
    found = Findings([Finding("tuning", "x", "<b>a</b> is bad", change=Change("see <i>"))])
    assert "<b>a</b>" not in found._repr_html_()
    assert "<i>" not in found._repr_html_()
    assert "Nothing was recorded" in repr(Findings())


def test_what_was_found_in_a_run_that_has_ended_is_kept_and_is_the_same(tmp_path, monkeypatch):
    from probe.analysis.verdict import kept, verdict
    from probe.runs import answers
    from probe.runs.layout import Segment
    from probe.runs.parts import roll_over
    from probe.views.first_look import work_out

    monkeypatch.setattr(answers, "LEAST_BYTES", 1)
    directory = write_run(tmp_path / "run", sample_rows(2, 6))
    with Run(directory) as run:
        assert kept.find(run) is None
        first = run.findings()
        assert kept.find(run) is None  # its files are still written to
    for rank in (0, 1):
        assert list(roll_over(directory, Segment.of_rank(rank, 0)))
    with Run(directory) as run:
        again = run.findings()
        assert [one.sentence for one in again] == [one.sentence for one in first]
        found = kept.find(run)
        assert found == again
        assert [one.to_dict() for one in found or ()] == [one.to_dict() for one in again]
        assert kept._finding(json.loads(json.dumps(asdict(again[0])))) == again[0]
    shutil.rmtree(directory / answers.FOLDER)
    work_out(directory)  # as `probe compact` does: who tails it for the first time doesn't wait for a look
    monkeypatch.setattr(verdict, "found", None)  # nobody looks again
    with Run(directory) as run:
        assert run.findings() == again
    monkeypatch.setattr(kept, "code", lambda *_: "other code")
    with Run(directory) as run:
        assert kept.find(run) is None


def nan_rows(process: str = "rank-00000") -> list[Row]:
    """Step 3 of a rank with two micro-batches of actor's update, the second of which had NaN in one of its samples."""
    here = {"process": process, "rank": 0, "step": 3, "role": "actor", "phase": "update"}
    cut = {"batch_id": 1, "micro_batches": 2, "sequences": 2, "lengths": [4, 4], "tokens": 8}
    batches = [MicroBatch(**here, **cut, micro_batch=index, time_ns=MS * index) for index in range(2)]
    told = {"batch_id": 7, "response_tokens": 4}
    samples = [
        Sample(**told, process=process, rank=0, step=3, row=row, uid=f"u{row}", micro_batches=[row // 2], nan_count=nan)
        for row, nan in enumerate((0, 0, 0, 5))
    ]
    given = {"key": "actor/pg_loss", "reducer": "mean", "chosen_by": "name", "count": 2}
    loss = Reduction(process=process, rank=0, step=3, nan_count=1, nan_at=1, time_ns=5 * MS, **given)
    leave = {"edge": "leave", "kind": "phase", "name": "update", "source": "cuda", "allocated_bytes": 0}
    phase = Memory(**here, **leave, time_ns=4 * MS, host_duration_ns=4 * MS)
    told_at = [*batches, phase, *samples, loss]
    for row in told_at:
        row.time_ns += clock(0)
    return told_at


def test_2_nan_leads_to_its_micro_batch_and_to_the_sample_that_holds_it(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", {0: nan_rows()}) as run:
        one = run.findings()[0]
        rows = run.sql(one.evidence_sql)
    assert (one.name, one.where.phase, one.where.micro_batch, one.where.rank) == ("nan", "update", 1, 0)
    assert one.where.attempt == 1
    assert one.cost.steps == 1
    assert "Of its recorded samples row 3 (u3) of their batch holds NaN." in one.why
    assert (rows["phase"].tolist(), rows["micro_batch"].tolist(), rows["step"].tolist()) == (["update"], [1], [3])


def fails_in_step_5(directory: Path, saves: dict[int, str]) -> None:
    with start("p", run_dir=directory, rank=0, world_size=1) as session:
        for step in range(6):
            with session.step(step):
                if step in saves:
                    with phase(saves[step]):
                        pass
                with phase("generate"):
                    _ = 1 / (5 - step)


@pytest.mark.parametrize(("saves", "lost"), [({1: "save_checkpoint", 3: "load_checkpoint"}, 4), ({}, None)])
def test_2_an_end_counts_the_steps_that_are_lost_since_the_last_checkpoint(tmp_path: Path, saves, lost) -> None:
    with pytest.raises(ZeroDivisionError):
        fails_in_step_5(tmp_path / "run", saves)
    with Run(tmp_path / "run") as run:
        one = run.findings()[0]
    assert (one.name, one.where.step, one.cost.steps) == ("failed", 5, lost)
