"""How verl's trainers are started on a CPU: GRPO on Ray with two workers, and SFT under torchrun with two ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
RANKS = 2
#: Seconds after which a start is given up; an idle machine takes a fifth of it.
LIMIT_S = 600

_A = "actor_rollout_ref"


class Done(NamedTuple):
    """A training that has ended.

    Attributes:
        directory: Where it left everything.
        code: Of its process.
        output: Its standard output and error.
    """

    directory: Path
    code: int
    output: str

    @property
    def run(self) -> Path:
        """probe's run directory; nobody made it where nothing was observed."""
        return self.directory / "run"

    def logged(self) -> dict[int, dict[str, Any]]:
        """What verl's own file logger wrote: metrics by step."""
        lines = (self.directory / "log.jsonl").read_text().splitlines()
        told: dict[int, dict[str, Any]] = {}
        for line in map(json.loads, lines):
            told.setdefault(line["step"], {}).update(line["data"])
        return told

    def counted(self, what: str) -> list[dict[str, Any]]:
        """The lines of :mod:`counter` about ``what``, those of a process in their order."""
        files = sorted((self.directory / "counted").glob("*.jsonl"))
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [line for line in lines if line["what"] == what]


def grpo(directory: Path, tiny: Path, *overrides: str, modules: Sequence[str] = (), **environ: str) -> Done:
    """verl's PPO trainer, V1, with GRPO: Ray, TransferQueue, two FSDP2 workers, reference, agent loop, reward loop."""
    arguments = [
        "-m",
        "verl.trainer.main_ppo",
        "algorithm.adv_estimator=grpo",
        "algorithm.use_kl_in_reward=False",
        f"data.train_files={tiny}/rl.parquet",
        f"data.val_files={tiny}/rl.parquet",
        "data.train_batch_size=8",
        "data.max_prompt_length=160",
        "data.max_response_length=48",
        "data.dataloader_num_workers=0",
        "++data.filter_overlong_prompts_workers=1",
        "data.return_raw_chat=True",
        f"{_A}.model.path={tiny}",
        f"{_A}.model.use_remove_padding=True",
        f"++{_A}.model.override_config.attn_implementation=sdpa",
        f"{_A}.model.enable_gradient_checkpointing=False",
        f"{_A}.actor.strategy=fsdp2",
        f"{_A}.actor.ppo_mini_batch_size=4",
        f"{_A}.actor.use_dynamic_bsz=True",
        f"{_A}.actor.ppo_max_token_len_per_gpu=512",
        f"{_A}.actor.use_kl_loss=True",
        f"{_A}.actor.use_torch_compile=False",
        f"{_A}.actor.fsdp_config.use_torch_compile=False",
        f"{_A}.actor.fsdp_config.dtype=float32",
        f"{_A}.ref.strategy=fsdp2",
        f"{_A}.ref.log_prob_use_dynamic_bsz=True",
        f"{_A}.ref.log_prob_max_token_len_per_gpu=512",
        f"{_A}.ref.use_torch_compile=False",
        f"{_A}.ref.fsdp_config.use_torch_compile=False",
        f"{_A}.ref.fsdp_config.dtype=float32",
        f"{_A}.rollout.name=stub",
        f"{_A}.rollout.n=4",
        f"{_A}.rollout.tensor_model_parallel_size=1",
        f"{_A}.rollout.agent.num_workers=1",
        f"{_A}.rollout.temperature=1.0",
        f"{_A}.rollout.free_cache_engine=False",
        f"{_A}.rollout.full_determinism=True",
        f"{_A}.rollout.log_prob_use_dynamic_bsz=True",
        f"{_A}.rollout.log_prob_max_token_len_per_gpu=512",
        "reward.num_workers=1",
        f"reward.custom_reward_function.path={HERE}/reward.py",
        "reward.custom_reward_function.name=score",
        f"trainer.v1.sampler.custom_sampler.path={HERE}/sorted_sampler.py",
        "trainer.v1.sampler.custom_sampler.name=SortedReplayBuffer",
        f"trainer.n_gpus_per_node={RANKS}",
        "trainer.nnodes=1",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=2",
        "trainer.total_epochs=1",
        "trainer.total_training_steps=2",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",  # of 8, each a process that imports verl
        "ray_kwargs.ray_init.num_cpus=16",
        f"++ray_kwargs.ray_init.num_gpus={RANKS}",
        "++ray_kwargs.ray_init.include_dashboard=False",
    ]
    return _train(directory, arguments, overrides, ["stub_rollout", "counter", *modules], environ)


def sft(
    directory: Path, tiny: Path, *overrides: str, modules: Sequence[str] = (), ranks: int = RANKS, **environ: str
) -> Done:
    """verl's SFT trainer under torchrun, FSDP2, four steps of 16 conversations; packed unless told otherwise."""
    arguments = [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)),
        *("-m", "verl.trainer.sft_trainer"),
        f"data.train_files={tiny}/sft.parquet",
        "data.train_batch_size=16",
        "data.max_token_len_per_gpu=384",
        "data.use_dynamic_bsz=True",
        "data.micro_batch_size_per_gpu=4",
        "data.num_workers=0",
        "data.max_length=256",
        "data.truncation=right",
        "data.ignore_input_ids_mismatch=True",
        f"model.path={tiny}",
        "model.use_remove_padding=True",
        "+model.override_config.attn_implementation=sdpa",
        "model.enable_gradient_checkpointing=False",
        "engine.strategy=fsdp2",
        "engine.use_torch_compile=False",
        "engine.dtype=float32",
        f"trainer.n_gpus_per_node={ranks}",
        "trainer.total_epochs=1",
        "trainer.total_training_steps=4",
    ]
    return _train(directory, arguments, overrides, ["counter", *modules], {"CUDA_VISIBLE_DEVICES": ""} | environ)


def _train(
    directory: Path,
    arguments: Sequence[str],
    overrides: Sequence[str],
    modules: Sequence[str],
    environ: Mapping[str, str],
) -> Done:
    (directory / "counted").mkdir(parents=True)
    common = [
        "trainer.device=cpu",
        "trainer.logger=[console,file]",
        "trainer.project_name=sums",
        f"trainer.experiment_name={directory.name}",
        f"trainer.default_local_dir={directory}/checkpoints",
        "trainer.resume_mode=disable",
    ]
    command = [sys.executable, *arguments, *common, *overrides]
    process = subprocess.Popen(
        command,
        env=_environment(directory, modules, environ),
        cwd=directory,  # a folder called trl or verl in the working directory would be taken for the package
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    finally:  # Ray's own processes are in the group too
        _end_group(process.pid)
    (directory / "output.txt").write_text(output)
    return Done(directory, process.returncode, output)


def _environment(directory: Path, modules: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    paths = [str(ROOT), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HYDRA_FULL_ERROR": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_FILE_LOGGER_PATH": str(directory / "log.jsonl"),
        "VERL_USE_EXTERNAL_MODULES": ",".join(["without_trl", "cpu_platform", *modules]),
        "COUNTER_DIR": str(directory / "counted"),
        "REPEATABLE": "1",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "VERL_", "RAY_"))}
    return {**kept, **settings, **environ}


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
