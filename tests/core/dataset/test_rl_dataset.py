"""Prompts: every row is there with every column, tokenized as the template says, alone and in batches."""

from __future__ import annotations

import logging
import socket
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from probe.core.codec import stack_or_nest
from probe.core.protocol import DataProto
from probe.core.rl_dataset import collate_fn
from probe.errors import (
    InputError,
    InputTypeError,
    MissingKeyError,
    ShapeError,
)
from tests.core.dataset import chat_tokenizer as chat
from tests.core.dataset.chat_tokenizer import ids
from tests.core.dataset.prompt_files import row
from tests.ranks import SERVER

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
        "tools_kwargs are needed but empty in row 0 of data_files (warned once)"
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
