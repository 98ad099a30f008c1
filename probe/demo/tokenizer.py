"""A tokenizer with one token per character."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from probe.errors import InputError

ALPHABET: Final = "0123456789+*=,r"
PAD: Final = 0
EOS: Final = 1
VOCABULARY: Final = 2 + len(ALPHABET)

_ids: Final = {character: index for index, character in enumerate(ALPHABET, start=2)}


def encode(text: str) -> list[int]:
    """The token of each character.

    Raises:
        InputError: ``text`` has a character outside :data:`ALPHABET`.
    """
    try:
        return [_ids[character] for character in text]
    except KeyError as missing:
        raise InputError(f"text: got {text!r} with {missing}, expected characters of {ALPHABET!r}") from None


def decode(tokens: Iterable[int]) -> str:
    """The text before the first end or padding token."""
    characters = []
    for token in tokens:
        if token in (PAD, EOS):
            break
        characters.append(ALPHABET[token - 2])
    return "".join(characters)
