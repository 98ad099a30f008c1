"""TRL's batches worked out from their rule, beside the installed TRL's own: the same parts in the same order."""

from __future__ import annotations

import importlib.util
import itertools
import operator
import random

import pytest
import torch

if importlib.util.find_spec("trl") is None:
    pytest.skip("needs TRL, which lives in its own environment", allow_module_level=True)

import datasets
import pyarrow
from torch.utils.data import BatchSampler, SequentialSampler
from trl import data_utils, pack_dataset
from trl.trainer.utils import split_tensor_dict

from probe.core.balancing.replay import Cut, replay, replay_pieces

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]


def drawn(rng):
    """Lengths and a capacity; half of the batches have few different lengths: ties are what is hard."""
    size, rows = rng.randint(2, 60), rng.randint(1, 40)
    top = rng.choice([size, size, 3 * size])
    values = [rng.randint(1, top) for _ in range(rows if rng.random() < 0.5 else 4)]
    return [rng.choice(values) for _ in range(rows)], size


def told(sequences):
    """Packed token ids, each the number of its row, as (row, tokens)."""
    return [[(row, len(list(tokens))) for row, tokens in itertools.groupby(ids)] for ids in sequences]


def joined(parts):
    """Neighbouring pieces of one row as one: the token ids don't tell them apart."""
    by_row = [itertools.groupby(part, operator.itemgetter(0)) for part in parts]
    return [[(row, sum(tokens for _, tokens in pieces)) for row, pieces in part] for part in by_row]


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
def test_1_packed_sequences_are_trls_own_on_10000_batches(strategy):
    rng = random.Random(strategy)
    overflow = "split" if strategy == "bfd_split" else "truncate"
    for _ in range(10_000):
        lengths, size = drawn(rng)
        table = pyarrow.table({"input_ids": [[row] * length for row, length in enumerate(lengths)]})
        own = (
            data_utils._pack_wrapped(table, size)
            if strategy == "wrapped"
            else data_utils._pack_bfd(table, size, overflow)
        )
        cut = Cut(packer=f"trl.packed.{strategy}", lengths=lengths, cap_tokens=size)
        assert joined(replay_pieces(cut)) == told(own["input_ids"].to_pylist()), cut


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
def test_1_the_public_function_packs_by_that_rule(strategy):
    rng = random.Random(1)
    for _ in range(10):
        lengths, size = drawn(rng)
        data = datasets.Dataset.from_dict({"input_ids": [[row] * length for row, length in enumerate(lengths)]})
        own = pack_dataset(data, seq_length=size, strategy=strategy)
        cut = Cut(packer=f"trl.packed.{strategy}", lengths=lengths, cap_tokens=size)
        assert joined(replay_pieces(cut)) == told(own["input_ids"])


def test_1_steps_per_generation_are_trls_own_on_10000_batches():
    rng = random.Random(0)
    for _ in range(10_000):
        rows = rng.randint(1, 64)
        steps = rng.randint(1, rows)
        own = split_tensor_dict({"rows": torch.arange(rows)}, steps)
        cut = Cut(packer="trl.steps_per_generation", lengths=[1] * rows, count=steps)
        assert replay(cut) == [one["rows"].tolist() for one in own]


def test_1_fixed_rows_are_what_the_loaders_sampler_gives():
    for rows in range(1, 40):
        for each in range(1, 12):
            own = [list(one) for one in BatchSampler(SequentialSampler(range(rows)), each, drop_last=False)]
            assert replay(Cut(packer="trl.fixed_rows", lengths=[1] * rows, rows_each=each)) == own
