"""verl's trainers on a GPU, under observation: their own peaks stay what they were, and nothing of ours waits.

``make test-verl``'s environment has what it needs, with a torch for CUDA.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import probe
from probe.records import GIB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="needs verl (make test-verl)"),
    pytest.mark.filterwarnings("ignore"),
]

PEAK = "perf/max_memory_allocated_gb"
STEPS = 4
#: Attention of the device sums in any order unless it is asked not to.
OVERRIDES = ("trainer.device=cuda", "engine.full_determinism=True")


def _loaded(*modules: str) -> str:
    return ",".join(["without_trl", *modules])


def train(directory: Path, tiny: Path, *modules: str, **environ: str) -> Any:
    """One rank on the first device, without the platform that stands for a CPU."""
    import recipes

    named = {"VERL_USE_EXTERNAL_MODULES": _loaded(*modules), "CUDA_VISIBLE_DEVICES": "0", "COUNTER_DIR": ""}
    directory.mkdir()
    done = recipes.sft(directory / "training", tiny, *OVERRIDES, ranks=1, **(named | environ))
    assert done.code == 0, done.output[-5000:]
    return done


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two trainings without probe, and one with it in which whatever waits for the device raises."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "frameworks" / "verl_cpu"))
    import tiny

    place = tmp_path_factory.mktemp("verl")
    tiny.make(place / "tiny")
    found = {name: train(place / name, place / "tiny") for name in ("plain_a", "plain_b")}
    watched = place / "watched"
    watched.mkdir()
    more = {"PROBE_RUN_DIR": str(place / "run"), "COUNTER_DIR": str(watched)}
    return found | {"observed": train(place / "observed", place / "tiny", "no_waiting", **more), "place": place}


def of(done: Any, *keys: str) -> list[list[Any]]:
    return [[logged.get(key) for key in keys] for _, logged in sorted(done.logged().items())]


def test_6_verls_own_peaks_and_losses_stay_what_they_were(done):
    keys = (PEAK, "train/loss", "train/grad_norm")
    plain = of(done["plain_a"], *keys)
    assert len(plain) == STEPS
    assert all(peak > 0 for peak, *_ in plain)
    assert of(done["plain_b"], *keys) == plain
    assert of(done["observed"], *keys) == plain


def test_6_recorded_peaks_meet_the_one_that_verl_logs(done):
    """verl's is the largest since the process began; ours of each step, exactly."""
    with probe.open(done["place"] / "run") as run:
        rows = run.memory[(run.memory["edge"] == "leave") & (run.memory["kind"] != "")]
        before = run.memory[run.memory["step"].isna()]["peak_allocated_bytes"].max()
        largest = 0.0 if before != before else float(before)
        for step, (peak,) in enumerate(of(done["observed"], PEAK), start=1):
            largest = max(largest, float(rows[rows["step"] == step]["peak_allocated_bytes"].max()))
            assert largest / GIB == pytest.approx(peak, rel=1e-6)
        assert set(rows[rows["step"].notna()]["peak_kind"].dropna()) == {"exact"}


def test_6_none_of_probes_hooks_waits_for_the_device(done):
    """What would have waited has raised, and would be an incident; it was looked at some hundred times."""
    counts = [int(file.read_text()) for file in (done["place"] / "watched").glob("watched-*")]
    assert sum(counts) >= 100
    with probe.open(done["place"] / "run") as run:
        assert run.incidents.empty
        assert not run.micro_batches.empty


@pytest.fixture(scope="module")
def grpo(done: dict[str, Any]) -> Any:
    """GRPO on Ray with one worker on the device, in which whatever waits for the device raises."""
    import recipes

    modules = ["stub_rollout", "no_waiting"]
    overrides = ("trainer.device=cuda", "trainer.n_gpus_per_node=1", "++ray_kwargs.ray_init.num_gpus=1")
    found = recipes.grpo(
        done["place"] / "grpo", done["place"] / "tiny", *overrides, modules=modules,
        VERL_USE_EXTERNAL_MODULES=_loaded(*modules), PROBE_RUN_DIR=str(done["place"] / "grpo" / "run"),
    )  # fmt: skip
    assert found.code == 0, found.output[-5000:]
    return found


def test_6_a_worker_of_grpo_tells_the_device_s_memory_by_phase_and_verls_own_peak_is_its_largest(grpo):
    with probe.open(grpo.run) as run:
        assert run.incidents.empty
        rows = run.memory[(run.memory["edge"] == "leave") & (run.memory["source"] == "cuda")]
        assert {"update_actor", "old_log_prob", "ref"} <= set(rows["phase"].dropna())
        assert set(rows["peak_kind"].dropna()) == {"exact"}
        for step, logged in sorted(grpo.logged().items()):
            upto = rows[(rows["step"].isna() | (rows["step"] <= step))]
            peak = logged["actor/perf/max_memory_allocated_gb"]
            assert peak > 0
            assert upto["peak_allocated_bytes"].max() / GIB == pytest.approx(peak, rel=1e-6)


def test_6_none_of_probes_hooks_waits_for_the_device_in_grpo(grpo):
    counts = [int(file.read_text()) for file in (grpo.directory / "counted").glob("watched-*")]
    assert sum(counts) >= 100
    with probe.open(grpo.run) as run:
        assert not run.micro_batches.empty
        assert run.incidents.empty
