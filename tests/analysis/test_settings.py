"""2: settings have the names of the framework that a run was trained with, and none where none is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.adapters.attachment import ADAPTERS
from probe.analysis.framework_settings import NAMES, framework, setting
from probe.runs.reader import Run
from tests.sample_run import process, write_run

VERL_ROWS = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
VERL_TOKENS = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
DEVICE_BATCH = "per_device_train_batch_size"
TRANSFORMERS = "transformers 5.6.0: 12 of 12 points are observed"


@pytest.mark.parametrize(
    ("adapters", "known", "rows", "tokens"),
    [
        ("", "", "micro_batch_size", "max_token_len"),
        ("verl 0.9.1: 24 of 24 points are observed", "verl", VERL_ROWS, VERL_TOKENS),
        (f"{TRANSFORMERS}; trl 1.16: 9 of 9 points are observed", "trl", DEVICE_BATCH, None),
        (TRANSFORMERS, "transformers", DEVICE_BATCH, None),
        ("pytorch_lightning 2.6: 3 of 3 points are observed", "pytorch_lightning", "batch_size", None),
        ("openrlhf 0.9: 4 of 5 points are observed; not found: samples", "openrlhf", None, None),
        ("nemo_rl: 4 of 5 points are observed", "nemo_rl", None, None),
        ("verl: not imported; torchtitan: 4 of 4 points are observed", "torchtitan", None, None),
    ],
)  # fmt: skip
def test_2_settings_are_those_of_the_framework_that_is_observed(
    tmp_path: Path, adapters: str, known: str, rows: str | None, tokens: str | None
) -> None:
    told = process(0)
    told.adapters = adapters
    with Run(write_run(tmp_path / "run", {0: [told]})) as run:
        assert framework(run) == known
        assert setting(run, "micro_batch_rows") == (rows, None)
        assert setting(run, "micro_batch_tokens") == (tokens, None)


def test_2_every_framework_that_is_named_is_one_that_can_be_observed() -> None:
    assert {one for names in NAMES.values() for one in names} <= {"", *ADAPTERS}
