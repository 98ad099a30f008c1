"""Prompts: every row is there with every column, tokenized as the template says, and nothing is dropped unsaid."""

from __future__ import annotations

import dataclasses
import json
import logging
import pickle
import socket
import sys
import types
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torch.utils.data import DataLoader

from probe import hooks
from probe.core.codec import stack_or_nest
from probe.core.dataset.config import DatasetConfig
from probe.core.dataset.files import Files
from probe.core.dataset.prompts import truncate
from probe.core.protocol import DataProto
from probe.core.rl_dataset import RLHFDataset, collate_fn
from probe.errors import (
    CapacityError,
    InputError,
    InputTypeError,
    MissingKeyError,
    ShapeError,
    UnknownNameError,
)
from tests.core.dataset import chat_tokenizer as chat
from tests.ranks import SERVER

ids = chat.ids

TOKENIZER = chat.chat_tokenizer()


def row(number, words=2, **more):
    text = " ".join(f"w{(number + place) % 100}" for place in range(words))
    return {
        "data_source": f"source/{number}",
        "prompt": [{"role": "user", "content": text}],
        "reward_model": {"style": "rule", "ground_truth": str(number)},
        "extra_info": {"index": 100 + number, "split": "train"},
        **more,
    }


def write(path, rows):
    if path.suffix == ".parquet":
        names = dict.fromkeys(name for one in rows for name in one)  # pyarrow looks at the first row alone
        pq.write_table(pa.Table.from_pylist([dict.fromkeys(names) | one for one in rows]), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.fixture
def make(tmp_path):
    """Make a dataset of rows; keyword arguments are its config."""

    def dataset(rows, *, name="train.parquet", processor=None, max_samples=-1, tokenizer=TOKENIZER, **config):
        files = write(tmp_path / name, rows)
        config = {"cache_dir": str(tmp_path / "cache"), "max_prompt_length": 12, **config}
        return RLHFDataset(files, tokenizer, config, processor, max_samples)

    return dataset


# -------------------------------------------------------------------------------------------------------------- a row


def test_a_row_has_its_tokens_and_every_other_column(make):
    dataset = make([row(0), row(1, words=4)], return_raw_chat=True, return_full_prompt=True)
    got = dataset[1]
    tokens = ids("<bos> user : w1 w2 w3 w4 assistant :")
    assert got["input_ids"].tolist() == [0] * 3 + tokens
    assert got["attention_mask"].tolist() == [0] * 3 + [1] * 9
    assert got["position_ids"].tolist() == [0] * 3 + list(range(9))
    assert {got[key].dtype for key in ("input_ids", "attention_mask", "position_ids")} == {torch.long}
    assert got["raw_prompt_ids"] == tokens
    assert got["raw_prompt"] == [{"role": "user", "content": "w1 w2 w3 w4"}]
    assert got["full_prompts"] == "<bos> user : w1 w2 w3 w4 assistant :"
    assert got["data_source"] == "source/1"
    assert got["reward_model"] == {"style": "rule", "ground_truth": "1"}
    assert got["extra_info"] == {"index": 101, "split": "train"}
    assert (got["index"], got["tools_kwargs"], got["interaction_kwargs"]) == (101, {}, {})
    assert "prompt" not in got
    assert len(dataset) == 2


def test_the_raw_chat_and_the_text_come_only_when_asked_for(make):
    assert not {"raw_prompt", "full_prompts", "multi_modal_data"} & make([row(0)])[0].keys()


def test_the_template_s_special_tokens_are_not_doubled(make):
    # This tokenizer puts a <bos> in front of whatever it is given, and the template has written one already.
    assert make([row(0)])[0]["raw_prompt_ids"].count(ids("<bos>")[0]) == 1


def test_arguments_of_the_template_are_given_on(make):
    dataset = make([row(0)], apply_chat_template_kwargs={"thinking": True}, return_full_prompt=True)
    assert dataset[0]["full_prompts"].endswith("assistant : think")
    dataset = make([row(0)], apply_chat_template_kwargs={"add_generation_prompt": False}, return_full_prompt=True)
    assert "assistant" not in dataset[0]["full_prompts"]


def test_extras_come_from_extra_info_then_columns_then_defaults(make):
    rows = [
        row(0, extra_info={"index": 7, "tools_kwargs": {"search": {"k": 1}}, "interaction_kwargs": {"name": "x"}}),
        row(1, extra_info={"index": None, "tools_kwargs": None, "interaction_kwargs": None}, index=9),
        row(2, extra_info=None),
    ]
    first, second, third = make(rows)
    assert (first["index"], second["index"], third["index"]) == (7, 9, 2)
    assert first["tools_kwargs"] == {"search": {"k": 1}}
    assert first["interaction_kwargs"] == {"name": "x"}
    assert second["tools_kwargs"] == third["interaction_kwargs"] == {}


def test_missing_tools_are_told_once(make, caplog):
    dataset = make([row(0), row(1)], need_tools_kwargs=True)
    with caplog.at_level(logging.WARNING, logger="probe.core.rl_dataset"):
        list(dataset)
    assert [record.message for record in caplog.records] == [
        "tools_kwargs are needed but empty in row 0 of data_files (told once)"
    ]


def test_keys_that_a_table_filled_with_none_are_not_in_the_messages(make):
    rows = [
        row(0, prompt=[{"role": "user", "content": "w1", "name": "x"}, {"role": "assistant", "content": None}]),
        row(1, prompt=[{"role": "user", "content": "w1"}]),
    ]
    template = "{% for m in messages %}{{ m.keys() | list | join(' ') }} {% endfor %}"
    dataset = make(rows, tokenizer=chat.chat_tokenizer(chat_template=template), return_full_prompt=True)
    assert sorted(dataset[1]["full_prompts"].split()) == ["content", "role"]
    assert "name" in dataset[0]["full_prompts"].split()
    raw = make(rows, return_raw_chat=True, apply_chat_template_kwargs={"chat_template": template})[0]["raw_prompt"]
    assert raw[1] == {"role": "assistant", "content": None}


def told_with(keys):
    """A chat whose every dict has other keys than the other row's."""
    arguments = {"city": "Oslo"} if "a" not in keys else {"a": 1, "b": [{"c": "x"}, {"d": "y"}]}
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    schema = {"name": "weather", "parameters": {keys[0]: {"type": "string"}}}
    part = {"type": "text", "text": "w1", "more": {keys[-1]: {"deep": {keys[0]: 1}}}}
    chat = [
        {"role": "system", "content": [{"type": "text", "text": "w2"}], "tools": [schema]},
        {"role": "user", "content": [part]},
        {"role": "assistant", "content": [{"type": "text", "text": "w3"}], "tool_calls": [call]},
    ]
    tools = {"search": {"create_kwargs": {keys[0]: "x", "given": {keys[-1]: 2}}}}
    return {"prompt": chat, "extra_info": {"index": 0, "tools_kwargs": tools, "interaction_kwargs": {keys[0]: [1]}}}


@pytest.mark.parametrize("name", ["train.parquet", "train.jsonl", "train.json"])
def test_25_9_a_chat_is_the_same_from_every_kind_of_file(make, name):
    """Arrow fills a dict with the keys of all rows: the model would be trained on other text."""
    rows = [row(0, **told_with(["p", "q"])), row(1, **told_with(["a", "z"]))]
    template = "{% for m in messages %}{{ m | tojson }} {% endfor %}"
    tokenizer = chat.chat_tokenizer(chat_template=template)
    options = {"return_raw_chat": True, "return_full_prompt": True, "max_prompt_length": 400}
    dataset = make(rows, name=name, tokenizer=tokenizer, **options)
    for got, wanted in zip(dataset, rows, strict=True):
        assert got["raw_prompt"] == wanted["prompt"]
        assert "null" not in got["full_prompts"]
        for extra in ("tools_kwargs", "interaction_kwargs"):
            assert got[extra] == wanted["extra_info"][extra]


def test_negative_rows_count_from_the_end_and_outside_is_an_index_error(make):
    dataset = make([row(0), row(1)])
    assert dataset[-1]["index"] == dataset[np.int64(1)]["index"] == 101
    with pytest.raises(IndexError, match="2 rows"):
        dataset[2]
    with pytest.raises(InputTypeError, match="item"):
        dataset[0:1]
    assert [one["index"] for one in dataset] == [100, 101]


# ---------------------------------------------------------------------------------------------------------- truncation


@settings(deadline=None, max_examples=30)
@given(tokens=st.lists(st.integers(0, 9), max_size=30), limit=st.integers(1, 20))
def test_truncation_keeps_what_it_says(tokens, limit):
    left, right, middle = (truncate(tokens, limit, how) for how in ("left", "right", "middle"))
    kept = min(limit, len(tokens))
    assert left == tokens[len(tokens) - kept :]
    assert right == tokens[:kept]
    assert len(middle) == kept
    if len(tokens) > limit:
        assert middle[: limit // 2] == tokens[: limit // 2]
        assert middle[limit // 2 :] == tokens[len(tokens) - (limit - limit // 2) :]
        with pytest.raises(CapacityError, match=f"{len(tokens)} tokens.*{limit}"):
            truncate(tokens, limit, "error")
    else:
        assert left == right == middle == truncate(tokens, limit, "error") == tokens


@pytest.mark.parametrize("how", ["left", "right", "middle"])
def test_an_overlong_prompt_is_cut_alike_in_tensors_and_list(make, how):
    dataset = make([row(0, words=20)], truncation=how, filter_overlong_prompts=False)
    whole = ids("<bos> user : " + " ".join(f"w{n}" for n in range(20)) + " assistant :")
    got = dataset[0]
    expected = {"left": whole[-12:], "right": whole[:12], "middle": whole[:6] + whole[-6:]}[how]
    assert got["raw_prompt_ids"] == got["input_ids"].tolist() == expected
    assert got["attention_mask"].tolist() == [1] * 12


def test_an_overlong_prompt_is_an_error_that_names_file_and_row(make):
    dataset = make([row(0), row(1, words=20)], filter_overlong_prompts=False)
    with pytest.raises(CapacityError, match=r"row 1 of .*train\.parquet: prompt: 25 tokens.*of 12"):
        dataset[1]
    assert dataset[0]["index"] == 100


# -------------------------------------------------------------------------------------------------------------- filter


class Heard(hooks.Listener):
    def __init__(self):
        self.told = []

    def fire(self, event):
        self.told.append((event.point.name, dict(event.values)))

    def leave(self, event, state):
        self.told.append((event.point.name, type(event.result).__name__))


def test_overlong_prompts_are_left_out_counted_and_told(make, caplog):
    heard = Heard()
    rows = [row(0), row(1, words=8), row(2, words=7), row(3, words=50)]
    with hooks.subscribe(heard, "rl_dataset.*"), caplog.at_level(logging.INFO, logger="probe.core.rl_dataset"):
        dataset = make(rows)
        collate_fn([dataset[0]])
    assert [one["index"] for one in dataset] == [100, 102]
    assert (len(dataset), dataset.dropped, dataset.rows.tolist()) == (2, 2, [0, 2])
    (load, _), (name, told), (collate, _) = heard.told
    assert (load, name, collate) == ("rl_dataset.load", "rl_dataset.filter", "rl_dataset.collate_fn")
    assert (told["kept"], told["dropped"], told["limit_tokens"]) == (2, 2, 12)
    assert (told["lengths_tokens"], told["rows"]) == ([7, 13, 12, 55], [0, 1, 2, 3])
    assert "2 of 4 prompts are longer than 12 tokens" in caplog.text


def test_the_filter_can_be_off(make):
    assert len(make([row(0, words=50)], filter_overlong_prompts=False, truncation="left")) == 1


def test_a_filter_in_several_processes_keeps_the_same_rows(make):
    rows = [row(number, words=number % 14 + 1) for number in range(40)]
    alone = make(rows, filter_overlong_prompts_workers=1)
    together = make(rows, name="again.parquet", filter_overlong_prompts_workers=2)
    assert alone.rows.tolist() == together.rows.tolist()
    assert 0 < alone.dropped == together.dropped


class Choosy:
    """A tokenizer that fails on one word."""

    pad_token_id = TOKENIZER.pad_token_id
    apply_chat_template = staticmethod(TOKENIZER.apply_chat_template)

    def __call__(self, texts, **options):
        if any("w13" in text for text in texts):
            raise RuntimeError("I don't know w13")
        return TOKENIZER(texts, **options)


class Alone:
    """A tokenizer that holds what can't be sent to another process."""

    pad_token_id = TOKENIZER.pad_token_id
    apply_chat_template = staticmethod(TOKENIZER.apply_chat_template)
    __call__ = staticmethod(TOKENIZER)

    def __init__(self):
        self.stream = iter(word for word in ())


@pytest.mark.parametrize("asked", [2, None], ids=["asked for", "chosen"])
def test_25_10_a_tokenizer_that_cant_be_pickled_measures_in_this_process(make, caplog, monkeypatch, asked):
    rows = [row(number, words=number % 12 + 1) for number in range(10)]
    monkeypatch.setattr("probe.core.rl_dataset._ROWS_OF_A_WORKER", 2)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    with caplog.at_level(logging.WARNING, logger="probe.core.rl_dataset"):
        dataset = make(rows, tokenizer=Alone(), filter_overlong_prompts_workers=asked)
    assert dataset.rows.tolist() == make(rows, filter_overlong_prompts_workers=1).rows.tolist()
    (said,) = [one.message for one in caplog.records if "measured in this process alone" in one.message]
    assert "can't be pickled (TypeError: cannot pickle 'generator' object" in said


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_template_is_an_error_and_not_a_dropped_row(make, workers):
    rows = [row(0), row(1, prompt=[{"role": "oracle", "content": "w1"}]), row(2)]
    with pytest.raises(InputError, match=r"row 1 of .*train\.parquet: the chat template failed.*unknown role oracle"):
        make(rows, filter_overlong_prompts_workers=workers)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_shuffled_row_is_named_by_its_number_in_the_file(make, seed):
    rows = [row(number, prompt=[{"role": "oracle" if number == 4 else "user", "content": "w1"}]) for number in range(6)]
    with pytest.raises(InputError, match=r"row 4 of .*oracle"):
        make(rows, shuffle=True, seed=seed, filter_overlong_prompts_workers=3)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_tokenizer_names_the_row(make, workers):
    rows = [row(number, words=1) for number in (11, 12, 13, 14)]
    with pytest.raises(InputError, match=r"row 2 of .*train\.parquet: RuntimeError: I don't know w13"):
        make(rows, tokenizer=Choosy(), filter_overlong_prompts_workers=workers)


def test_a_failing_template_is_an_error_without_the_filter_too(make):
    dataset = make([row(0), row(1, prompt=[{"role": "oracle", "content": "w1"}])], filter_overlong_prompts=False)
    with pytest.raises(InputError, match=r"row 1 of .*unknown role oracle"):
        dataset[1]


@pytest.mark.parametrize(
    "prompt", [[], [{"role": "user"}], "w1 w2", None], ids=["empty", "no content", "a string", "none"]
)
def test_a_prompt_that_is_no_chat_is_an_error_that_names_the_row(make, prompt):
    with pytest.raises(InputTypeError, match=r"row 0 of .*jsonl: prompt.*expected a"):
        make([row(0, prompt=prompt)], name="train.jsonl")


def test_a_prompt_without_tokens_is_an_error(make):
    tokenizer = chat.chat_tokenizer(chat_template="{{ '' }}")
    with pytest.raises(InputError, match=r"row 0 of .*no tokens"):
        make([row(0)], tokenizer=tokenizer)
    with pytest.raises(InputError, match=r"row 0 of .*no tokens"):
        make([row(0)], tokenizer=tokenizer, filter_overlong_prompts=False)[0]


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
    with pytest.raises(InputError, match="columns input_ids have names"):
        make([row(0, input_ids=[1, 2])])
    assert make([row(0, raw_prompt="kept")])[0]["raw_prompt"] == "kept"
    with pytest.raises(InputError, match="columns raw_prompt"):
        make([row(0, raw_prompt="kept")], return_raw_chat=True)


# ------------------------------------------------------------------------------------------------- samples and shuffle


def test_max_samples_takes_the_first_rows_and_the_filter_comes_after(make):
    rows = [row(0), row(1, words=50), row(2), row(3)]
    dataset = make(rows, max_samples=3)
    assert (dataset.rows.tolist(), dataset.dropped) == ([0, 2], 1)
    assert len(make(rows, max_samples=100)) == 3
    assert len(make(rows, max_samples=0)) == 0
    for wrong, error in ((-2, InputError), (1.5, InputTypeError), (True, InputTypeError)):
        with pytest.raises(error, match="max_samples"):
            make(rows, max_samples=wrong)


def test_a_seed_settles_the_order(make):
    rows = [row(number) for number in range(30)]
    orders = {seed: make(rows, shuffle=True, seed=seed).rows.tolist() for seed in (1, 2, None)}
    assert sorted(orders[1]) == list(range(30)) != orders[1]
    assert orders[1] != orders[2]
    assert make(rows, shuffle=True, seed=1).rows.tolist() == orders[1]
    assert make(rows, shuffle=True).rows.tolist() == orders[None]  # no seed is one too: ranks must agree
    some = make(rows, shuffle=True, seed=1, max_samples=5)
    assert some.rows.tolist() == orders[1][:5]
    assert [one["index"] - 100 for one in some] == orders[1][:5]


# -------------------------------------------------------------------------------------------------------------- resume


def test_a_pickled_dataset_works_at_once_and_measures_nothing_again(make):
    rows = [row(number, words=number % 12 + 1) for number in range(60)]
    dataset = make(rows, shuffle=True, seed=3, max_samples=50)
    stored = pickle.dumps(dataset)
    heard = Heard()
    with hooks.subscribe(heard, "rl_dataset.*"):
        again = pickle.loads(stored)
        assert len(again) == len(dataset) < 50
    assert [name for name, _ in heard.told] == ["rl_dataset.load"]
    assert again.rows.tolist() == dataset.rows.tolist()
    assert again.dropped == dataset.dropped > 0
    assert again[3]["raw_prompt_ids"] == dataset[3]["raw_prompt_ids"]
    assert pickle.dumps(pickle.loads(stored)) is not None  # before anything was read
    assert pickle.loads(pickle.dumps(pickle.loads(stored))).rows.tolist() == dataset.rows.tolist()


def test_pickles_are_small(make):
    big = make([row(number, ballast="x" * 1000) for number in range(500)])
    spare = len(pickle.dumps(big)) - len(pickle.dumps(TOKENIZER))
    assert spare < 5000 < 500_000


def test_resuming_reads_the_original_files_anew(make, tmp_path):
    dataset = pickle.loads(pickle.dumps(make([row(0), row(1, words=50)])))
    dataset.resume_dataset_state()
    assert [one["index"] for one in dataset] == [100]
    write(tmp_path / "train.parquet", [row(0), row(1), row(2)])
    with pytest.raises(InputError, match=r"have \[3\] rows, expected \[2\]"):
        dataset.resume_dataset_state()
    assert [one["index"] for one in dataset] == [100]  # as it was


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
        ({"apply_chat_template_kwargs": {"tokenize": True}}, InputError, "'tokenize' is given by the dataset"),
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


# ------------------------------------------------------------------------------------------------------------- collate


@settings(deadline=None, max_examples=40)
@given(
    values=st.lists(st.one_of(st.integers(), st.text(), st.lists(st.integers()), st.none()), min_size=1, max_size=6),
    width=st.integers(0, 4),
)
def test_collate_stacks_tensors_and_keeps_the_rest_as_it_is(values, width):
    rows = [{"n": torch.full((width, 2), number), "any": value} for number, value in enumerate(values)]
    got = collate_fn(rows)
    assert got["n"].shape == (len(values), width, 2)
    assert torch.equal(got["n"], torch.stack([one["n"] for one in rows]))
    assert (got["any"].dtype, got["any"].shape) == (object, (len(values),))
    assert all(mine is yours for mine, yours in zip(got["any"], values, strict=True))


@pytest.mark.parametrize("k", [1, 3, 4])
def test_25_11_positions_of_other_lengths_are_jagged_in_the_last_dimension(k):
    rows = [torch.arange(k * length).reshape(k, length) for length in (4, 0, 7, k)]
    found = collate_fn([{"position_ids": one, "uid": number} for number, one in enumerate(rows)])["position_ids"]
    assert found.is_nested
    assert all(map(torch.equal, found.unbind(), rows))
    again = stack_or_nest(rows)
    assert torch.equal(found.values(), again.values())
    assert torch.equal(found.offsets(), again.offsets())
    assert found._ragged_idx == again._ragged_idx == 2
    assert collate_fn([{"a": rows[0]}, {"a": rows[0]}])["a"].shape == (2, k, 4)


def test_collate_of_nothing_is_empty():
    assert collate_fn([]) == {}


def test_arrays_and_lists_of_equal_length_stay_one_object_a_row():
    got = collate_fn([{"a": np.zeros(3), "l": [1, 2]}, {"a": np.ones(3), "l": [3, 4]}])
    assert got["a"].shape == got["l"].shape == (2,)
    assert got["l"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([{"a": 1, "b": 2}, {"a": 1}], MissingKeyError, r"data_list\[1\]: has no 'b'"),
        ([{"a": 1}, {"a": 1, "b": 2}], MissingKeyError, r"data_list\[0\]: has no 'b'"),
        ([{"a": torch.zeros(1)}, {"a": 1.0}], InputTypeError, "'a' is of type Tensor in row 0 and float in row 1"),
        ([{"a": 1.0}, {"a": torch.zeros(1)}], InputTypeError, "'a' is of type float in row 0 and Tensor in row 1"),
        ([{"a": torch.zeros(2)}, {"a": torch.zeros(3)}], ShapeError, r"'a' has shapes \(2,\), \(3,\).*row 1"),
        ([{"a": torch.zeros(3, 2)}, {"a": torch.zeros(2, 2)}], ShapeError, r"'a' has shapes \(3, 2\), \(2, 2\)"),
        ([{"a": torch.zeros(3, 2)}, {"a": torch.zeros(3, 4).long()}], InputTypeError, "'a' is torch.int64 .*row 1"),
        ([{"a": torch.zeros(2)}, {"a": torch.zeros(2).long()}], InputTypeError, "'a' is torch.int64 .*row 1"),
        ([{"a": 1}, [1]], InputTypeError, r"data_list\[1\]: got list"),
    ],
)
def test_collate_loses_nothing_silently(rows, error, message):
    with pytest.raises(error, match=message):
        collate_fn(rows)


def test_a_batch_becomes_a_dataproto_and_back(make):
    dataset = make([row(number, words=number + 1) for number in range(4)], return_raw_chat=True)
    rows = [dataset[number] for number in range(4)]
    data = DataProto.from_single_dict(collate_fn(rows))
    assert len(data) == 4
    for number, one in enumerate(rows):
        item = data[number]
        for key, value in one.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(item.batch[key], value)
            else:
                assert item.non_tensor_batch[key] == value


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_loader_with_workers_gives_what_the_dataset_holds(make):
    dataset = make([row(number, words=number % 7 + 1) for number in range(10)])
    loader = DataLoader(
        dataset, batch_size=4, num_workers=2, collate_fn=collate_fn, multiprocessing_context=SERVER, timeout=120
    )
    batches = list(loader)
    assert [len(batch["index"]) for batch in batches] == [4, 4, 2]
    assert [index for batch in batches for index in batch["index"]] == list(range(100, 110))
    alone = collate_fn(list(dataset))
    assert torch.equal(torch.cat([batch["input_ids"] for batch in batches]), alone["input_ids"])


# ------------------------------------------------------------------------------------------------------------ manners


def test_progress_bars_of_datasets_are_left_as_they_were(make, capfd):
    import datasets

    for disabled in (False, True):
        (datasets.disable_progress_bars if disabled else datasets.enable_progress_bars)()
        make([row(0)], name=f"{disabled}.parquet")
        assert datasets.are_progress_bars_disabled() is disabled
    datasets.enable_progress_bars()
    assert capfd.readouterr().err == ""  # nobody watches: no bars


def test_who_watches_sees_bars_of_long_work(make, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    make([row(0)], name="a.jsonl")
    shown = capsys.readouterr().err
    assert "Reading JSON" in shown
    assert "Measuring prompts" in shown


def test_nothing_is_asked_of_the_network(make, monkeypatch):
    def refused(self, address):
        raise AssertionError(f"the dataset connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refused)
    assert [len(make([row(0)], name=name)) for name in ("a.parquet", "a.jsonl")] == [1, 1]


@pytest.mark.slow
def test_importing_it_brings_nothing_heavy():
    import subprocess

    code = (
        "import sys; import probe.core.rl_dataset; "
        "print({'datasets', 'transformers', 'PIL', 'pandas', 'pyarrow'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
