"""What a step leaves behind for the writer: few objects, since those that wait start collections of garbage."""

from __future__ import annotations

import gc
import json
import math
import os
import threading
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from probe.core.metric import Metric, append_to_dict, reduce_metrics
from probe.core.micro_batch import micro_batch
from probe.core.protocol import DataProto
from probe.core.seqlen_balancing import rearrange_micro_batches
from probe.core.torch_functional import logprobs_from_logits
from probe.devices import cpu
from probe.hooks import emit, phase, point
from probe.recorders.recorder import StepRows, rows_of
from probe.records import Call, Padding, Row, Scalar
from probe.runs import disk
from probe.runs.lines import encode, encode_all
from probe.session import start

STEPS = 20


@pytest.fixture
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def train(session, step, ids, mask):
    with session.step(step):
        with phase("prepare"):
            data = DataProto.from_single_dict({"input_ids": ids.clone(), "attention_mask": mask.clone()})
        with phase("update"):
            for micro in rearrange_micro_batches(data.batch, max_token_len=256)[0]:
                logprobs_from_logits(torch.zeros(*micro["input_ids"].shape, 8), micro["input_ids"])
        session.log(reduce_metrics({f"loss/{index}": [1.0, 2.0, 3.0] for index in range(10)}), step)


@pytest.mark.usefixtures("uncollected")
def test_e_what_a_step_leaves_for_the_writer_starts_few_collections(tmp_path, monkeypatch):
    ids, mask = torch.zeros(16, 64, dtype=torch.long), torch.ones(16, 64, dtype=torch.long)
    with start("p", run_dir=tmp_path / "run") as session:
        for step in range(10):
            train(session, step, ids, mask)
        assert session.flush()
        monkeypatch.setattr(session.recording.writer, "_round", lambda **_: None)  # all that is left stays
        known = {id(one) for one in gc.get_objects()}
        for step in range(10, 10 + STEPS):
            train(session, step, ids, mask)
        left = sum(id(one) not in known for one in gc.get_objects())
        monkeypatch.undo()
    assert left / STEPS < 10  # of 3 scopes, 7 calls, 2 batches and 10 metrics


def lines_of(directory):
    return [json.loads(line) for path in directory.glob("*.jsonl") for line in path.read_bytes().splitlines()]


def test_e_the_metrics_of_a_step_are_written_in_the_round_in_which_they_are_made(tmp_path):
    ids, mask = torch.zeros(16, 64, dtype=torch.long), torch.ones(16, 64, dtype=torch.long)
    with start("p", run_dir=tmp_path / "run") as session:
        for step in range(5):
            train(session, step, ids, mask)
            assert session.flush()
            rows = [one for one in lines_of(tmp_path / "run") if one["table"] == "scalars" and one["source"] == "probe"]
            assert {one["step"] for one in rows} == set(range(step + 1))


def test_e_the_rows_of_a_round_are_encoded_in_one_piece(tmp_path, monkeypatch):
    ids, mask = torch.zeros(16, 64, dtype=torch.long), torch.ones(16, 64, dtype=torch.long)
    alone, pieces = [], []
    monkeypatch.setattr(disk, "encode", lambda row: alone.append(row) or encode(row))
    monkeypatch.setattr(disk, "encode_all", lambda rows: pieces.append(len(rows)) or encode_all(rows))
    with start("p", run_dir=tmp_path / "run") as session:
        for step in range(5):
            train(session, step, ids, mask)
        assert session.flush()
        written = len(lines_of(tmp_path / "run"))
    assert not alone
    assert sum(pieces) >= written - 1  # the process's own row begins the file
    assert len(pieces) < written / 10


@pytest.mark.parametrize(
    "odd",
    [
        Scalar(key="k", value=math.nan),
        Scalar(key="k", value=-math.inf),
        Scalar(key="a \udcff surrogate", value=1.0),
        Scalar(key="k", value=torch.tensor(2.5)),
        Call(point="p", error=None),
    ],
)
def test_e_rows_in_one_piece_are_the_lines_that_each_would_be(odd):
    rows: list[Row] = [
        Scalar(key="k", value=1.0),
        odd,
        Padding(**dict.fromkeys(("source", "field", "cause"), "x"), **COUNTS),
    ]
    assert encode_all(rows) == b"".join(encode(row) for row in rows)


COUNTS = dict.fromkeys(("batch_id", "tokens", "bytes", "rectangle_tokens", "valid_tokens"), 7)


@pytest.mark.usefixtures("lenient")
def test_e_a_row_that_cannot_be_written_takes_no_other_with_it(tmp_path):
    with start("p", run_dir=tmp_path / "run", recorders=[]) as session:
        rows = [Scalar(key="before", value=1.0), Scalar(key=object(), value=1.0), Scalar(key="after", value=1.0)]
        session.recording.write_rows(rows, session.recording.sample_scope(), 1)
        assert session.flush()
        assert session.flush()  # the incident goes with the round after
        found = lines_of(tmp_path / "run")
    assert [one["key"] for one in found if one["table"] == "scalars"] == ["before", "after"]
    assert "a row of scalars can't be written" in next(one["message"] for one in found if one["table"] == "incidents")


class Named(str, Enum):  # noqa: UP042  # a StrEnum's text is its value
    """A key whose text isn't its value."""

    KEY = "value"


def test_e_what_waits_as_bytes_is_what_was_given(tmp_path):
    """Also where bytes can't tell it: numbers beyond 64 bits, NumPy's, and keys that are more than text."""
    lengths, ids = [np.int64(3), 4, True], torch.zeros(3, 8, dtype=torch.long)
    given = {"huge": [2.0**70, 2**70], "mixed": [1, True, 0.5], "a \udcff surrogate": [1.0], Named.KEY: [2.0]}
    partitions = point("seqlen_balancing.partition")
    with start("p", run_dir=tmp_path / "run") as session, session.step(0):
        told = {"batch": {"input_ids": ids}, "width_tokens": 8, "cap_tokens": None, "widths": None, "source": None}
        for workload in ([1, 2, 2**80], None):
            parts = (range(2), np.array([2]))
            emit(partitions, lengths=lengths, partitions=parts, workload=workload, **told)
        lengths[0] = 8  # it was copied
        reduce_metrics(given)
        given["huge"][0] = 0.0
        session.log({"float32": np.float32(0.5), "flag": True, "text": "x", "whole": 7}, 0)
        assert session.flush()
        rows = lines_of(tmp_path / "run")
    parts = [row for row in rows if row["table"] == "micro_batches"]
    assert [row["lengths"] for row in parts] == [[3, 4], [1]] * 2
    assert [row["workload"] for row in parts] == [3.0, 2.0**80, None, None]
    assert [row["valid_tokens"] for row in rows if row["table"] == "padding"] == [7, 7, 1] * 2
    reduced = {row["key"]: row for row in rows if row["table"] == "reductions"}
    assert set(reduced) == {"huge", "mixed", "a \\udcff surrogate", "Named.KEY"}
    assert (reduced["huge"]["largest"], reduced["mixed"]["total"]) == (2.0**70, 2.5)
    logged = {row["key"]: row["value"] for row in rows if row["table"] == "scalars" and row["source"] != "probe"}
    assert logged == {"float32": 0.5, "flag": 1.0, "whole": 7.0}


class Brought(Call):
    """A row type of a recorder of one's own, derived from one of probe's."""


def test_e_rows_of_a_step_are_told_apart_by_type_as_isinstance_does():
    rows = [Call(point="a"), Scalar(key="k", value=1.0), Brought(point="b"), Call(point="c")]
    told = StepRows(rows)
    for kind in (Call, Brought, Scalar, Padding, Row):
        assert told.of(kind) == [row for row in rows if isinstance(row, kind)] == rows_of(rows, kind)
    told.of(Call).clear()
    assert [row.point for row in rows_of(told, Call)] == ["a", "b", "c"]  # nobody can change them for the next one


class Seen(TorchDispatchMode):
    """What a user's own mode sees of torch."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_e_a_small_mask_is_copied_beside_torch_s_dispatcher(tmp_path):
    columns = {"input_ids": torch.zeros(4, 8, dtype=torch.long), "attention_mask": torch.ones(4, 8, dtype=torch.long)}

    def seen():
        with Seen() as mode:
            DataProto.from_single_dict(dict(columns))
        return mode.names

    plain = seen()
    with start("p", run_dir=tmp_path / "run") as session:
        with session.step(0):
            assert set(seen()) - set(plain) <= {"aten.detach.default"}  # no copy, and no sum
        columns["attention_mask"].zero_()  # it was copied
        assert session.flush()
        padding = [one for one in lines_of(tmp_path / "run") if one["table"] == "padding"]
    assert {one["valid_tokens"] for one in padding} == {32}


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
def test_e_a_small_mask_is_told_as_it_was_whatever_copies_it(tmp_path, dtype):
    mask = torch.ones(4, 8, dtype=dtype)
    with start("p", run_dir=tmp_path / "run") as session:
        with session.step(0):
            DataProto.from_single_dict({"input_ids": torch.zeros(4, 8, dtype=torch.long), "attention_mask": mask})
            mask.zero_()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
                DataProto.from_single_dict({"attention_mask": torch.ones(4, 8, dtype=torch.long)})
        assert session.flush()
        padding = [one for one in lines_of(tmp_path / "run") if one["table"] == "padding"]
    assert {one["valid_tokens"] for one in padding} == {32}
    assert "aten::clone" not in {one.key for one in seen.key_averages()}  # a user's own profile shows nothing of ours


def test_e_rows_of_a_fixed_loop_are_those_of_before(tmp_path):
    """What was recorded before recording was made cheaper, without times and sizes of memory."""
    ids, lengths = torch.arange(1024).reshape(16, 64) % 8, torch.arange(16, 64, 3)
    mask = (torch.arange(64)[None] < lengths[:, None]).long()
    with start("p", run_dir=tmp_path / "run", rank=0) as session:
        train(session, 0, ids, mask)
        with session.step(1), phase("update", role="actor"):
            collected = {}
            for index in range(2):
                with micro_batch(index, lengths=[3, 4], width=8, cap=16):
                    append_to_dict(collected, {"actor/loss": float(index), "actor/max": [1.0, math.nan]})
            others = {"empty": [], "whole": [1, 2], "long": [0.5] * 20, "sum": Metric("sum", [1, 2])}
            reduce_metrics({**collected, **others})
            with pytest.raises(ValueError, match="x"), phase("fails"):
                raise ValueError("x")
        assert session.flush()
        rows = lines_of(tmp_path / "run")
    found = json.dumps(_timeless(rows), indent=0, sort_keys=True)
    golden = Path(__file__).parent / "golden" / "rows_of_a_fixed_loop.json"
    if "PROBE_RENEW" in os.environ:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(found)
    assert found == golden.read_text()


def _is_timeless(row):
    if row["table"] == "scalars":
        return not row["key"].startswith(("probe/cost/", "probe/memory/", "probe/calls/time_s"))
    return row["table"] not in ("process", "host_memory", "failures") and row.get("edge") != "sample"


def _timeless(rows):
    """Rows by table without what differs from run to run: times, sizes of memory, and numbers that count up."""
    rows = [one for one in rows if _is_timeless(one)]
    scopes = sorted({row["scope_id"] for row in rows})
    kept = []
    for row in rows:
        row.pop("batch_id", None)  # the writer's thread takes some of them
        for name in ("scope_id", "parent_id"):
            if row.get(name) in scopes:
                row[name] = scopes.index(row[name])
        odd = ("_ns", "_bytes", "peak_kind", "source", "device") if row["table"] == "memory" else ("_ns",)
        kept.append({name: value for name, value in row.items() if value is not None and not name.endswith(odd)})
    return sorted(kept, key=lambda row: (row["table"], row.get("step") or 0, json.dumps(row, sort_keys=True)))


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="Linux alone tells a thread")
def test_e_the_mark_of_the_resident_set_is_the_process_s_on_every_thread():
    marks = {}

    def ask():
        marks["thread"] = cpu._peak_rss_bytes()

    filled = bytearray(64 * 2**20)
    filled[::4096] = b"x" * len(filled[::4096])
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    import resource

    assert marks["thread"] == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
