"""vLLM and SGLang: what is told of functions with the names and arguments of vLLM 0.33 and SGLang 0.5.23.

Neither runs without a GPU. The stand-ins have what is documented of them, or read in their files, and nothing else.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import probe
from probe import frameworks
from probe.adapters import engines
from probe.adapters.attachment import attach
from tests.adapters.start_file import ROOT, package

PLUGINS = """
    from importlib.metadata import entry_points

    def load_general_plugins():
        for plugin in entry_points(group="GROUP"):
            plugin.load()()
"""

WORKER = """
    class Worker:
        weights = None

        def load_model(self, *, load_dummy_weights=False):
            self.weights = bytearray(1)

        def determine_available_memory(self):
            return 1 << 30

        def initialize_from_config(self, kv_cache_config):
            self.cache = kv_cache_config

        def compile_or_warm_up_model(self):
            return 0.5

        def sleep(self, level=1):
            if level not in (1, 2):
                raise ValueError(f"level {level}")

        def wake_up(self, tags=None):
            pass

        def update_weights(self, update_info):
            pass

        def reload_weights(self, *args, **kwargs):
            pass
"""

VLLM_SCHEDULER = """
    class Scheduler:
        def __init__(self, cache):
            self.running, self.waiting, self.kv_cache_manager = [], [], cache

        def get_request_counts(self):
            return len(self.running), len(self.waiting)

        def _preempt_request(self, request, timestamp, drop_stale_output=False):
            self.running.remove(request)
            self.waiting.append(request)

        def update_from_output(self, scheduler_output, model_runner_output):
            for one in model_runner_output:
                self.running.remove(one)
            self.kv_cache_manager.usage = len(self.running) / 8
            return {}
"""

CORE = """
    import os
    import signal
    import sys
    import time
    from types import SimpleNamespace

    from vllm.plugins import load_general_plugins

    class EngineCoreProc:
        @staticmethod
        def run_engine_core(told, steps=4, ends="by itself"):
            signal.signal(signal.SIGTERM, lambda *_: sys.exit())
            load_general_plugins()
            from vllm.v1.core.sched.scheduler import Scheduler
            from vllm.v1.worker.gpu_worker import Worker

            worker = Worker()
            worker.load_model()
            worker.determine_available_memory()
            worker.initialize_from_config("blocks")
            worker.compile_or_warm_up_model()
            cached = SimpleNamespace(req_ids=[], num_output_tokens=[])
            scheduler = Scheduler(SimpleNamespace(usage=0.5))
            for _ in range(steps):
                scheduler.running = ["a"]
                given = SimpleNamespace(
                    scheduled_new_reqs=[SimpleNamespace(req_id="a")], num_scheduled_tokens={"a": 7},
                    total_num_scheduled_tokens=7, scheduled_cached_reqs=cached,
                )
                scheduler.update_from_output(given, ["a"])
            worker.sleep(1)
            told.send([sorted(one for one in sys.modules if one.partition(".")[0] == "probe")])
            if ends == "when it is told":
                time.sleep(600)
"""

RUNNER = """
    class ModelRunner:
        def load_model(self):
            pass

        def alloc_memory_pool(self, memory_pool_config=None, *, draft_parallel_layout=None):
            pass

        def init_cuda_graphs(self, capture_decode_cuda_graph=True):
            pass
"""

UPDATER = """
    class SchedulerWeightUpdaterManager:
        def release_memory_occupation(self, recv_req):
            return "released"

        def resume_memory_occupation(self, recv_req):
            return "resumed"

        def update_weights_from_distributed(self, recv_req):
            return True, "done"
"""

SGLANG_SCHEDULER = """
    class Scheduler:
        def __init__(self, observer):
            self.waiting_queue, self.pool_stats_observer = [], observer

        def process_batch_result(self, batch, result):
            for one in batch.reqs:
                one.left -= 1
"""

BATCH = """
    class ScheduleBatch:
        def retract_decode(self):
            return ["a", "b"], 0.7, []
"""

STAND_INS: dict[str, dict[str, str]] = {
    "vllm": {
        "plugins": PLUGINS.replace("GROUP", "vllm.general_plugins"),
        "v1.worker.gpu_worker": WORKER,
        "v1.core.sched.scheduler": VLLM_SCHEDULER,
        "v1.engine.core": CORE,
    },
    "sglang": {
        "srt.plugins": PLUGINS.replace("GROUP", "sglang.srt.plugins"),
        "srt.model_executor.model_runner": RUNNER,
        "srt.managers.scheduler": SGLANG_SCHEDULER,
        "srt.managers.schedule_batch": BATCH,
        "srt.managers.scheduler_components.weight_updater": UPDATER,
    },
}


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the stand-ins, on the path."""
    folder = tmp_path / "packages"
    for name, modules in STAND_INS.items():
        package(folder, name, **modules)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for one in frameworks.attached():
        one.detach()
    for name in [name for name in sys.modules if name.partition(".")[0] in STAND_INS]:
        del sys.modules[name]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    with probe.start("engines", run_dir=tmp_path / "run") as opened:
        yield opened


def phases(run: Any) -> list[tuple[str, str]]:
    rows = run.sql("select role, phase from memory where edge = 'leave' and kind = 'phase' order by time_ns")
    return list(rows.itertuples(index=False, name=None))


def loads(run: Any) -> pd.DataFrame:
    found: pd.DataFrame = run.sql("select * from engine_load order by begin_ns")
    return found


def output(new: dict[str, int], cached: dict[str, tuple[int, int]]) -> SimpleNamespace:
    """What vLLM's scheduler has decided: tokens of new requests, and of the others with how many they have given."""
    tokens = {**new, **{name: count for name, (count, _) in cached.items()}}
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached), num_output_tokens=[given for _, given in cached.values()]
        ),
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
    )


# ------------------------------------------------------------------------------------------------------------- vLLM


def test_12_what_vllms_worker_does_with_its_memory_are_phases_of_an_engine(there, session):
    (attached,) = attach("vllm")
    worker = importlib.import_module("vllm.v1.worker.gpu_worker").Worker()
    worker.load_model()
    assert worker.determine_available_memory() == 1 << 30
    worker.initialize_from_config("blocks")
    assert worker.compile_or_warm_up_model() == 0.5
    worker.sleep(level=2)
    worker.wake_up(["weights"])
    worker.update_weights([])
    worker.wake_up(tags=["kv_cache"])
    with pytest.raises(ValueError, match="level 3"):
        worker.sleep(3)
    session.flush()
    names = ["load_weights", "init_kv_cache", "warm_up", "engine_sleep", "engine_wake", "update_weights", "engine_wake"]
    assert phases(session.run) == [("engine", name) for name in [*names, "engine_sleep"]]
    importlib.import_module("vllm.v1.core.sched.scheduler")
    assert attached.missing == []
    assert session.run.incidents.empty


def test_12_vllms_load_is_added_up_to_the_request_and_token(there, session):
    attach("vllm")
    cache = SimpleNamespace(usage=0.0)
    scheduler = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler(cache)
    scheduler.running, scheduler.waiting, cache.usage = ["a", "b"], ["c"], 0.25
    assert scheduler.update_from_output(output({"a": 100, "b": 30}, {}), []) == {}  # b's prompt is cut: 30 of 50
    scheduler.running, scheduler.waiting, cache.usage = ["a", "b"], ["c"], 0.75
    scheduler._preempt_request("b", 0.0)
    scheduler.running.append("b")
    scheduler.waiting.remove("b")
    scheduler.update_from_output(output({}, {"a": (1, 1), "b": (20, 0)}), [])
    cache.usage = 0.5
    scheduler.update_from_output(output({}, {"a": (1, 2), "b": (1, 1)}), ["a"])
    scheduler.waiting.remove("c")
    scheduler.running.append("c")
    scheduler.update_from_output(output({"c": 5}, {"b": (4, 2)}), ["b", "c"])  # with three tokens of a draft
    session.flush()
    (row,) = loads(session.run).itertuples()
    assert row.source == "vllm.v1.core.sched.scheduler.Scheduler.update_from_output"
    assert (row.role, row.iterations) == ("engine", 4)
    assert (row.prefill_tokens, row.decode_tokens) == (130 + 20 + 5, 1 + 2 + 4)
    assert (row.total_running, row.largest_running) == (2 + 2 + 2 + 2, 2)
    assert (row.total_waiting, row.largest_waiting) == (1 + 1 + 1, 1)
    assert (row.total_cache_ratio, row.largest_cache_ratio) == (0.25 + 0.75 + 0.5 + 1 / 8, 0.75)
    assert row.preempted == 1
    assert row.begin_ns < row.end_ns


def test_12_a_row_is_of_one_step_and_of_about_a_second(there, session, monkeypatch):
    attach("vllm")
    scheduler = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler(SimpleNamespace(usage=0.5))
    scheduler.running = ["a"]
    one = output({}, {"a": (1, 1)})
    for step in (3, 4):
        with session.step(step), probe.phase("generate"):
            scheduler.update_from_output(one, [])
            scheduler.update_from_output(one, [])
    monkeypatch.setattr(engines, "KEPT_NS", 0)
    for _ in range(3):
        scheduler.update_from_output(one, [])
    scheduler.update_from_output(one, ["a"])  # nothing is left to do
    session.flush()
    rows = loads(session.run)
    where = rows[["step", "phase", "iterations"]].astype(object).where(rows[["step", "phase"]].notna().all(axis=1))
    assert where.fillna("").to_numpy().tolist()[:2] == [[3, "generate", 2], [4, "generate", 2]]
    assert rows["iterations"].tolist() == [2, 2, 1, 1, 1, 1]
    assert rows["step"].notna().tolist() == [True, True, False, False, False, False]


@pytest.mark.usefixtures("lenient")
def test_12_points_of_engines_that_raise_differ_in_nothing(there, session, caplog):
    attach("vllm")
    scheduler = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler(SimpleNamespace(usage=0.5))
    scheduler.running = ["a"]
    assert scheduler.update_from_output(SimpleNamespace(), []) == {}  # of another version
    session.flush()
    (incident,) = session.run.incidents.itertuples()
    assert incident.where == "vllm.v1.core.sched.scheduler.Scheduler.update_from_output"
    assert "load" in incident.message


# ----------------------------------------------------------------------------------------------------------- SGLang


def test_12_what_sglang_does_with_its_memory_are_phases_of_an_engine(there, session):
    (attached,) = attach("sglang")
    runner = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner()
    runner.load_model()
    runner.alloc_memory_pool()
    runner.init_cuda_graphs()
    place = "sglang.srt.managers.scheduler_components.weight_updater"
    updater = importlib.import_module(place).SchedulerWeightUpdaterManager()
    assert updater.release_memory_occupation(None) == "released"
    assert updater.resume_memory_occupation(None) == "resumed"
    assert updater.update_weights_from_distributed(None) == (True, "done")
    session.flush()
    names = ["load_weights", "init_kv_cache", "warm_up", "engine_sleep", "engine_wake", "update_weights"]
    assert phases(session.run) == [("engine", name) for name in names]
    for module in ("scheduler", "schedule_batch"):
        importlib.import_module(f"sglang.srt.managers.{module}")
    assert attached.missing == []


class Mode:
    """The kind of a batch, as its enum answers."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds

    def __getattr__(self, name: str) -> Any:
        return lambda: name.removeprefix("is_") in self.kinds


def test_12_sglangs_load_is_added_up_to_the_request_and_token(there, session):
    class Request:
        def __init__(self, left: int) -> None:
            self.left = left

        def finished(self) -> bool:
            return self.left <= 0

    attach("sglang")
    ratios = iter([0.25, 0.5, 0.75, 0.5])
    stats = SimpleNamespace(get_kv_token_stats=lambda: (10, next(ratios)))
    scheduler = importlib.import_module("sglang.srt.managers.scheduler").Scheduler(
        SimpleNamespace(get_pool_stats=lambda: stats)
    )
    batches = importlib.import_module("sglang.srt.managers.schedule_batch")
    a, b = Request(4), Request(2)
    scheduler.waiting_queue = ["b"]

    def batch(mode: Mode, rows: list[Request], extended: int | None, decoding: list[Request] | None = None) -> Any:
        return SimpleNamespace(reqs=rows, forward_mode=mode, extend_num_tokens=extended, decoding_reqs=decoding)

    scheduler.process_batch_result(batch(Mode("extend"), [a], 40), None)
    scheduler.waiting_queue = []
    scheduler.process_batch_result(batch(Mode("extend", "mixed"), [b, a], 31, [a]), None)
    assert batches.ScheduleBatch().retract_decode()[0] == ["a", "b"]
    scheduler.process_batch_result(batch(Mode("decode"), [a, b], 31), None)  # what its prefill has left behind
    scheduler.process_batch_result(batch(Mode("decode"), [a], None), None)
    session.flush()
    (row,) = loads(session.run).itertuples()
    assert (row.iterations, row.prefill_tokens, row.decode_tokens) == (4, 40 + 30, 1 + 2 + 1)
    assert (row.total_running, row.largest_running, row.total_waiting, row.largest_waiting) == (1 + 2 + 2 + 1, 2, 1, 1)
    assert (row.total_cache_ratio, row.largest_cache_ratio, row.preempted) == (2.0, 0.75, 2)


# -------------------------------------------------------------------------------------------- in processes of theirs

TRAINER = """
import json, multiprocessing, os, sys

def main():
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    if "trainer" in sys.argv:
        import probe

        session = probe.start("engines", run_dir=os.environ["PROBE_RUN_DIR"])
        session.begin_step(1)
    from vllm.v1.engine.core import EngineCoreProc

    given = {"steps": 4, "ends": "when it is told" if "told" in sys.argv else "by itself"}
    target = EngineCoreProc.run_engine_core
    child = context.Process(target=target, args=(theirs,), kwargs=given, name="EngineCore", daemon=True)
    child.start()
    print(json.dumps(ours.recv()))
    if "trainer" in sys.argv:
        session.end_step()
    if "told" in sys.argv:
        child.terminate()
    child.join()


if __name__ == "__main__":
    main()
"""


def train(tmp_path: Path, there: Path, *how: str, **environ: str) -> list[str]:
    """Modules of probe that the engine's process has imported in the end."""
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    known = {name: one for name, one in os.environ.items() if not name.startswith("PROBE")}
    env = {**known, "PYTHONPATH": os.pathsep.join([str(there), ROOT]), **environ}
    done = subprocess.run([sys.executable, str(script), *how], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (modules,) = json.loads(done.stdout.splitlines()[-1])
    return modules


@pytest.mark.multiprocess
@pytest.mark.parametrize("ends", [pytest.param("by itself", marks=pytest.mark.thorough), "told"])
def test_12_an_engines_process_is_one_of_the_run_and_no_rank_of_it(there, tmp_path, ends):
    """It has the trainer's variables, and is ended by a signal, as vLLM ends its own."""
    run_dir = tmp_path / "run"
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    train(tmp_path, there, "trainer", *(["told"] if ends == "told" else []), PROBE_RUN_DIR=str(run_dir), **torchrun)
    with probe.open(run_dir) as run:
        rows = run.sql("select rank, name, role from processes order by rank nulls last")
        assert rows.astype(object).where(rows.notna(), None).to_numpy().tolist() == [
            [0, "train", None], [None, "vllm EngineCore", "engine"],
        ]  # fmt: skip
        names = ["load_weights", "init_kv_cache", "warm_up", "engine_sleep"]
        assert phases(run) == [("engine", name) for name in names]
        (row, *_) = loads(run).itertuples()
        assert (row.iterations, row.prefill_tokens, row.largest_cache_ratio) == (1, 7, 0.5)
        assert loads(run)["iterations"].sum() == 4
        assert run.post_mortem().state == "ended"
        assert len(run.findings().alarms) == 0


@pytest.mark.multiprocess
def test_12_without_a_run_directory_an_engine_imports_nothing_of_probe(there, tmp_path):
    assert train(tmp_path, there) == []


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_12_the_plugins_of_engines_load_nothing_where_nobody_asks_and_never_raise(engine, there, tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "probe.py").write_text("raise RuntimeError('theirs has been imported')\n")
    code = "import sys; before = set(sys.modules); from probe_rl import engines; "
    code += f"engines.{engine}(); print(sorted(set(sys.modules) - before))"
    known = {name: one for name, one in os.environ.items() if not name.startswith("PROBE")}
    for path, more, said in [
        ([ROOT], {}, ""),
        ([str(tmp_path / "foreign"), ROOT], {"PROBE_RUN_DIR": str(tmp_path / "run")}, "is not of probe-rl"),
    ]:
        env = {**known, "PYTHONPATH": os.pathsep.join(path), **more}
        done = subprocess.run([sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert said in done.stderr
        assert bool(done.stderr) == bool(said)
        if not said:
            assert done.stdout == "['__future__', 'probe_rl', 'probe_rl.engines']\n"
