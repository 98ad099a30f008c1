"""Fixtures of the tests of datasets."""

from __future__ import annotations

import pytest

from probe.core.rl_dataset import RLHFDataset
from tests.core.dataset.prompt_files import TOKENIZER, write


@pytest.fixture
def make(tmp_path):
    """Make a dataset of rows; keyword arguments are its config."""

    def dataset(rows, *, name="train.parquet", processor=None, max_samples=-1, tokenizer=TOKENIZER, **config):
        files = write(tmp_path / name, rows)
        config = {"cache_dir": str(tmp_path / "cache"), "max_prompt_length": 12, **config}
        return RLHFDataset(files, tokenizer, config, processor, max_samples)

    return dataset
