"""Lightning as installed, under observation: by its callback and by `attach`. It lives in TRL's environment."""

from __future__ import annotations

import csv
import functools
import importlib.util
import io
import json
import logging
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import probe
from benchmarks import lightning_cost
from benchmarks.measure import Size
from probe import frameworks
from probe.analysis.what_if import replayed
from probe.runs.reader import Run
from tests.frameworks import small_trl

pytestmark = [
    pytest.mark.framework,
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs Lightning (make test-trl)"),
    pytest.mark.filterwarnings("ignore"),  # what it warns of is its to mend
]

ROOT = Path(probe.__file__).parents[1]

ROWS = [[5, 3], [6, 2], [7, 7], [8, 1], [9, 4], [10, 6], [11, 2], [12, 12]]


@pytest.fixture(autouse=True)
def _taken_off(monkeypatch):
    monkeypatch.delenv("PROBE_RUN_DIR", raising=False)
    yield
    for one in frameworks.attached():
        one.detach()


def joined(rows: Any) -> dict[str, Any]:
    """A batch of rows of token ids, padded."""
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": ids.masked_fill(~mask, -100)}


def batches(*, whole: bool = False) -> Any:
    """What gives the batches of :data:`ROWS`, two rows each; where ``whole``, a data set that is made of them."""
    generator = torch.Generator().manual_seed(1)
    rows = [[torch.randint(0, 20, (length,), generator=generator) for length in lengths] for lengths in ROWS]
    if whole:
        return torch.utils.data.DataLoader([joined(pair) for pair in rows], batch_size=None)
    return torch.utils.data.DataLoader([row for pair in rows for row in pair], batch_size=2, collate_fn=joined)


def module(package: str, *, by_hand: bool = False) -> Any:
    lightning = importlib.import_module(package)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding, self.out = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20)
            self.automatic_optimization = not by_hand
            self.received: list[Any] = []
            self.logged = ""

        def loss(self, batch: Any) -> Any:
            logits = self.out(self.embedding(batch["input_ids"]))
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.received.append((batch["attention_mask"].sum(-1).tolist(), batch["input_ids"].shape[1]))
            loss = self.loss(batch)
            self.log("loss", loss)
            if by_hand:
                for optimizer in self.optimizers():
                    optimizer.zero_grad()
                    self.manual_backward(self.loss(batch))
                    optimizer.step()
            return loss

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            found = [one.grad.norm() for one in self.parameters() if one.grad is not None]
            self.log("grad_norm", torch.stack(found).norm())

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("validated", self.loss(batch))

        def configure_optimizers(self) -> Any:
            if not by_hand:
                return torch.optim.AdamW(self.parameters(), 1e-2)
            return [torch.optim.AdamW(one.parameters(), 1e-2) for one in (self.embedding, self.out)]

    return Module()


def fit(
    package: str = "lightning.pytorch",
    callback: Any = None,
    *,
    by_hand: bool = False,
    accelerator: str = "cpu",
    devices: int = 1,
    strategy: Any = "auto",
) -> Any:
    lightning = importlib.import_module(package)
    folder = tempfile.mkdtemp()
    options: dict[str, Any] = {} if by_hand else {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator=accelerator,
        devices=devices,
        strategy=strategy,
        callbacks=[] if callback is None else [callback],
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=lightning.loggers.CSVLogger(folder),
        log_every_n_steps=1,
        val_check_interval=4,
        limit_val_batches=2,
        **options,
    )
    made = module(package, by_hand=by_hand)
    trainer.fit(made, batches(whole=by_hand), [batches(whole=by_hand), batches(whole=by_hand)])
    made.logged = (Path(trainer.logger.log_dir) / "metrics.csv").read_text()
    return made


@functools.cache
def plain(by_hand: bool = False) -> Any:
    """A training without probe. That it is repeatable shows where an observed one leaves the same."""
    made = fit(by_hand=by_hand)
    assert not torch.equal(made.out.weight, module("lightning.pytorch").out.weight)
    norms = [row["grad_norm"] for row in csv.DictReader(io.StringIO(made.logged)) if row["grad_norm"]]
    assert len(norms) == (8 if by_hand else 4)
    assert all(float(norm) > 0 for norm in norms)
    return made


def same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def same_training(one: Any, other: Any) -> None:
    """Weights to the bit, and losses and gradient norms as Lightning's logger wrote them, to the digit."""
    same(one.state_dict(), other.state_dict())
    assert one.logged == other.logged


def scopes(run: Run) -> list[str]:
    rows = run.table("memory").sort_values("time_ns")
    return rows[(rows["edge"] == "leave") & (rows["step"] == 2)]["scope"].tolist()


def recorded_is_received(run: Run, made: Any) -> None:
    rows = run.table("micro_batches").sort_values("time_ns")
    training = rows[rows["phase"] == "update"]
    assert [
        (list(a), int(b)) for a, b in zip(training["lengths"], training["width_tokens"], strict=True)
    ] == made.received
    assert run.incidents.empty
    padding = run.table("padding")
    padding = padding[(padding["field"] == padding["field"].iloc[0]) & (padding["phase"] == "update")]
    assert padding["tokens"].sum() == sum(2 * width - sum(lengths) for lengths, width in made.received)


def cut_again(run: Run, *, accumulated: int = 2, named: bool = True) -> None:
    """5: each batch names the loader's rule and is made again by it, those of each loader of a validation, too.

    What gives whole batches has no rule that could be named, and none is.
    """
    rule = {"rows_each": 2, "drop_last": False} if named else {}
    cuts = run.table("partitions")
    assert set(cuts["packer"]) == {f"torch {torch.__version__}" if named else ""}
    given = {phase: [json.loads(one) for one in rows["arguments"]] for phase, rows in cuts.groupby("phase")}
    steps = 8 // accumulated
    assert given["update"] == [rule | {"accumulate_grad_batches": accumulated}] * steps
    assert given["evaluate"] == [rule] * len(given["evaluate"])
    assert [list(one) for one in cuts[cuts["phase"] == "evaluate"]["parts_tokens"]] == [[8, 8]] * len(given["evaluate"])
    found = replayed(run)
    assert len(found) == len(cuts)
    assert set(found["same"]) == {True if named else None}, set(found["why"])
    assert named or set(found["why"]) == {"No packer was recorded."}


def test_2_lightnings_callback_records_what_the_module_received_and_no_bit_differs(tmp_path):
    import lightning.pytorch  # noqa: F401

    import probe.lightning

    callback = probe.lightning.Callback("mine", run_dir=tmp_path / "run")
    made = fit(callback=callback)
    assert callback.session is probe.current_session() is None
    same_training(plain(), made)
    run = probe.open(tmp_path / "run")
    recorded_is_received(run, made)
    cut_again(run)
    training = run.table("micro_batches").query("phase == 'update'")
    assert training["step"].tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert training["micro_batch"].tolist() == [0, 1] * 4
    assert scopes(run) == [
        "step/update/0",
        "step/update/1",
        "step/update/optimizer_step",
        "step/update",
        *["step/evaluate/0", "step/evaluate/1"] * 2,
        "step/evaluate",
        "step",
    ]


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_2_lightning_is_observed_by_attach_under_either_name(package, tmp_path):
    expected = plain()
    attached = probe.attach("lightning")
    with probe.start("lightning", run_dir=tmp_path / "run"):
        made = fit(package)
    assert not [one for one in attached if one.missing]
    for one in attached:
        assert one.detach() == []
    same_training(expected, made)
    run = probe.open(tmp_path / "run")
    recorded_is_received(run, made)
    assert "step/save_checkpoint" in scopes(run)
    losses = run.scalars[run.scalars["key"] == "loss"]
    assert sorted(losses["step"]) == [1, 2, 3, 4]


def test_2_callback_and_attach_together_tell_once(tmp_path):
    import probe.lightning

    probe.attach("lightning")
    made = fit(callback=probe.lightning.Callback(run_dir=tmp_path / "run"))
    recorded_is_received(probe.open(tmp_path / "run"), made)


NOTHING_OF_PROBE = """
import json, sys
from tests.frameworks.test_lightning import fit, frameworks
received = fit(sys.argv[1]).received
print(json.dumps({"received": received, "attached": [one.framework for one in frameworks.attached()]}))
"""


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_12_installed_and_named_a_run_directory_a_script_without_a_line_of_probe_is_recorded(package, tmp_path):
    """By the entry point that Lightning asks as it makes a trainer."""
    told = {"PROBE_RUN_DIR": str(tmp_path / "run")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NOTHING_OF_PROBE, package],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **told},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["attached"] == ["lightning", "pytorch_lightning"]
    with Run(tmp_path / "run") as run:
        recorded_is_received(run, SimpleNamespace(received=[tuple(one) for one in said["received"]]))


def test_12_where_no_run_directory_is_named_lightning_s_entry_point_attaches_nothing(tmp_path, monkeypatch):
    from probe_rl import lightning

    asked = []
    own = lightning.callbacks

    def callbacks():
        asked.append(own())
        return asked[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lightning, "callbacks", callbacks)
    fit()
    assert asked == [[]]
    assert frameworks.attached() == []
    assert list(tmp_path.iterdir()) == []


def test_2_several_optimizers_of_a_module_by_hand_are_in_their_micro_batch(tmp_path):
    expected = plain(by_hand=True)
    probe.attach("lightning")
    with probe.start("lightning", run_dir=tmp_path / "run"):
        made = fit(by_hand=True)
    same_training(expected, made)
    run = probe.open(tmp_path / "run")
    recorded_is_received(run, made)
    cut_again(run, accumulated=1, named=False)
    assert not [one for one in run.table("memory")["scope"] if "optimizer_step" in one]


@pytest.mark.usefixtures("lenient")
def test_5_lightnings_points_that_raise_differ_in_nothing(tmp_path, monkeypatch, caplog):
    import probe.lightning
    from probe.adapters import lightning

    def broken(*_):
        raise RuntimeError("ours")

    monkeypatch.setattr(lightning, "HOOKS", dict.fromkeys(lightning.HOOKS, broken))
    monkeypatch.setattr(lightning, "emit", broken)
    probe.attach("lightning")
    with caplog.at_level(logging.CRITICAL, "probe.adapters"), probe.start("lightning", run_dir=tmp_path / "run"):
        made = fit()
        other = fit(callback=probe.lightning.Callback())
    same_training(plain(), made)
    same_training(plain(), other)
    incidents = probe.open(tmp_path / "run").incidents
    assert {"probe.lightning.Callback", "lightning.pytorch.trainer.call._call_callback_hooks"} <= set(
        incidents["where"]
    )


def test_2_an_error_in_a_lightning_training_ends_step_and_session(tmp_path):
    import probe.lightning

    callback = probe.lightning.Callback(run_dir=tmp_path / "run")
    lightning = importlib.import_module("lightning.pytorch")
    made = module("lightning.pytorch")

    def loss(batch):
        raise ZeroDivisionError("theirs")

    made.loss = loss
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[callback],
        logger=False,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    with pytest.raises(ZeroDivisionError, match="theirs"):
        trainer.fit(made, batches())
    assert probe.current_session() is None
    assert probe.hooks.current_scope().step is None
    run = probe.open(tmp_path / "run")
    assert run.incidents.empty
    (failed,) = run.failures().to_dict("records")
    assert (failed["type"], failed["step"], failed["phase"], failed["micro_batch"]) == (
        "ZeroDivisionError",
        1,
        "update",
        0,
    )


def test_2_the_callback_travels_to_other_processes_without_its_session(tmp_path):
    import probe.lightning

    callback = probe.lightning.Callback("mine", run_dir=tmp_path / "run", role="trainer")
    with probe.start("mine", run_dir=tmp_path / "run"):
        callback.setup(None, None, "fit")
        other = pickle.loads(pickle.dumps(callback))
    assert other.session is None
    other.setup(None, None, "fit")
    assert other.session.process.role == "trainer"
    other.teardown(None, None, "fit")
    assert probe.current_session() is None


def test_5_lightnings_functions_are_restored():
    from lightning.pytorch.trainer import call

    before = call._call_callback_hooks
    attached = probe.attach("lightning")
    assert call._call_callback_hooks is not before
    for one in attached:
        assert one.detach() == []
    assert call._call_callback_hooks is before


KILLED = """
import json, os, signal, sys, time
import probe
probe.attach("lightning")
from lightning.pytorch.strategies import DDPStrategy
from tests.frameworks import test_lightning

made = test_lightning.module("lightning.pytorch")
loss = made.loss

def last(batch):
    rank = os.environ["RANK"]
    with open(f"{sys.argv[1]}/received-{rank}.json", "w") as file:
        json.dump(made.received, file)
    if len(made.received) == 4 and rank == "1":  # the second batch of step 2
        time.sleep(3)  # at most half a second of rows is lost: what came before is on the disk
        os.kill(os.getpid(), signal.SIGKILL)
    return loss(batch)

made.loss = last
test_lightning.module = lambda *_, **__: made
test_lightning.fit(devices=2, strategy=DDPStrategy(process_group_backend="gloo"))
"""


@pytest.mark.multiprocess
def test_proof_of_two_lightning_workers_the_killed_one_is_told_with_where_it_was_seen_last(tmp_path):
    """DDP under torchrun: rank 1 goes in the second micro-batch of step 2, and rank 0 is no second cause."""
    (tmp_path / "train.py").write_text(KILLED)
    done = subprocess.run(
        [sys.executable, *small_trl.TORCHRUN, str(tmp_path / "train.py"), str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(probe.__file__).parents[1]),
            "PROBE_RUN_DIR": str(tmp_path / "run"),
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    run = probe.open(tmp_path / "run")
    small_trl.told_as_killed(run, rank=1, step=2, micro_batch=1)
    rows = run.table("micro_batches").query("phase == 'update'").sort_values(["rank", "time_ns"])
    for rank in range(2):
        mine = rows[rows["rank"] == rank]
        told = [[list(one), int(width)] for one, width in zip(mine["lengths"], mine["width_tokens"], strict=True)]
        assert told == json.loads((tmp_path / f"received-{rank}.json").read_text())
        assert list(zip(mine["step"], mine["micro_batch"], strict=True)) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert run.incidents.query("kind == 'listener' or kind == 'adapter'").empty


def test_the_benchmark_runs_in_its_smallest_form():
    (row,) = lightning_cost.rows(Size.SMALL)
    assert min(row["ours_s"], row["theirs_s"]) > 0
    assert row["name"] == "few steps: with probe / without"
