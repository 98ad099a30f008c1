"""From the chat of one row to tokens: the template applied, media in their places, text cut and padded."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from probe.core.dataset.config import TRUNCATIONS, DatasetConfig
from probe.core.dataset.media import load_image, load_video
from probe.errors import CapacityError, InputError, InputTypeError, UnknownNameError
from probe.guard import raised_as

Message = dict[str, Any]
Row = Mapping[str, Any]

#: What stands for a medium in the text of a message.
_PLACEHOLDER: Final = re.compile("(<image>|<video>)")


def truncate(tokens: Sequence[int], limit: int, how: str) -> list[int]:
    """At most ``limit`` of the tokens.

    Args:
        tokens: Token ids of the prompt.
        limit: How many tokens may stay.
        how: ``"left"`` drops the beginning, ``"right"`` the end, ``"middle"`` keeps ``limit // 2`` tokens of the
            beginning and the rest from the end, ``"error"`` drops nothing.

    Raises:
        CapacityError: Too many tokens, and ``how`` is ``"error"``.
        UnknownNameError: ``how`` is none of these.

    >>> [truncate([1, 2, 3, 4, 5], 3, how) for how in ("left", "right", "middle")]
    [[3, 4, 5], [1, 2, 3], [1, 4, 5]]
    """
    if how not in TRUNCATIONS:
        raise UnknownNameError.of("truncation", how, TRUNCATIONS)
    if len(tokens) <= limit:
        return list(tokens)
    if how == "left":
        return list(tokens[-limit:])
    if how == "right":
        return list(tokens[:limit])
    if how == "middle":
        head = limit // 2
        return [*tokens[:head], *tokens[head - limit :]]
    raise CapacityError(
        f"prompt: {len(tokens)} tokens, above max_prompt_length of {limit}; raise it, set truncation to "
        "left, right or middle, or leave such rows out with filter_overlong_prompts"
    )


def pad_left(tokens: torch.Tensor, width: int, value: int) -> torch.Tensor:
    """Pad the last dimension at its beginning.

    >>> pad_left(torch.tensor([7, 8]), 4, 0).tolist()
    [0, 0, 7, 8]
    """
    return torch.nn.functional.pad(tokens, (width - tokens.shape[-1], 0), value=value)


@dataclass(frozen=True)
class Prompt:
    """One prompt, neither cut nor padded.

    Attributes:
        messages: What the template was applied to.
        text: What it gave.
        tokens: Token ids of the text, placeholders of media expanded by the processor.
        raw_tokens: Token ids of the text as it is; equal to ``tokens`` without media. An inference engine expands these
            itself.
        media: ``"image"`` → PIL images, ``"video"`` → arrays (T, H, W, 3); kinds that the row has.
        inputs: What else the processor made, such as ``pixel_values``.
    """

    messages: list[Message]
    text: str
    tokens: list[int]
    raw_tokens: list[int]
    media: dict[str, list[Any]]
    inputs: dict[str, Any]


class PromptEncoder:
    """Turns rows into :class:`Prompt`.

    Args:
        tokenizer: A tokenizer of ``transformers``, or an object with its ``apply_chat_template`` and its call.
        processor: A processor of ``transformers``, called with ``text``, ``images`` and ``videos``; None for text
            alone.
        config: See :class:`DatasetConfig`.
    """

    def __init__(self, tokenizer: Any, processor: Any, config: DatasetConfig) -> None:
        self._tokenizer = tokenizer
        self._processor = processor
        self._config = config
        self._keys = {"image": config.image_key, "video": config.video_key}
        # A processor may come without a template of its own; then the tokenizer's is the model's.
        templated = processor is not None and getattr(processor, "chat_template", None) is not None
        self._template = processor if templated else tokenizer

    def encode(self, row: Row) -> Prompt:
        """Messages, text and tokens of one row.

        Raises:
            InputError: The chat or its media can't be used. What the template, the tokenizer or the processor raises
                comes as it is: the dataset adds the file and the row.
            InputTypeError: An entry of the chat has the wrong type.
        """
        messages, media = self._chat(row)
        text = self._text(messages)
        raw = self._tokens([text])[0]
        check_length(len(raw))
        if self._processor is None:
            return Prompt(messages, text, raw, raw, media, {})
        tokens, inputs = self._processed(text, media)
        return Prompt(messages, text, tokens, raw, media, inputs)

    def text(self, row: Row) -> str:
        """What the chat template gives for a row; raises what :meth:`encode` does."""
        return self._text(self._chat(row)[0])

    def count(self, texts: list[str]) -> list[int]:
        """Tokens of each text. Many at once are quick: tokenizers share them among the cores."""
        return [len(tokens) for tokens in self._tokens(texts)] if texts else []

    # ------------------------------------------------------------------------------------------------------- chat

    def _chat(self, row: Row) -> tuple[list[Message], dict[str, list[Any]]]:
        messages = _messages(row[self._config.prompt_key], self._config.prompt_key)
        given = {kind: _media_list(row[key], key) for kind, key in self._keys.items() if key in row}
        if self._processor is None:
            self._refuse_media(messages, given)
            return messages, {}
        if given:
            messages = [{**one, "content": _segments(one["content"], given)} for one in messages]
        media = {kind: self._placed(kind, messages, given.get(kind, [])) for kind in self._keys}
        return messages, {kind: found for kind, found in media.items() if found}

    def _refuse_media(self, messages: list[Message], given: dict[str, list[Any]]) -> None:
        for kind, items in given.items():
            if items and any(f"<{kind}>" in one["content"] for one in messages if isinstance(one["content"], str)):
                raise InputError(
                    f"processor: got None, expected one: the prompt has {len(items)} of {self._keys[kind]!r}"
                )
        for kind in self._keys:
            if next(_items(kind, messages), None) is not None:
                raise InputError(f"processor: got None, expected one: a message has a part of type {kind!r}")

    def _placed(self, kind: str, messages: list[Message], given: list[Any]) -> list[Any]:
        """The media of one kind in the order of their places; a place may hold its own."""
        places = list(_items(kind, messages))
        open_places = sum(item.get(kind) is None for item in places)
        if open_places != len(given):
            raise InputError(
                f"{self._keys[kind]}: got {len(given)}, expected {open_places}, one for each <{kind}> in the messages"
            )
        following = iter(given)
        values = [next(following) if item.get(kind) is None else item[kind] for item in places]
        load = load_image if kind == "image" else load_video
        return [load(value, self._config.cache_dir) for value in values]

    # ----------------------------------------------------------------------------------------------------- tokens

    def _text(self, messages: list[Message]) -> str:
        options = {"add_generation_prompt": True, **self._config.apply_chat_template_kwargs}
        with _failing("the chat template"):  # it never becomes a dropped row
            text = self._template.apply_chat_template(messages, tokenize=False, **options)
        if not isinstance(text, str):
            raise InputTypeError(f"the chat template gave {type(text).__name__}, expected a string")
        return text

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        # The template has put the special tokens in already: a second BOS would change the prompt.
        return [list(tokens) for tokens in self._tokenizer(texts, add_special_tokens=False)["input_ids"]]

    def _processed(self, text: str, media: dict[str, list[Any]]) -> tuple[list[int], dict[str, Any]]:
        options = {"return_tensors": "pt", "add_special_tokens": False, **self._config.mm_processor_kwargs}
        given = {f"{kind}s": items for kind, items in media.items()}
        with _failing("the processor"):  # the caller adds the row
            inputs = dict(self._processor(text=[text], **given, **options))
        tokens = inputs.pop("input_ids")[0].tolist()
        inputs.pop("attention_mask", None)
        return tokens, inputs


def _failing(what: str) -> raised_as:
    """A block that calls code of others: whatever it raises is an error that says what has failed."""
    return raised_as(lambda error: InputError(f"{what} failed: {type(error).__name__}: {error}"), but=())


def check_length(tokens: int) -> None:
    """Raise :class:`InputError` for a prompt without tokens, from which nothing can be generated."""
    if not tokens:
        raise InputError("prompt: the templated text has no tokens, expected at least one")


def _messages(chat: Any, key: str) -> list[Message]:
    """The messages as dicts of their own, without the keys that a table had to fill with None."""
    if isinstance(chat, str | bytes) or not isinstance(chat, Sequence) or not chat:
        raise InputTypeError(
            f"{key}: got {str(chat)[:60]!r}, expected a list of messages such as [{{'role': 'user', 'content': …}}]"
        )
    for number, one in enumerate(chat):
        if not isinstance(one, Mapping) or not {"role", "content"} <= one.keys():
            raise InputTypeError(f"{key}[{number}]: got {str(one)[:60]!r}, expected a dict with 'role' and 'content'")
    return [{**without_none(one), "content": without_none(one["content"])} for one in chat]


def without_none(value: Any) -> Any:
    """What was there before it was put into a table, where a dict has the keys of all rows: those of other rows are
    None. They are taken out at every depth, so that a chat is the same from every kind of file.

    Args:
        value: Of a row; what is in no dict stays, None in a list as well.

    >>> without_none({"city": "Oslo", "unit": None, "days": [{"n": 1, "from": None}, None]})
    {'city': 'Oslo', 'days': [{'n': 1}, None]}
    """
    if isinstance(value, Mapping):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [without_none(one) for one in value]
    return value


def _media_list(value: Any, key: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise InputTypeError(f"{key}: got {type(value).__name__}, expected a list")
    return list(value)


def _segments(content: Any, kinds: Mapping[str, Any]) -> Any:
    """A text as a list of parts, split at the placeholders of ``kinds``."""
    if not isinstance(content, str):
        return content
    parts: list[Message] = []
    text = ""
    for piece in _PLACEHOLDER.split(content):
        if (kind := piece[1:-1]) in kinds and piece == f"<{kind}>":
            parts += ([{"type": "text", "text": text}] if text else []) + [{"type": kind}]
            text = ""
        else:
            text += piece
    return [*parts, {"type": "text", "text": text}] if text or not parts else parts


def _items(kind: str, messages: list[Message]) -> Iterator[Message]:
    for one in messages:
        if isinstance(one["content"], list):
            yield from (part for part in one["content"] if isinstance(part, dict) and part.get("type") == kind)


def cut_and_padded(prompt: Prompt, config: DatasetConfig, pad_id: int) -> tuple[dict[str, torch.Tensor], Prompt]:
    """Tensors of ``max_prompt_length``, and the prompt as it now is.

    The second value's ``raw_tokens`` are cut like the tensors, and its ``inputs`` with one value for each token
    (such as ``token_type_ids``, (1, L)) are padded with 0 to the same width.

    Raises:
        CapacityError: Too long, and ``truncation`` is ``"error"`` or there are media: cut placeholders would no longer
            fit the pixels.
    """
    width = config.max_prompt_length
    how = "error" if prompt.media else config.truncation
    tokens = truncate(prompt.tokens, width, how)
    kept = torch.tensor(truncate(range(len(prompt.tokens)), width, how), dtype=torch.long)
    tensors = {
        "input_ids": pad_left(torch.tensor(tokens, dtype=torch.long), width, pad_id),
        "attention_mask": pad_left(torch.ones(len(tokens), dtype=torch.long), width, 0),
    }
    inputs = {
        name: pad_left(value[..., kept], width, 0) if _is_per_token(name, value, len(prompt.tokens)) else value
        for name, value in prompt.inputs.items()
    }
    raw = truncate(prompt.raw_tokens, width, how)
    return tensors, Prompt(prompt.messages, prompt.text, tokens, raw, prompt.media, inputs)


def _is_per_token(name: str, value: Any, count: int) -> bool:
    return isinstance(value, torch.Tensor) and name.endswith("_ids") and value.shape == (1, count)


def position_ids(tensors: Mapping[str, torch.Tensor], inputs: Mapping[str, Any], processor: Any) -> torch.Tensor:
    """Positions of the tokens, 0 in the padding.

    Returns:
        (L,), long. Where the processor has a method ``get_rope_index`` (a model's own, put there by its user, as
        Qwen2-VL's positions take the model's config) what that gives: (3, L) for time, height and width.

    >>> position_ids({"attention_mask": torch.tensor([0, 0, 1, 1])}, {}, None).tolist()
    [0, 0, 0, 1]
    """
    mask = tensors["attention_mask"]
    rope = getattr(processor, "get_rope_index", None)
    if rope is None:
        return (mask.cumsum(0) - 1).clamp_(min=0)
    known = {name: value for name, value in inputs.items() if name in inspect.signature(rope).parameters}
    found = rope(input_ids=tensors["input_ids"][None], attention_mask=mask[None], **known)
    positions: torch.Tensor = found[0] if isinstance(found, tuple) else found  # models return their deltas as well
    return (positions[:, 0] * mask).long()
