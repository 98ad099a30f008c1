"""The rule that rewards a response: no model, just a comparison with the answer."""

from __future__ import annotations


def score(response: str, answer: str) -> float:
    """Share of characters that are right and in place; 1.0 only for the answer itself.

    >>> score("321,54", "321,54"), score("42", "43"), score("421", "42"), score("", "7")
    (1.0, 0.5, 0.6666666666666666, 0.0)
    """
    right = sum(given == wanted for given, wanted in zip(response, answer, strict=False))
    return right / max(len(response), len(answer))
