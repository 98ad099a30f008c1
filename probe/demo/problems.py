"""The problems of the task: verifiable arithmetic, drawn at random.

``12+34=`` asks for a sum, ``7*86=`` for a product and ``r123,45=`` for each of the numbers read backwards
(``321,54``). Prompts are 3 to 21 characters long and answers 1 to 19, with a long tail: that makes token
balance and padding worth looking at.
"""

from __future__ import annotations

import random
from typing import Final

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
