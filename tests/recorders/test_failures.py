"""Failure rows: any exception that leaves a micro-batch, a phase, a watched function or a step."""

# ruff: noqa: PT012, PT017  (what stands around the exception is what is tested)

from __future__ import annotations

import gc
import json
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest
import torch

import probe
from probe.errors import InputError
from probe.hooks import telling
from probe.recorders.failures import MESSAGE, TRACE, bounded, failure_row, is_failure, is_out_of_memory
from probe.runs.reader import Run
from probe.testing import FakeDevice


def batch(rows=4, width=8):
    lengths = torch.arange(1, rows + 1)
    mask = (torch.arange(width)[None] < lengths[:, None]).long()
    return {"attention_mask": mask, "input_ids": torch.arange(rows * width).reshape(rows, width)}


def start(tmp_path, **options):
    return probe.start("p", "e", **{"run_dir": tmp_path / "run", "rank": 0, "world_size": 1, **options})


def failures(tmp_path):
    with Run(tmp_path / "run") as opened:
        return opened.failures().to_dict("records")


def loop(fail_at):
    for index, part in enumerate(probe.micro_batches(batch(), max_token_len=4)):
        if index == fail_at:
            raise ValueError(f"in micro-batch {index} of {len(part['input_ids'])}")


def wrapped(items):
    """As progress bars do."""
    for one in items:  # noqa: UP028  (a generator of its own)
        yield one


@pytest.mark.parametrize("wrap", [iter, wrapped, lambda items: zip(items, strict=True)])
def test_5_an_exception_in_a_micro_batch_has_it_with_its_lengths_and_columns(tmp_path, wrap):
    def run():
        for one in wrap(enumerate(probe.micro_batches(batch(), max_token_len=4))):
            index = one[0] if isinstance(one[0], int) else one[0][0]
            if index == 1:
                raise ValueError("no")

    with start(tmp_path) as session:
        with pytest.raises(ValueError, match="no"), session.step(3), probe.phase("update", role="actor"):
            run()
        lengths = session.run.micro_batches.query("micro_batch == 1")["lengths"].iloc[0]
        (found,) = session.run.failures().to_dict("records")
    assert (found["step"], found["role"], found["phase"], found["micro_batch"]) == (3, "actor", "update", 1)
    assert (found["scope"], found["scope_kind"], found["outermost"]) == ("step/update/1", "micro_batch", "step")
    assert list(found["lengths"]) == list(lengths)
    fields = json.loads(found["fields"])
    assert fields["input_ids"]["shape"] == [len(lengths), 8]
    assert fields["input_ids"]["dtype"] == "int64"
    assert fields["input_ids"]["bytes"] == 64 * len(lengths)
    assert (found["type"], found["message"], found["kind"]) == ("ValueError", "no", "failure")
    assert "raise ValueError" in found["traceback"]


def test_5_a_block_or_a_finally_around_the_loop_s_body_changes_nothing(tmp_path):
    """Bodies stand in ``with torch.autocast(…)`` or a ``try … finally``, which hands the exception on."""

    def in_a_block():
        for index, _ in enumerate(probe.micro_batches(batch(), max_token_len=4)):
            with torch.no_grad(), torch.autocast("cpu"):
                if index == 1:
                    raise ValueError("in a block")

    def in_a_finally():
        for index, _ in enumerate(probe.micro_batches(batch(), max_token_len=4)):
            try:
                if index == 1:
                    raise ValueError("in a finally")
            finally:
                str(index)

    def after_one_that_was_caught():
        try:
            in_a_block()
        except ValueError:
            "caught"
        raise RuntimeError("after it")

    def after_one_that_was_caught_here():
        try:
            for _ in probe.micro_batches(batch(), max_token_len=4):
                with torch.no_grad():
                    raise ValueError("caught")
        except ValueError:
            "caught"
        raise RuntimeError("after it")

    told = []
    with start(tmp_path) as session:
        for function in (in_a_block, in_a_finally, after_one_that_was_caught, after_one_that_was_caught_here):
            with pytest.raises((ValueError, RuntimeError)), session.step(len(told)), probe.phase("update"):
                function()
            told.append(session.run.failures().query("type != 'builtins.X'").to_dict("records")[-1]["micro_batch"])
    assert told[:2] == [1, 1]
    assert all(one != one or one is None or str(one) == "<NA>" for one in told[2:]), told


def test_5_an_exception_after_a_break_is_not_the_micro_batch_s(tmp_path):
    with start(tmp_path) as session:
        with pytest.raises(ValueError, match="later"), session.step(1), probe.phase("update"):
            for _ in probe.micro_batches(batch(), max_token_len=4):
                break
            raise ValueError("later")
        (found,) = session.run.failures().to_dict("records")
    assert (found["scope"], found["scope_kind"]) == ("step/update", "phase")
    assert found["lengths"] is None or list(found["lengths"]) == []


def test_5_an_exception_of_a_second_call_of_the_function_that_broke_out_is_not_the_micro_batch_s(tmp_path):
    def first():
        for _ in probe.micro_batches(batch(), max_token_len=4):
            return

    def call(number):
        if number:
            raise ValueError("second")
        first()

    with start(tmp_path) as session:
        with pytest.raises(ValueError, match="second"), session.step(1), probe.phase("update"):
            for number in range(2):
                call(number)
        (found,) = session.run.failures().to_dict("records")
    assert found["scope"] == "step/update"


def test_5_an_iterator_that_is_held_is_still_in_its_micro_batch(tmp_path):
    with start(tmp_path) as session:
        parts = iter(probe.micro_batches(batch(), max_token_len=4))
        with pytest.raises(ValueError, match="held"), session.step(1), probe.phase("update"):
            next(parts)
            next(parts)
            raise ValueError("held")
        (found,) = session.run.failures().to_dict("records")
    assert found["scope"] == "step/update/1"
    assert len(found["lengths"]) > 0


def test_5_a_block_of_one_s_own_tells_its_micro_batch(tmp_path):
    with start(tmp_path) as session:
        own = probe.micro_batch(2, lengths=[5, 3], batch=batch(2))
        with pytest.raises(ValueError, match="own"), session.step(1), own:
            raise ValueError("own")
        (found,) = session.run.failures().to_dict("records")
    assert (found["micro_batch"], list(found["lengths"])) == (2, [5, 3])
    assert found["fields"] == "{}"  # nobody but us held these tensors, and we don't


def test_5_one_exception_gives_one_failure_whatever_it_passes(tmp_path):
    with start(tmp_path) as session:
        with (
            pytest.raises(ValueError, match="x"),
            session.step(1),
            probe.phase("outer"),
            probe.watch(name="inner"),
            probe.phase("innermost"),
        ):
            raise ValueError("x")
        found = session.run.failures()
        rows = session.run.table("failures")
    assert found["scope"].tolist() == ["step/outer/inner/innermost"]
    assert found["outermost"].tolist() == ["step"]
    assert rows["outermost"].tolist() == ["phase", "step"]
    assert rows["exception_id"].nunique() == 1


def test_5_an_exception_that_is_caught_in_the_step_says_so(tmp_path):
    with start(tmp_path) as session, session.step(1):
        for _ in range(2):
            try:
                with probe.phase("try"):
                    raise ValueError("caught")
            except ValueError:
                pass
    found = failures(tmp_path)
    assert [(one["outermost"], one["caught"]) for one in found] == [("phase", True), ("phase", True)]
    assert len({one["exception_id"] for one in found}) == 2


def test_5_an_exception_like_the_one_that_was_caught_is_another(tmp_path):
    def helper():
        raise ValueError("alike")

    with start(tmp_path) as session:
        with pytest.raises(ValueError, match="alike"), session.step(1), probe.phase("outer"):
            try:
                with probe.phase("inner"):
                    helper()
            except ValueError:
                pass
            helper()
        found = session.run.failures()
    assert found["scope"].tolist() == ["step/outer/inner", "step/outer"]
    assert found["outermost"].tolist() == ["phase", "step"]


def test_5_what_it_came_from_is_listed(tmp_path):
    with start(tmp_path) as session:
        with pytest.raises(RuntimeError), session.step(1):
            try:
                raise KeyError("first")
            except KeyError as error:
                raise RuntimeError("second") from error
        (found,) = session.run.failures().to_dict("records")
    assert list(found["causes"]) == ["KeyError: 'first'"]


def test_5_what_ends_something_in_order_is_none(tmp_path):
    with start(tmp_path) as session:
        for kind in (SystemExit, GeneratorExit, StopIteration, StopAsyncIteration):
            with pytest.raises(kind), probe.phase("end"):
                raise kind
        assert session.run.failures().empty


def test_5_an_interrupt_is_told_apart(tmp_path):
    with start(tmp_path) as session:
        with pytest.raises(KeyboardInterrupt), session.step(1), probe.phase("update"):
            raise KeyboardInterrupt
        assert session.run.failures()["kind"].tolist() == ["interrupted"]


def test_5_out_of_memory_has_the_memory_of_that_moment_and_of_the_phases(tmp_path):
    device = FakeDevice(total_bytes=100, segment_bytes=10, non_torch_bytes=20)
    with start(tmp_path, device=device) as session:
        with session.step(1), probe.phase("generate"):
            device.allocate(30).free()
        kept = device.allocate(10)
        with pytest.raises(torch.OutOfMemoryError), session.step(2), probe.phase("update"):
            device.allocate(90)
        (found,) = session.run.failures().to_dict("records")
        kept.free()
    assert found["out_of_memory"]
    assert found["type"] == "torch.OutOfMemoryError"
    assert (found["allocated_bytes"], found["reserved_bytes"]) == (10, 30)
    assert (found["device_total_bytes"], found["non_torch_bytes"], found["source"]) == (100, 20, "fake")
    phases = json.loads(found["phases"])
    assert phases["generate"] == {"floor_bytes": 0, "peak_bytes": 30}
    assert phases["update"]["peak_bytes"] == 10


def test_5_out_of_memory_is_known_by_its_class_also_where_it_is_the_cause():
    class OutOfMemoryError(Exception):
        pass

    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(OutOfMemoryError())
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert not is_out_of_memory(RuntimeError("the tokenizer is out of memory of this word"))
    assert not is_out_of_memory(MemoryError())
    wrapping = RuntimeError("the trainer's own")
    wrapping.__cause__ = torch.OutOfMemoryError("x")
    assert failure_row(wrapping, None).out_of_memory


def test_5_the_exception_passes_unchanged_and_nothing_of_it_is_kept(tmp_path):
    class Held:
        pass

    class VeryOneError(ValueError):
        def __init__(self):
            super().__init__("the very one")
            objects.append(id(self))

    def raising():
        held = Held()  # as a frame holds tensors
        references.append(weakref.ref(held))
        raise VeryOneError

    def attempt():
        try:
            with session.step(1), probe.phase("update"):
                raising()
        except ValueError as error:
            assert id(error) == objects[-1]
            assert vars(error) == {}
            references.append(weakref.ref(error))
            trace, names = error.__traceback__, []
            while trace is not None:
                names.append(trace.tb_frame.f_code.co_name)
                trace = trace.tb_next
            assert names == ["attempt", "raising"]

    references, objects = [], []
    with start(tmp_path) as session:
        gc.disable()
        try:
            attempt()
            assert [one() for one in references] == [None, None]
        finally:
            gc.enable()


def test_5_a_long_message_and_traceback_are_bounded_and_an_odd_one_is_told():
    class Odd(Exception):
        def __str__(self):
            raise TypeError("no words")

    assert failure_row(Odd(), None).message == "<its text raised TypeError>"
    row = failure_row(ValueError("x" * 10**6), None)
    assert len(row.message) == MESSAGE
    assert len(row.traceback) <= TRACE
    assert bounded("ab" * 100, 100).startswith("ab")
    assert not is_failure(SystemExit())


def test_5_exceptions_that_are_a_trainer_s_way_to_speak_are_not_all_written(tmp_path):
    with start(tmp_path) as session, session.step(1):
        for _ in range(100):
            try:
                with probe.phase("look"):
                    raise KeyError("none")
            except KeyError:
                pass
    assert len(failures(tmp_path)) == 20


def test_5_the_row_is_in_the_file_before_the_step_is_left(tmp_path):
    code = textwrap.dedent("""
        import os, sys
        import probe
        from probe.testing import FakeDevice  # which needn't import torch
        session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, recorders=[], device=FakeDevice())
        try:
            with session.step(5), probe.phase("update"):
                raise ValueError("and then it dies")
        finally:
            os._exit(3)
    """)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, check=False)
    assert done.returncode == 3, done.stderr
    (found,) = failures(tmp_path)
    assert (found["step"], found["phase"], found["outermost"]) == (5, "update", "step")


def test_5_an_exception_that_ends_the_process_says_so_and_those_who_hear_of_it_still_do(tmp_path):
    code = textwrap.dedent("""
        import sys
        import probe
        from probe.testing import FakeDevice  # which needn't import torch
        sys.excepthook = lambda kind, error, trace: print("heard", error, flush=True)
        session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, recorders=[], device=FakeDevice())
        if sys.argv[2] == "step":
            with session.step(5), probe.phase("update"):
                raise ValueError("in")
        raise ValueError("out")
    """)
    for where in ("step", "outside"):
        path = str(tmp_path / where / "run")
        done = subprocess.run([sys.executable, "-c", code, path, where], capture_output=True, check=False, text=True)
        assert done.stdout.startswith("heard")
        (found,) = failures(tmp_path / where)
        assert (found["outermost"], found["caught"]) == ("process", False)
        assert found["scope"] == ("step/update" if where == "step" else "")
        with Run(path) as opened:
            assert opened.now()["failed"].tolist() == [True]


def test_5_the_end_of_a_thread_is_told_as_that(tmp_path):
    before = threading.excepthook, sys.excepthook
    heard = []
    threading.excepthook = heard.append

    def work():
        raise ValueError("in a thread")

    try:
        with start(tmp_path) as session:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            assert session.run.failures()["outermost"].tolist() == ["thread"]
        assert threading.excepthook == heard.append
        assert sys.excepthook is before[1]
    finally:
        threading.excepthook = before[0]
    assert len(heard) == 1
    with Run(tmp_path / "run") as opened:
        assert opened.now()["closed"].tolist() == [True]


def test_5_the_batch_is_kept_only_when_asked_and_replayed(tmp_path):
    def run(**options):
        with start(tmp_path / str(len(options)), **options) as session:
            with pytest.raises(ValueError, match="micro-batch 1"), session.step(1), probe.phase("update"):
                loop(1)
            return session.run.failures().iloc[0]

    assert run()["batch_path"] == ""
    assert not (tmp_path / "0" / "run" / "failures").exists()
    with pytest.raises(InputError, match="save_failed_batch"):
        probe.replay({"batch_path": ""}, len)
    found = run(save_failed_batch=True)
    again = probe.replay(found, lambda data: data.batch["input_ids"])
    assert again.shape[0] == len(found["lengths"])
    assert torch.equal(again % 8, torch.arange(8).expand_as(again))


def test_nobody_follows_after_the_session(tmp_path):
    with start(tmp_path):
        assert telling._raised is not None
    assert telling._raised is None
    assert telling._entered is None
