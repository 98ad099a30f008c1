"""The task: verifiable arithmetic, as a parquet file of prompts and answers.

``12+34=`` asks for a sum, ``7*86=`` for a product and ``r123,45=`` for each of the numbers read backwards
(``321,54``). Prompts are 3 to 21 characters long and answers 1 to 19, with a long tail: that makes token
balance and padding worth looking at.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from probe.core.rl_dataset import RLHFDataset
from probe.demo.tokenizer import tokenizer

if TYPE_CHECKING:
    from probe.demo.settings import Settings

#: Widest prompt and answer that :func:`problem` makes, in characters.
PROMPT_WIDTH: Final = 21
ANSWER_WIDTH: Final = 19


def number(rng: random.Random, digits: int) -> int:
    """A number of up to ``digits`` digits, short ones as likely as long ones."""
    return rng.randrange(10 ** rng.randint(1, digits))


def problem(rng: random.Random) -> dict[str, str]:
    """One row: ``kind``, ``prompt`` (ends in ``=``) and ``answer``."""
    kind = rng.choices(["sum", "product", "reverse"], weights=[5, 2, 3])[0]
    if kind == "sum":
        terms = [number(rng, 2) for _ in range(rng.choice([2, 2, 2, 3]))]
        return {"kind": kind, "prompt": "+".join(map(str, terms)) + "=", "answer": str(sum(terms))}
    if kind == "product":
        left, right = number(rng, 1), number(rng, 2)
        return {"kind": kind, "prompt": f"{left}*{right}=", "answer": str(left * right)}
    words = [str(number(rng, 4)) for _ in range(rng.choice([1, 1, 2, 3, 4]))]
    return {"kind": kind, "prompt": f"r{','.join(words)}=", "answer": ",".join(word[::-1] for word in words)}


def write_problems(path: Path, *, rows: int, seed: int) -> Path:
    """Write ``rows`` distinct problems to the parquet file ``path``, in the columns that RL datasets have.

    ``prompt`` is a chat of one message, ``reward_model`` holds the answer as ``ground_truth``.
    """
    rng = random.Random(seed)  # noqa: S311  (arithmetic, not cryptography)
    found: dict[str, dict[str, str]] = {}
    while len(found) < rows:
        one = problem(rng)
        found.setdefault(one["prompt"], one)
    pq.write_table(pa.Table.from_pylist([_row(index, one) for index, one in enumerate(found.values())]), path)
    return path


def _row(index: int, problem: dict[str, str]) -> dict[str, Any]:
    return {
        "data_source": f"arithmetic/{problem['kind']}",
        "prompt": [{"role": "user", "content": problem["prompt"]}],
        "reward_model": {"style": "rule", "ground_truth": problem["answer"]},
        "extra_info": {"index": index},
    }


def read_problems(path: Path, settings: Settings, cache_dir: Path | None = None) -> RLHFDataset:
    """The rows of the parquet file as prompts of tokens, padded on the left to ``settings.prompt_width``."""
    config = {
        "max_prompt_length": settings.prompt_width,
        "truncation": "error",
        "filter_overlong_prompts": False,  # the generator makes none
        "cache_dir": str(cache_dir or path.parent / "cache"),
    }
    return RLHFDataset(str(path), tokenizer(), config)
