"""Where probe stands in verl, without a training: verl's own functions are called in this process, or in one beside it.

verl lives in an environment of its own (``make test-verl``), and an older one in a folder of that, ``verl-0.7.1``.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe.adapters import verl_driver
from probe.adapters.attachment import attach
from probe.session import Session
from tests.frameworks.verl_installed import MODULES, imported, python

if importlib.util.find_spec("verl") is None:
    pytest.skip("needs verl, which lives in its own environment", allow_module_level=True)

pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("without_trl"),
]


def objects() -> dict[tuple[str, str], Any]:
    """Every name of every module and of every class of verl, and what stands there."""
    found: dict[tuple[str, str], Any] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("verl", "tensordict") or module is None:
            continue
        for key, value in list(vars(module).items()):
            found[name, key] = value
            if inspect.isclass(value) and value.__module__.startswith(("verl", "tensordict")):
                found |= {(f"{name}.{key}", inner): one for inner, one in vars(value).items()}
    return found


def test_5_every_point_of_the_installed_verl_is_found_and_detach_restores_the_identical_objects():
    imported()
    before = objects()
    (made,) = attach("verl")
    try:
        assert made.missing == []
        assert set(made.waiting) == {"veomni engine", "automodel engine", "torchtitan engine", "megatron engine"}
        changed = {where for where, one in objects().items() if before.get(where) is not one}
        assert ("verl.workers.engine.utils", "prepare_micro_batches") in changed
        assert ("verl.workers.engine.fsdp.transformer_impl", "prepare_micro_batches") in changed  # a copy
        assert len(changed) > len(made.found)
    finally:
        assert made.detach() == []
    after = objects()
    assert after.keys() == before.keys()
    assert [where for where, one in after.items() if one is not before[where] and where[1] != "__doc__"] == []


def test_5_functions_keep_what_verl_asks_of_them(attached):
    from verl.single_controller.base.decorator import MAGIC_ATTR
    from verl.workers.engine_workers import ActorRolloutRefWorker

    for name in ("update_actor", "compute_log_prob", "compute_ref_log_prob", "update_weights", "save_checkpoint"):
        ours = getattr(ActorRolloutRefWorker, name)
        theirs = ours.__wrapped__
        assert getattr(ours, MAGIC_ATTR) == getattr(theirs, MAGIC_ATTR)
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
    assert inspect.iscoroutinefunction(ActorRolloutRefWorker.update_weights)


class Replica:
    """An engine that sleeps and wakes."""

    async def sleep(self) -> None:
        await asyncio.sleep(0.01)

    wake_up = sleep


@pytest.mark.usefixtures("attached")
def test_verdict_6_the_sleep_and_the_wake_of_engines_are_phases_of_the_driver(session: Session) -> None:
    from verl.checkpoint_engine.base import CheckpointEngineManager

    manager = CheckpointEngineManager.__new__(CheckpointEngineManager)
    manager.replicas = [Replica(), Replica()]
    verl_driver.DRIVER.trainer = SimpleNamespace(global_steps=1)
    try:
        with session.step(1):
            manager.sleep_replicas()
            manager.wake_up_replicas()

            async def within_a_loop() -> None:
                told = manager.sleep_replicas()
                if inspect.isawaitable(told):
                    await told

            asyncio.run(within_a_loop())
    finally:
        verl_driver.DRIVER.trainer = None
    manager.sleep_replicas()  # of no training
    session.flush()
    calls = session.run.table("calls")
    phases = calls[calls["point"] == "scope.phase"]
    assert list(phases["name"]) == ["engine_sleep", "engine_wake"]
    assert phases["duration_ns"].min() >= 10_000_000


SAYS = """
import verl
from probe.frameworks import attached
print([one.framework for one in attached()], "probe.session" in sys.modules)
"""


@pytest.mark.parametrize("way", ["plugin", "module"])
def test_1_verl_attaches_probe_when_it_is_imported(tmp_path, way):
    environ = (
        {"PROBE_RUN_DIR": str(tmp_path / "run")}
        if way == "plugin"
        else {
            "VERL_USE_EXTERNAL_MODULES": "probe_rl.verl",
            "VERL_USE_EXTERNAL_PLUGINS": "none",
        }
    )
    assert python(SAYS, **environ).split("\n")[0] == "['verl', 'ray'] False"
    assert not (tmp_path / "run").exists()  # nothing has been observed


def test_1_without_the_variable_verl_is_left_alone():
    code = "import sys, verl; print(sorted(name for name in sys.modules if name.startswith('probe')))"
    assert eval(python(code)) == ["probe_rl", "probe_rl.verl"]


def test_1_a_users_own_start_in_a_worker_takes_the_session_over(tmp_path):
    code = """
import probe, verl
from verl.utils.tracking import Tracking
Tracking("sums", "first", "console").log({"loss": 1.0}, step=1)
first = probe.current_session()
mine = probe.start("mine", role="driver")
print(first is mine, mine.automatic, mine.process.role or "later")
"""
    assert python(code, PROBE_RUN_DIR=str(tmp_path / "run")).split("\n")[-2].split()[:2] == ["True", "False"]


OLDER = Path(sys.prefix) / "verl-0.7.1"

IMPORTS = f"""
import importlib, warnings
warnings.simplefilter("ignore")
from probe.adapters.attachment import attach
(made,) = attach("verl")
import verl
for name in {MODULES!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass
print(verl.__version__, made.missing, made.waiting, sorted(made.found), sep="|")
assert made.detach() == []
"""


@pytest.mark.skipif(not OLDER.is_dir(), reason="`make test-verl` puts an older verl there")
def test_1_of_an_older_verl_each_point_is_found_or_listed_as_missing():
    version, missing, waiting, found = python(IMPORTS, OLDER).splitlines()[-1].split("|")
    assert version == "0.7.1"
    assert eval(missing) == [
        "engines of samples",
        "sampled tokens",
        "dummy rows",
        "samples",
        "dropped groups",
        "MetricsAggregator",
        "automodel engine",
    ]
    assert eval(waiting) == ["veomni engine", "torchtitan engine", "megatron engine"]
    for name in (
        "verl.trainer.ppo.ray_trainer.RayPPOTrainer.fit",
        "verl.workers.fsdp_workers.ActorRolloutRefWorker.update_actor",
        "verl.workers.actor.dp_actor.DataParallelPPOActor._forward_micro_batch",
        "verl.workers.engine.fsdp.transformer_impl.FSDPEngineWithLMHead.forward_step",
        "verl.utils.tracking.Tracking.log",
    ):
        assert name in eval(found)


def test_13_d_the_asynchronous_trainer_runs_in_what_is_observed_and_its_timers_are_told_apart() -> None:
    """Of verl's V1 trainers: each timer waits for answers, brings weights, or is work."""
    import inspect
    import re

    from verl.trainer.ppo.v1 import trainer_base, trainer_colocate_async, trainer_separate_async, trainer_sync

    from probe.analysis.idle.sides import WAITING, WEIGHTS

    trainer = trainer_separate_async.PPOTrainerSeparateAsync
    assert (trainer.fit, trainer.step) == (trainer_base.PPOTrainer.fit, trainer_base.PPOTrainer.step)
    modules = (trainer_base, trainer_colocate_async, trainer_separate_async, trainer_sync)
    timers = {one for module in modules for one in re.findall(r'marked_timer\("(\w+)"', inspect.getsource(module))}
    assert timers & set(WAITING) == {"gen", "switch_wait"}
    assert timers & set(WEIGHTS) == {"update_weights", "switch_to_rollout", "switch_to_trainer"}
    assert timers - {*WAITING, *WEIGHTS} == {
        *("step", "reward", "old_log_prob", "ref", "values", "adv", "update_actor", "update_critic"),
        *("save_checkpoint", "testing", "dump_rollout_generations"),
    }
