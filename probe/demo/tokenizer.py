"""A tokenizer with one token per character, as transformers and the dataset know tokenizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from probe.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ALPHABET: Final = "0123456789+*=,r"
PAD: Final = 0
EOS: Final = 1
_PADDING: Final = "<pad>"
_END: Final = "<eos>"
VOCABULARY: Final = 2 + len(ALPHABET)

#: A prompt is the text of its messages and nothing else.
CHAT_TEMPLATE: Final = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

_ids: Final = {character: index for index, character in enumerate(ALPHABET, start=2)}


def tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer as an object, for whatever expects one; :func:`encode` and :func:`decode` are its quick twins."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({_PADDING: PAD, _END: EOS, **_ids}, unk_token=_PADDING))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=_PADDING,
        eos_token=_END,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )


def encode(text: str) -> list[int]:
    """The token of each character.

    Raises:
        InputError: ``text`` has a character outside :data:`ALPHABET`.
    """
    try:
        return [_ids[character] for character in text]
    except KeyError as missing:
        raise InputError(
            f"text: got {text!r:.200} with the character {missing}, expected characters of {ALPHABET!r}"
        ) from None


def decode(tokens: Iterable[int]) -> str:
    """The text before the first end or padding token."""
    characters = []
    for token in tokens:
        if token in (PAD, EOS):
            break
        characters.append(ALPHABET[token - 2])
    return "".join(characters)
