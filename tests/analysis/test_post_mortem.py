"""5: run.post_mortem(): what ended a run, in which order, and what each process held and did then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import probe
from probe.analysis.post_mortem import PostMortem
from probe.analysis.verdict import hanging
from probe.opened import Run
from probe.testing import FakeDevice
from tests.zoo.planting import planted

HOSTILE = "</details><script>alert(1)</script> \x1b[2J\u202e & \"quoted\" 'x'"


def batch(rows: int = 4, width: int = 8) -> dict[str, torch.Tensor]:
    lengths = torch.arange(1, rows + 1)
    mask = (torch.arange(width)[None] < lengths[:, None]).long()
    return {"attention_mask": mask, "input_ids": torch.arange(rows * width).reshape(rows, width)}


def post_mortem(path: Path) -> PostMortem:
    with Run(path) as run:
        return run.post_mortem()


def rank(code: str, *arguments: object, environ: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ | (environ or {}))


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> PostMortem:
    """Of the fault of the zoo in which rank 1 raises and rank 0 fails after it."""
    return post_mortem(planted(tmp_path_factory, "raises", tmp_path_factory.mktemp("raises") / "run"))


def test_5_the_first_failure_is_the_cause_and_what_followed_stands_in_its_order_with_times(raised: PostMortem) -> None:
    assert raised.state == "failed"
    assert raised.sentence.startswith("Rank 1 raised ValueError in update · micro-batch 2 · step 6")
    first, then = raised.events
    assert raised.first is first
    assert (first.how, first.process, first.type, first.is_consequence) == (
        "exception",
        "rank-00001",
        "ValueError",
        False,
    )
    assert (then.process, then.type, then.is_consequence) == ("rank-00000", "RuntimeError", True)
    assert then.wall_ns is not None
    assert first.wall_ns is not None
    assert then.after_s == (then.wall_ns - first.wall_ns) / 1e9 > 0.4
    assert first.after_s is None
    assert raised.clock_error_s == 0  # one machine


def test_5_the_whole_scope_is_told(raised: PostMortem) -> None:
    first = raised.events[0]
    where = first.where
    assert (where.attempt, where.step, where.phase, where.micro_batch, where.rank) == (1, 6, "update", 2, 1)
    assert where.role is None
    assert first.scope == "step/update/2"
    said = " ".join(str(raised).split())
    assert "attempt 1 · step 6 · role not known · phase update · micro-batch 2 · rank 1 · process rank-00001" in said


def test_5_the_micro_batch_has_its_lengths_keys_shapes_and_bytes(raised: PostMortem) -> None:
    first = raised.events[0]
    assert first.lengths is not None
    assert first.tokens == sum(first.lengths)
    columns = {one.key: one for one in first.columns}
    assert set(columns) == {"input_ids", "attention_mask"}
    shape = columns["input_ids"].shape
    assert shape is not None
    assert shape[0] == len(first.lengths)
    assert columns["input_ids"].bytes == int(shape[0]) * int(shape[1])
    assert f"{first.tokens} tokens in {len(first.lengths)} sequences" in str(raised)


def test_5_the_last_rows_of_that_rank_are_told(raised: PostMortem) -> None:
    assert 5 < len(raised.last_rows) <= 20
    assert {one.where.rank for one in raised.last_rows} == {1}
    assert {one.where.process for one in raised.last_rows} == {"rank-00001"}
    before = [one.before_s for one in raised.last_rows if one.before_s is not None]
    assert before == sorted(before, reverse=True)
    assert min(before) >= 0


def test_5_where_the_other_ranks_were_is_told(raised: PostMortem) -> None:
    told = {one.process: one for one in raised.standing}
    assert set(told) == {"rank-00000", "rank-00001"}
    assert {one.state for one in told.values()} == {"failed"}
    assert told["rank-00000"].scope == "step/update/3"
    assert told["rank-00000"].where.micro_batch == 3


def test_5_memory_by_phase_and_what_is_not_torchs_is_told(tmp_path: Path) -> None:
    device = FakeDevice(total_bytes=100, segment_bytes=10, non_torch_bytes=20)
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1, device=device) as session:
        with session.step(1), probe.phase("generate"):
            device.allocate(30).free()
        kept = device.allocate(10)
        with pytest.raises(torch.OutOfMemoryError), session.step(2), probe.phase("update"):
            device.allocate(90)
        session.flush()
        told = session.run.post_mortem()
        kept.free()
    first = told.events[0]
    assert first.out_of_memory
    assert first.memory is not None
    assert (first.memory.allocated_bytes, first.memory.reserved_bytes) == (10, 30)
    assert (first.memory.non_torch_bytes, first.memory.total_bytes, first.memory.source) == (20, 100, "fake")
    phases = {one.phase: (one.floor_bytes, one.peak_bytes) for one in first.phases}
    assert phases == {"generate": (0, 30), "update": (10, 10)}
    assert "20 B not PyTorch's" in str(told)


def test_5_it_is_data_text_and_a_page(raised: PostMortem) -> None:
    data = raised.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["events"][0]["where"]["micro_batch"] == 2
    assert data["state"] == "failed"
    assert repr(raised) == str(raised)
    page = raised._repr_html_()
    for part in ("Exception", "Micro-batch 2", "Memory", "In this order", "Where each process was", "Last rows"):
        assert part in page
        assert part in str(raised)


class Tags(HTMLParser):
    """The tags of a page, each of which must be closed in its order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.open: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_5_hostile_texts_are_escaped_in_the_page_and_steer_no_terminal(tmp_path: Path) -> None:
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        with (
            pytest.raises(ValueError, match="script"),
            session.step(1),
            probe.phase(HOSTILE),
            probe.micro_batch(0, lengths=[3]),
        ):
            raise ValueError(HOSTILE) from KeyError(HOSTILE)
        session.flush()
        told = session.run.post_mortem()
    assert "script" not in Tags(told._repr_html_()).seen
    assert "<script>" not in told._repr_html_()
    assert "\x1b" not in str(told)
    assert "\u202e" not in str(told)
    assert told.events[0].message == HOSTILE  # the data is as it was


KILLED = """
    import os, signal, sys, time
    import probe
    session = probe.start("p", "e", run_dir=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
    with session.step(7), probe.phase("update", role="actor"):
        with probe.micro_batch(1, lengths=[5, 3]):
            if sys.argv[2] == "1":
                session.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.3)
            raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:41233")
"""


def test_5_a_killed_process_is_told_with_where_it_was_seen_last(tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed = rank(KILLED, run, 1)
    assert killed.wait() == -9
    assert rank(KILLED, run, 0).wait() == 1
    told = post_mortem(run)
    assert told.state == "killed"
    first, after = told.events
    assert (first.how, first.process, first.type, first.traceback) == ("killed", "rank-00001", "", "")
    assert (first.where.step, first.where.role, first.where.phase, first.where.micro_batch) == (7, "actor", "update", 1)
    assert first.lengths == (5, 3)
    assert first.memory is not None
    assert first.memory.source == "process_rss"
    assert (after.how, after.process, after.is_consequence) == ("exception", "rank-00000", True)
    assert {one.process: one.state for one in told.standing} == {"rank-00001": "killed", "rank-00000": "failed"}
    assert "was killed" in told._repr_html_()
    assert "which was killed first" not in str(told)
    again = replace(first, process="rank-00002", wall_ns=first.wall_ns + 300_000_000)  # a launcher kills the others
    unsure = replace(told, events=(*told.events, again))
    assert "it isn't known which was killed first" in str(unsure)
    assert "known which was killed first" in unsure._repr_html_()


def test_5_lengths_of_a_micro_batch_whose_rows_are_missing_are_not_those_of_one_before(tmp_path: Path) -> None:
    """Rows are written some time later: of a killed process the newest are of a micro-batch that has ended."""
    code = """
        import os, signal, sys
        import probe
        session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1)
        with session.step(7), probe.phase("update"):
            for lengths in ([5, 3], [9]):
                with probe.micro_batch(0, lengths=lengths):
                    if lengths == [9]:
                        os.kill(os.getpid(), signal.SIGKILL)
                session.flush()
    """
    assert rank(code, tmp_path / "run").wait() == -9
    first = post_mortem(tmp_path / "run").first
    assert first is not None
    assert first.where.micro_batch == 0
    assert first.lengths in (None, (9,))


def test_5_a_hang_is_told_with_who_waits_for_whom_and_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        import sys, time
        import probe
        own = int(sys.argv[2])
        session = probe.start("p", "e", run_dir=sys.argv[1], rank=own, world_size=2)
        def wait_for_the_other():
            time.sleep(600)
        with session.step(0), probe.phase("update"):
            with probe.micro_batch(0, lengths=[4]):
                pass
        with session.step(1):
            with probe.phase("update"):
                for index in range(2 - own):
                    with probe.micro_batch(index, lengths=[4 + index]):
                        if index == 1:
                            wait_for_the_other()
            with probe.phase("sync_weights"):
                wait_for_the_other()
    """
    monkeypatch.setattr(hanging, "LEAST_S", 1.0)
    ranks = [rank(code, tmp_path / "run", one, environ={"PROBE_OVERDUE_S": "0.2"}) for one in range(2)]
    try:
        until, told = time.monotonic() + 120, None
        while time.monotonic() < until and (told is None or told.state != "hangs" or not told.events[-1].stack):
            time.sleep(0.3)
            if (tmp_path / "run" / "run.json").exists():
                told = post_mortem(tmp_path / "run")
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    assert told is not None
    assert told.state == "hangs"
    culprit, first = told.events
    assert (culprit.how, culprit.where.rank) == ("awaited", 1)
    assert (first.how, first.where.rank, first.where.micro_batch, first.lengths) == ("hang", 0, 1, (5,))
    assert told.sentence.startswith("Rank 1 has 1 micro-batch in update · step 1 where rank 0 has 2")
    assert "wait_for_the_other" in first.stack
    assert "Where the code of rank 0 was" in str(told)
    standing = {one.process: one for one in told.standing}
    assert standing["rank-00001"].scope == "step/sync_weights"
    assert "wait_for_the_other" in standing["rank-00001"].stack_line


def test_5_a_run_that_ended_well_says_so(tmp_path: Path) -> None:
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        with session.step(0), probe.phase("update"):
            pass
        session.flush()
        told = session.run.post_mortem()
        assert (told.state, told.sentence) == ("runs", "Nothing has ended this run: it goes on.")
    told = post_mortem(tmp_path / "run")
    assert (told.state, told.happened, told.first) == ("ended", False, None)
    assert "Nothing went wrong" in str(told)
    assert "Finished" in told._repr_html_()


def test_5_an_exception_that_was_caught_ended_nothing(tmp_path: Path) -> None:
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        for step in range(2):
            with session.step(step):
                try:
                    with probe.phase("parse"):
                        raise ValueError("caught")
                except ValueError:
                    pass
    assert post_mortem(tmp_path / "run").state == "ended"


def test_5_ctrl_c_is_told_as_that(tmp_path: Path) -> None:
    code = """
        import sys
        import probe
        session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1)
        with session.step(3), probe.phase("generate"):
            raise KeyboardInterrupt
    """
    rank(code, tmp_path / "run").wait()
    told = post_mortem(tmp_path / "run")
    assert told.state == "interrupted"
    assert told.sentence == "Rank 0 was interrupted by Ctrl-C in generate · step 3."
    assert [one.how for one in told.events] == ["interrupt"]


def test_5_the_end_of_an_earlier_attempt_did_not_end_the_newest(tmp_path: Path) -> None:
    """An exception before the first step is no step's, so that no later step hides it."""
    run = tmp_path / "run"
    code = """
        import sys
        import probe
        with probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1) as session:
            if sys.argv[2] == "fails":
                raise ValueError("no such model")
            with session.step(0):
                pass
    """
    rank(code, run, "fails").wait()
    assert post_mortem(run).state == "failed"
    rank(code, run, "well").wait()
    with Run(run) as opened:
        assert opened.attempts == [1, 2]
        assert opened.post_mortem().state == "ended"
        assert opened.findings().named("failed") is None
        assert opened.attempt(1).post_mortem().state == "failed"
