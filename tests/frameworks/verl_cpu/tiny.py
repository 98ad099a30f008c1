"""A model of 32 dimensions, a tokenizer of bytes and two files of sums: ``python tiny.py DIRECTORY``."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pandas as pd
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer_of_bytes() -> PreTrainedTokenizerFast:
    """A token for each byte, and the three that a chat needs."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        ["how much is it?"], trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=made, pad_token=special[0], eos_token=special[2])
    fast.chat_template = TEMPLATE
    return fast


def make(directory: Path) -> None:
    """Write model, tokenizer, ``sft.parquet`` and ``rl.parquet``."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_of_bytes()
    tokenizer.save_pretrained(directory)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    dice = random.Random(3)
    sums = [
        (dice.randint(0, 10 ** dice.randint(1, 12)), dice.randint(0, 10 ** dice.randint(1, 12))) for _ in range(128)
    ]
    questions = [f"how much is {a} plus {b}?" + " please" * dice.randint(0, 8) for a, b in sums]
    answers = [str(a + b) for a, b in sums]
    asked = [{"role": "user", "content": question} for question in questions]
    told = [{"role": "assistant", "content": answer} for answer in answers]
    pd.DataFrame({"messages": [list(pair) for pair in zip(asked, told, strict=True)]}).to_parquet(
        directory / "sft.parquet"
    )
    pd.DataFrame(
        {
            "data_source": "sums",
            "prompt": [[one] for one in asked],
            "ability": "math",
            "reward_model": [{"style": "rule", "ground_truth": answer} for answer in answers],
            "extra_info": [{"index": index} for index in range(len(asked))],
        }
    ).to_parquet(directory / "rl.parquet")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
