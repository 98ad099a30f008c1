"""The parts of the demo, each alone: problems, tokenizer, model, sampling, reward and formulas."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.core.torch_functional import logprobs_from_logits
from probe.demo.actor import Actor
from probe.demo.algorithm import group_advantages, policy_loss
from probe.demo.data import read_problems, write_problems
from probe.demo.model import Policy, pack
from probe.demo.problems import ANSWER_WIDTH, PROMPT_WIDTH
from probe.demo.reward import score
from probe.demo.rollout import pad_right, receive, sample, send
from probe.demo.settings import Settings
from probe.demo.tokenizer import ALPHABET, EOS, PAD, VOCABULARY, decode, encode, tokenizer
from probe.errors import InputError


@pytest.fixture
def policy() -> Policy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Policy(VOCABULARY, positions=32, width=16, heads=2, layers=2)


def pad_left(sequences: list[list[int]], width: int) -> torch.Tensor:
    return torch.tensor([[PAD] * (width - len(tokens)) + tokens for tokens in sequences])


# -------------------------------------------------------------------------------------------------------- problems


def right_answer(prompt: str) -> str:
    """Worked out without the generator's help."""
    if prompt.startswith("r"):
        return ",".join(word[::-1] for word in prompt[1:-1].split(","))
    assert re.fullmatch(r"\d+([+*]\d+)+=", prompt)
    numbers = [int(number) for number in re.findall(r"\d+", prompt)]
    return str(sum(numbers) if "+" in prompt else math.prod(numbers))


def plain(path: Path) -> list[tuple[str, str]]:
    return [
        (row["prompt"][0]["content"], row["reward_model"]["ground_truth"]) for row in pq.read_table(path).to_pylist()
    ]


def test_problems_are_distinct_right_and_of_many_lengths(tmp_path: Path) -> None:
    table = plain(write_problems(tmp_path / "p.parquet", rows=400, seed=1))
    assert len({prompt for prompt, _ in table}) == 400
    assert all(answer == right_answer(prompt) for prompt, answer in table)
    prompts, answers = ({len(pair[place]) for pair in table} for place in (0, 1))
    assert (min(prompts), min(answers)) == (3, 1)
    assert 17 < max(prompts) <= PROMPT_WIDTH
    assert 15 < max(answers) <= ANSWER_WIDTH


def test_problems_depend_on_the_seed_alone(tmp_path: Path) -> None:
    first, again, other = (
        pq.read_table(write_problems(tmp_path / f"{name}.parquet", rows=50, seed=seed))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first.equals(again)
    assert not first.equals(other)


def test_problems_are_read_as_tokens(tmp_path: Path) -> None:
    path = write_problems(tmp_path / "p.parquet", rows=20, seed=1)
    problems = read_problems(path, Settings())
    assert len(problems) == 20
    for row, (prompt, answer) in zip(problems, plain(path), strict=True):
        assert row["input_ids"].tolist() == pad_left([encode(prompt)], PROMPT_WIDTH)[0].tolist()
        assert row["reward_model"]["ground_truth"] == answer


# ------------------------------------------------------------------------------------------------------- tokenizer


TOKENIZER = tokenizer()


@given(st.text(alphabet=ALPHABET))
@settings(deadline=None)
def test_the_tokenizer_comes_back_to_the_text(text: str) -> None:
    assert decode([*encode(text), EOS, PAD, 5]) == text


@given(st.text(alphabet=ALPHABET, max_size=30))
@settings(deadline=None, max_examples=30)
def test_the_tokenizer_object_is_the_same_tokenizer(text: str) -> None:
    assert TOKENIZER(text)["input_ids"] == encode(text)
    chat = TOKENIZER.apply_chat_template([{"role": "user", "content": text}], tokenize=False)
    assert chat == text
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id) == (PAD, EOS)


def test_a_character_outside_the_alphabet_is_named() -> None:
    with pytest.raises(InputError, match=r"text: got '1-2' with the character '-'"):
        encode("1-2")


# ----------------------------------------------------------------------------------------------------------- model


def alone(policy: Policy, tokens: list[int]) -> torch.Tensor:
    """Logits of one sequence without padding, packing or cache: the plain truth."""
    ids = torch.tensor([tokens])
    causal = torch.ones(1, 1, len(tokens), len(tokens), dtype=torch.bool).tril()
    return policy(ids, torch.arange(len(tokens))[None], causal)[0]


@torch.no_grad()
def test_a_packed_sequence_sees_only_itself(policy: Policy) -> None:
    sequences = [[5, 6, 7], [8], [4, 3, 9, 10, 2]]
    ids = torch.cat([pad_left(sequences[:2], 5), pad_right(sequences[2:], 5)])
    packed = policy(*pack(ids, ids.ne(PAD)))[0]
    for logits, tokens in zip(packed.split([3, 1, 5]), sequences, strict=True):
        torch.testing.assert_close(logits, alone(policy, tokens))


@torch.no_grad()
def test_sampling_follows_the_model_for_every_row(policy: Policy) -> None:
    """The cache and the left padding change nothing: each token drawn is about as likely as the model says."""
    prompts, rows = [[5, 6], [7, 8, 9, 4, 3]], 4000
    padded = pad_left(prompts, 6).repeat_interleave(rows, 0)
    responses, log_probs, *_ = sample(policy, padded, 2, torch.Generator().manual_seed(0))
    for prompt, drawn, told in zip(prompts, responses.split(rows), log_probs.split(rows), strict=True):
        first = alone(policy, prompt)[-1].index_fill(0, torch.tensor([PAD]), -math.inf).softmax(-1)
        counted = torch.bincount(drawn[:, 0], minlength=VOCABULARY) / rows
        assert (counted - first).abs().max() < 0.03
        torch.testing.assert_close(told[:, 0], first[drawn[:, 0]].log())  # 15, part 4: the real ones, of the sampling
        likely = int(counted.argmax())
        then = alone(policy, [*prompt, likely])[-1].index_fill(0, torch.tensor([PAD]), -math.inf).softmax(-1)
        after = drawn[drawn[:, 0] == likely, 1]
        expected = then if likely != EOS else torch.eye(VOCABULARY)[PAD]
        assert (torch.bincount(after, minlength=VOCABULARY) / len(after) - expected).abs().max() < 0.12


def test_a_response_is_tokens_then_an_end_then_padding(policy: Policy) -> None:
    prompts = pad_left([[5, 6]] * 64, 4)
    responses, log_probs, begin_ns, ends_ns = sample(policy, prompts, 20, torch.Generator().manual_seed(1))
    assert torch.equal(log_probs[responses.eq(PAD)], torch.zeros(int(responses.eq(PAD).sum())))
    lengths = responses.ne(PAD).sum(1)
    assert len(set(lengths.tolist())) > 5
    by_length = sorted(zip(lengths.tolist(), ends_ns, strict=True))
    assert begin_ns <= by_length[0][1]
    assert [end for _, end in by_length] == sorted(ends_ns)  # who says less has ended no later
    for row, length in zip(responses.tolist(), lengths.tolist(), strict=True):
        assert PAD not in row[:length]
        assert EOS not in row[: length - 1]
        assert length == 20 or row[length - 1] == EOS
        assert set(row[length:]) <= {PAD}


def test_sampling_depends_on_its_generator_alone(policy: Policy) -> None:
    prompts = pad_left([[5, 6]] * 8, 4)
    before = torch.random.get_rng_state()
    first, again = (sample(policy, prompts, 5, torch.Generator().manual_seed(7))[0] for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(before, torch.random.get_rng_state())


# ----------------------------------------------------------------------------------------------- reward, formulas


@given(st.text(ALPHABET), st.text(ALPHABET, min_size=1))
@settings(deadline=None)
def test_only_the_answer_itself_gets_the_full_reward(response: str, answer: str) -> None:
    assert 0.0 <= score(response, answer) <= 1.0
    assert (score(response, answer) == 1.0) == (response == answer)
    assert score(answer, answer) == 1.0


def test_advantages_are_within_the_group() -> None:
    rewards = torch.tensor([0.0, 0.5, 1.0, 0.2, 0.2, 0.2])
    torch.testing.assert_close(group_advantages(rewards, 3), torch.tensor([-1.0, 0, 1, 0, 0, 0]), atol=1e-5, rtol=0)


def test_clipping_holds_back_only_what_would_go_further() -> None:
    ratios = torch.tensor([1.0, 1.5, 1.5, 0.5, 0.5])
    advantages = torch.tensor([2.0, 1.0, -1.0, 1.0, -1.0])
    loss, held = policy_loss(ratios.log(), torch.zeros(5), advantages, clip=0.2)
    torch.testing.assert_close(loss, torch.tensor([-2.0, -1.2, 1.5, -0.5, 0.8]))
    assert held.tolist() == [0, 1, 0, 0, 1]


def test_what_the_trainer_receives_is_what_was_sent() -> None:
    prompts, responses = [[5, 6], [7, 8, 9, 10], [3]], [[4, EOS], [10], [11, 12, 13, EOS]]
    wire = send(pad_left(prompts, 6), pad_right(responses, 5), ["a", "b", "c"])
    assert wire["input_ids"].values().numel() == 14  # no padding travels
    data = receive(wire)
    assert data.batch["input_ids"].shape == (3, 5)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        whole = prompt + response
        assert data.batch["input_ids"][row].tolist() == whole + [PAD] * (5 - len(whole))
        assert data.batch["attention_mask"][row].tolist() == [1] * len(whole) + [0] * (5 - len(whole))
        assert data.batch["response_mask"][row].nonzero().flatten().tolist() == list(range(len(prompt), len(whole)))
    assert data.non_tensor_batch["answer"].tolist() == ["a", "b", "c"]


def test_log_probabilities_of_a_plain_sequence_are_those_of_the_actor() -> None:
    """What the actor cuts out of a packed row is what one reads off the sequence alone."""
    actor = Actor(Settings(prompt_width=4, response_width=3), None)
    prompts, responses = [[5, 6], [7, 8, 9]], [[4, EOS], [10, 11, 12]]
    data = receive(send(pad_left(prompts, 4), pad_right(responses, 3), ["a", "b"]))
    found = actor.log_prob(data.batch)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        logits = alone(actor.policy, prompt + response)[len(prompt) - 1 : -1]
        expected = torch.zeros(found.shape[1])
        expected[len(prompt) : len(prompt + response)] = logprobs_from_logits(logits, torch.tensor(response))
        torch.testing.assert_close(found[row], expected)
