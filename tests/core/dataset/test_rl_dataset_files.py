"""Files of prompts and the configuration of a dataset: what is read, and what is refused with its name."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from probe.core.dataset.config import DatasetConfig
from probe.core.dataset.files import Files
from probe.core.rl_dataset import RLHFDataset
from probe.errors import (
    InputError,
    InputTypeError,
    MissingKeyError,
    UnknownNameError,
)
from tests.core.dataset import chat_tokenizer as chat
from tests.core.dataset.prompt_files import TOKENIZER, row, write

# --------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["a.parquet", "a.json", "a.jsonl", "A.JSONL"])
def test_every_kind_of_file_is_read(make, name):
    # The suffix decides, in whatever case.
    dataset = make([row(0), row(1)], name=name)
    assert [one["reward_model"]["ground_truth"] for one in dataset] == ["0", "1"]


@settings(deadline=None, max_examples=8)
@given(
    data=st.lists(
        st.fixed_dictionaries({"n": st.integers(-(2**60), 2**60), "x": st.floats(), "s": st.text(max_size=5)}),
        min_size=1,
        max_size=6,
    )
)
def test_columns_survive(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("columns")
    files = write(folder / "a.parquet", [row(number, **one) for number, one in enumerate(data)])
    dataset = RLHFDataset(files, TOKENIZER, {"cache_dir": str(folder)})
    for got, wanted in zip(dataset, data, strict=True):
        assert (got["n"], got["s"]) == (wanted["n"], wanted["s"])
        assert np.array_equal(got["x"], wanted["x"], equal_nan=True)


def test_files_are_read_one_after_the_other_and_columns_of_some_are_none_in_others(tmp_path):
    files = [
        write(tmp_path / "a.parquet", [row(0), row(1)]),
        write(tmp_path / "b.json", [row(2, more="x"), row(3, more="y", prompt=[{"role": "oracle", "content": ""}])]),
    ]
    config = {"cache_dir": str(tmp_path), "filter_overlong_prompts": False}
    dataset = RLHFDataset(OmegaConf.create(files), TOKENIZER, config)
    assert [dataset[number]["index"] for number in range(3)] == [100, 101, 102]
    assert [dataset[number]["more"] for number in range(3)] == [None, None, "x"]
    with pytest.raises(InputError, match=r"row 1 of .*b\.json"):
        dataset[3]
    assert dataset.data_files == files


def test_a_row_is_traced_to_its_file():
    files = Files(None, ["a", "empty", "b"], [2, 0, 3])
    wanted = ["row 0 of a", "row 1 of a", "row 0 of b", "row 1 of b", "row 2 of b"]
    assert [files.origin(number) for number in range(5)] == wanted


def test_a_file_without_rows_adds_none(tmp_path):
    empty = tmp_path / "empty.parquet"
    pq.write_table(pa.Table.from_pylist([row(0)]).slice(0, 0), empty)
    files = [str(empty), write(tmp_path / "a.parquet", [row(0)])]
    assert len(RLHFDataset(files, TOKENIZER, {"cache_dir": str(tmp_path)})) == 1
    assert len(RLHFDataset(str(empty), TOKENIZER, {"cache_dir": str(tmp_path)})) == 0


@pytest.mark.parametrize("name", ["a*.parquet", "a?.parquet", "a[b].parquet", "a[b].jsonl", "a*.json"])
def test_a_name_is_no_pattern(tmp_path, name):
    # `datasets` would read the files that the name matches.
    for number, other in enumerate(("ab", "ac", "a")):
        write(tmp_path / f"{other}{Path(name).suffix}", [row(number)])
    dataset = RLHFDataset(write(tmp_path / name, [row(7)]), TOKENIZER, {"cache_dir": str(tmp_path / "cache")})
    assert [one["index"] for one in dataset] == [107]


def test_a_file_that_changed_is_read_anew(make):
    assert make([row(0)])[0]["index"] == 100
    assert [one["index"] for one in make([row(5), row(6)])] == [105, 106]


def test_remote_files_are_copied_to_the_cache(tmp_path):
    import fsspec

    local = write(tmp_path / "a.parquet", [row(0), row(1)])
    store = fsspec.filesystem("memory")
    store.put(local, "/prompts/a.parquet")
    try:
        dataset = RLHFDataset("memory://prompts/a.parquet", TOKENIZER, {"cache_dir": str(tmp_path / "cache")})
    finally:
        store.rm("/prompts", recursive=True)
    assert [one["index"] for one in dataset] == [100, 101]
    assert list((tmp_path / "cache").rglob("a.parquet"))


def test_other_kinds_of_files_are_refused(tmp_path):
    config = {"cache_dir": str(tmp_path)}
    with pytest.raises(UnknownNameError, match=r"train\.csv.*\.json, \.jsonl, \.parquet"):
        RLHFDataset("train.csv", TOKENIZER, config)
    with pytest.raises(InputError, match="no files"):
        RLHFDataset([], TOKENIZER, config)
    for wrong in (3, [None]):
        with pytest.raises(InputTypeError, match="data_files"):
            RLHFDataset(wrong, TOKENIZER, config)
    with pytest.raises(FileNotFoundError, match=r"missing\.parquet"):
        RLHFDataset(str(tmp_path / "missing.parquet"), TOKENIZER, config)


@pytest.mark.parametrize("name", ["broken.parquet", "broken.jsonl"])
def test_a_broken_file_is_named(tmp_path, name):
    (tmp_path / name).write_text("{nothing that anyone reads")
    with pytest.raises(InputError, match=f"{name} can't be read"):
        RLHFDataset(str(tmp_path / name), TOKENIZER, {"cache_dir": str(tmp_path)})


def test_a_missing_prompt_column_lists_the_columns(make):
    with pytest.raises(MissingKeyError, match=r"train\.parquet has no column 'question', it has data_source, prompt"):
        make([row(0)], prompt_key="question")
    assert make([{"question": row(0)["prompt"]}], prompt_key="question")[0]["index"] == 0


def test_columns_of_other_types_are_named(tmp_path):
    files = [
        write(tmp_path / "a.parquet", [row(0, score=1.0)]),
        write(tmp_path / "b.parquet", [row(1, score="one")]),
    ]
    with pytest.raises(InputError, match=r"different types.*a\.parquet.*b\.parquet"):
        RLHFDataset(files, TOKENIZER, {"cache_dir": str(tmp_path)})


def test_a_column_that_would_be_overwritten_is_an_error(make):
    with pytest.raises(InputError, match="columns input_ids, whose names"):
        make([row(0, input_ids=[1, 2])])
    assert make([row(0, raw_prompt="kept")])[0]["raw_prompt"] == "kept"
    with pytest.raises(InputError, match="columns raw_prompt"):
        make([row(0, raw_prompt="kept")], return_raw_chat=True)


# -------------------------------------------------------------------------------------------------------------- config


@dataclasses.dataclass
class Section:
    cache_dir: str
    max_prompt_length: int = 9
    truncation: str = "left"
    train_batch_size: int = 4


def test_any_kind_of_config_is_read(tmp_path):
    values = {"cache_dir": str(tmp_path), "max_prompt_length": 9, "truncation": "left", "seed": None}
    kinds = [
        values,
        OmegaConf.create({**values, "other": {"a": 1}, "prompt_key": "???", "apply_chat_template_kwargs": {"a": [1]}}),
        types.SimpleNamespace(**values),
        Section(str(tmp_path)),
    ]
    OmegaConf.set_struct(kinds[1], True)
    for config in kinds:
        read = DatasetConfig.from_config(config)
        assert (read.max_prompt_length, read.truncation, read.prompt_key) == (9, "left", "prompt")
    assert DatasetConfig.from_config(kinds[1]).apply_chat_template_kwargs == {"a": [1]}
    assert type(DatasetConfig.from_config(kinds[1]).apply_chat_template_kwargs["a"]) is list


def test_the_documented_defaults():
    config = DatasetConfig.from_config({})
    assert (config.prompt_key, config.image_key, config.video_key) == ("prompt", "images", "videos")
    assert config.cache_dir == str(Path.home() / ".cache" / "probe" / "rlhf")
    assert (config.max_prompt_length, config.truncation, config.filter_overlong_prompts) == (1024, "error", True)
    assert (config.return_raw_chat, config.return_full_prompt, config.shuffle, config.use_shm) == (False,) * 4


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"truncation": "centre"}, UnknownNameError, "truncation: got 'centre', expected one of error, left"),
        ({"max_prompt_length": 0}, InputError, "max_prompt_length: got 0"),
        ({"max_prompt_length": "12"}, InputTypeError, "max_prompt_length"),
        ({"max_prompt_length": True}, InputTypeError, "max_prompt_length"),
        ({"filter_overlong_prompts": "yes"}, InputTypeError, "filter_overlong_prompts"),
        ({"filter_overlong_prompts_workers": 0}, InputError, "workers"),
        ({"seed": -1}, InputError, "seed"),
        ({"apply_chat_template_kwargs": [1]}, InputTypeError, "apply_chat_template_kwargs"),
        ({"apply_chat_template_kwargs": {"tokenize": True}}, InputError, "got 'tokenize', which the dataset sets"),
        ({"tool_config_path": "tools.yaml"}, InputError, "tool_config_path"),
        (None, InputTypeError, "config"),
        ("left", InputTypeError, "config"),
    ],
)
def test_a_wrong_config_is_an_error(config, error, message):
    with pytest.raises(error, match=message):
        DatasetConfig.from_config(config)


def test_a_tokenizer_must_be_one_and_have_a_padding_token(make):
    with pytest.raises(InputError, match=r"tokenizer\.eos_token"):
        make([row(0)], tokenizer=chat.chat_tokenizer(pad_token=None))
    with pytest.raises(InputTypeError, match="tokenizer: got str"):
        make([row(0)], tokenizer="llama")
