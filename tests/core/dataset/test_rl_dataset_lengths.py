"""Prompts that are too long are cut or left out, and a dataset that is resumed measures none again."""

from __future__ import annotations

import logging
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe import hooks
from probe.core.dataset.prompts import truncate
from probe.core.rl_dataset import collate_fn
from probe.errors import (
    CapacityError,
    InputError,
    InputTypeError,
)
from tests.core.dataset import chat_tokenizer as chat
from tests.core.dataset.chat_tokenizer import ids
from tests.core.dataset.prompt_files import TOKENIZER, row, write

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
