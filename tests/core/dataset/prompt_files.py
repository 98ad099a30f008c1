"""Files of prompts whose rows are numbered, and a tokenizer for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.core.dataset import chat_tokenizer as chat

TOKENIZER = chat.chat_tokenizer()


def row(number: int, words: int = 2, **more: Any) -> dict[str, Any]:
    """A row with a prompt of so many words; more columns, or other values of these, are arguments."""
    text = " ".join(f"w{(number + place) % 100}" for place in range(words))
    return {
        "data_source": f"source/{number}",
        "prompt": [{"role": "user", "content": text}],
        "reward_model": {"style": "rule", "ground_truth": str(number)},
        "extra_info": {"index": 100 + number, "split": "train"},
        **more,
    }


def write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    """Write rows in the format that the name of the file says."""
    if path.suffix == ".parquet":
        names = dict.fromkeys(name for one in rows for name in one)  # pyarrow looks at the first row alone
        pq.write_table(pa.Table.from_pylist([dict.fromkeys(names) | one for one in rows]), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)
