"""How probe comes to TRL's trainers and leaves them: points that raise, detaching, the callback, a job's processes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import probe
from probe.adapters import automatic, transformers
from probe.analysis.what_if import replayed
from tests.frameworks import small_trl
from tests.frameworks.trl_trainings import listed, plain, steps_of, trained

pytestmark = [
    pytest.mark.framework,
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL, which has its own environment"),
    pytest.mark.filterwarnings("ignore"),  # what they warn of is theirs to mend
    pytest.mark.usefixtures("taken_off"),
]


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("kind", ["grpo", "sft", "plain"])
def test_5_every_point_that_raises_differs_in_nothing(kind, tmp_path, monkeypatch, caplog):
    expected = plain(kind)

    def broken(seam):
        def tell(call):
            raise RuntimeError("ours")
            yield

        return seam._replace(tell=tell)

    from probe.adapters import trl

    monkeypatch.setattr(transformers, "SEAMS", [broken(one) for one in transformers.SEAMS])
    monkeypatch.setattr(trl, "SEAMS", [broken(one) for one in trl.SEAMS])
    probe.attach("trl")
    with caplog.at_level(logging.CRITICAL, "probe.adapters"), probe.start("trl", run_dir=tmp_path / "run") as session:
        made = trained(kind)
    small_trl.same(expected, small_trl.outcome(made))
    incidents = probe.open(session.directory).incidents
    assert {"transformers.trainer.Trainer.training_step"} <= set(incidents["where"])
    assert set(incidents["kind"]) == {"adapter"}


def test_5_a_user_who_computes_the_loss_without_ours_is_seen(tmp_path):
    def base(kind):
        class Own(kind):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                labels = inputs.pop("labels")
                logits = model(**inputs).logits
                return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

        return Own

    probe.attach("transformers")
    with probe.start("trl", run_dir=tmp_path / "run"):
        trained("plain", base)
    rows = probe.open(tmp_path / "run").table("micro_batches")
    assert len(rows) == 6
    assert set(rows["source"]) == {"Own"}


def test_5_an_error_in_the_training_passes_and_ends_the_step(tmp_path):
    def base(kind):
        class Breaks(kind):
            def compute_loss(self, *args, **kwargs):
                if self.state.global_step == 1:
                    raise ZeroDivisionError("theirs")
                return super().compute_loss(*args, **kwargs)

        return Breaks

    probe.attach("transformers")
    with probe.start("trl", run_dir=tmp_path / "run"):
        with pytest.raises(ZeroDivisionError, match="theirs"):
            trained("plain", base)
        assert probe.hooks.current_scope().step is None
        made = trained("plain")  # and another one is seen as any
    assert made.state.global_step == 3
    run = probe.open(tmp_path / "run")
    assert run.incidents.empty
    failed = run.failures().query("micro_batch >= 0").iloc[0]
    assert (failed["type"], failed["step"], failed["phase"], failed["micro_batch"]) == (
        "ZeroDivisionError",
        2,
        "update",
        0,
    )
    assert (list(failed["lengths"]), "input_ids" in json.loads(failed["fields"])) == ([40, 7], True)


def functions() -> dict[str, Any]:
    from probe.adapters import trl

    found = {}
    for seam in (*transformers.SEAMS, *trl.SEAMS):
        owner: Any = importlib.import_module(seam.module)
        *outer, name = seam.name.split(".")
        for part in outer:
            owner = getattr(owner, part)
        found[f"{seam.module}.{seam.name}"] = vars(owner).get(name)
    return found


def test_5_detach_restores_the_identical_objects():
    import trl  # noqa: F401

    before = functions()
    assert None not in before.values()
    attached = probe.attach("trl")
    assert [one.framework for one in attached] == ["trl", "transformers"]
    assert not [one for one in attached if one.missing or one.waiting]
    during = functions()
    assert all(during[name] is not before[name] for name in before)
    for one in attached:
        assert one.detach() == []
    after = functions()
    assert all(after[name] is before[name] for name in before)


def test_2_the_callback_records_a_training_and_closes_what_it_opened(tmp_path):
    expected = plain("sft")
    made = None
    for number in range(2):
        callback = probe.TrainerCallback(
            "explicit", run_dir=tmp_path / str(number), recorders=["token_balance", "memory"]
        )
        made = small_trl.trainer("sft", Path(tempfile.mkdtemp()) / "out")
        made.add_callback(callback)
        made.train()
        assert probe.current_session() is None
    small_trl.same(expected, small_trl.outcome(made))
    run = probe.open(tmp_path / "1")
    assert steps_of(run) == steps_of(probe.open(tmp_path / "0")) == [1, 2, 3]
    assert len(run.table("micro_batches")) == 6
    assert run.incidents.empty
    assert run.info.config["max_steps"] == 3
    assert run.info.project == "explicit"


def test_2_the_callback_uses_a_session_that_is_open(tmp_path):
    with probe.start("mine", run_dir=tmp_path / "run") as session:
        made = small_trl.trainer("sft", Path(tempfile.mkdtemp()) / "out")
        made.add_callback(probe.TrainerCallback)
        made.train()
        assert probe.current_session() is session
        assert not session.closed
    assert steps_of(probe.open(tmp_path / "run")) == [1, 2, 3]


ALONE = """
import sys
from tests.frameworks import lean
import probe
if {before}:
    probe.attach("trl")
from tests.frameworks import small_trl
from pathlib import Path
made = small_trl.trainer({kind!r}, Path(sys.argv[1]) / "out")
if not {before}:
    probe.attach("trl")
made.train()
session = probe.current_session()
assert session is not None and session.automatic
session.close()
"""


def run_program(code: str, folder: Path, **environ: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(folder)],
        env={**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1]), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("kind", "before"), [("sft", True), ("sft", False), ("plain", True)])
def test_2_one_line_before_or_after_the_import_is_enough(kind, before, tmp_path):
    run_program(ALONE.format(kind=kind, before=before), tmp_path, PROBE_RUN_DIR=str(tmp_path / "run"))
    run = probe.open(tmp_path / "run")
    assert steps_of(run) == [1, 2, 3]
    assert len(run.table("micro_batches")) == 6
    assert run.incidents.empty


#: On a machine without a GPU, too: `--cpu` begins one process, whatever their number.
ACCELERATE = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
ACCELERATE += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]


def probe_run(place: Path) -> list[str]:
    return ["-m", "probe", "run", "--run-dir", str(place), "--", sys.executable, *ACCELERATE]


def job(folder: Path, launcher: list[str], kind: str, *more: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Two processes, each a rank of a training; one that is aborted says where."""
    folder.mkdir()
    own = {"PYTHONPATH": str(Path(probe.__file__).parents[1]), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    return subprocess.run(
        [sys.executable, *launcher, small_trl.__file__, kind, str(folder), *more],
        env={**os.environ, **own, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize(("kind", "launched"), [("sft", "probe run -- accelerate launch"), ("grpo", "attach")])
def test_2_and_4_two_processes_record_one_run_and_differ_in_nothing(kind, launched, tmp_path):
    """Under torchrun with a line in the script, and under `probe run -- accelerate launch` with none."""
    place = tmp_path / "run"
    folders = [tmp_path / name for name in ("plain", "observed")]
    done = [job(folders[0], small_trl.TORCHRUN, kind)]
    if launched == "attach":
        done.append(job(folders[1], small_trl.TORCHRUN, kind, "attach", PROBE_RUN_DIR=str(place)))
    else:
        done.append(job(folders[1], probe_run(place), kind))
        assert "2 processes recorded" in done[-1].stderr
    for folder, one in zip(folders, done, strict=True):
        assert one.returncode == 0, f"{folder.name}: {one.stderr}\n{one.stdout}"
    run = probe.open(place)
    assert run.incidents.empty
    assert run.attempts == [1]
    assert run.ranks == [0, 1]  # found late: they are in the environment, and the start file came before
    again = replayed(run)
    assert again["same"].tolist() == [True] * len(again) == [True] * 6, again["why"].tolist()
    rows = run.table("micro_batches").sort_values("time_ns")
    for rank in range(2):
        small_trl.same(*[torch.load(one / f"outcome-{rank}.pt", weights_only=False) for one in folders])
        notes = json.loads((folders[1] / f"notes-{rank}.json").read_text())
        mine = rows[rows["rank"] == rank]
        assert [list(one) for one in mine["lengths"]] == [one["lengths"] for one in notes]
        assert listed(mine["width_tokens"]) == [one["width"] for one in notes]
        assert mine["step"].tolist() == [one["step"] for one in notes]


@pytest.mark.multiprocess
def test_proof_and_4_of_accelerate_s_ranks_the_killed_one_is_told_with_where_it_was_seen_last(tmp_path):
    """Rank 1 goes in the second micro-batch of step 2: what came before is whole, and rank 0 is no second cause.

    Under `probe run -- accelerate launch`; a rank of torchrun is killed in the tests of Lightning.
    """
    place = tmp_path / "run"
    done = job(tmp_path / "job", probe_run(place), "sft", "kill")
    assert "2 processes recorded" in done.stderr
    assert done.returncode != 0
    run = probe.open(place)
    small_trl.told_as_killed(run, rank=1, step=2, micro_batch=1)
    rows = run.table("micro_batches")
    first = rows[rows["step"] == 1]
    assert sorted(zip(first["rank"], first["micro_batch"], strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert run.incidents.query("kind == 'listener' or kind == 'adapter'").empty


def test_2_an_evaluation_alone_keeps_no_trainer_alive(tmp_path):
    import gc
    import weakref

    probe.attach("transformers")
    with probe.start("trl", run_dir=tmp_path / "run"):
        made = small_trl.trainer("plain", Path(tempfile.mkdtemp()) / "out")
        made.evaluate()
        there = weakref.ref(made)
        del made
        gc.collect()
        assert there() is None
    rows = probe.open(tmp_path / "run").table("micro_batches")
    assert set(rows["phase"]) == {"evaluate"}
    assert automatic.is_recording(False) is False
