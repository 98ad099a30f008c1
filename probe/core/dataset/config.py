"""What :class:`probe.core.rl_dataset.RLHFDataset` reads from its config, checked once and with its defaults."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from probe._io import expanded
from probe.errors import InputError, InputTypeError, UnknownNameError

TRUNCATIONS: Final = ("left", "right", "middle", "error")

#: Arguments of ``apply_chat_template`` that the dataset gives itself.
_OWN_ARGUMENTS: Final = ("conversation", "tokenize", "return_tensors", "return_dict", "padding", "truncation")


@dataclass(frozen=True)
class DatasetConfig:
    """Options of a prompt dataset, under their documented names.

    Attributes:
        cache_dir: Local folder for copies of remote files and for the tables of Hugging Face ``datasets``. Where there
            is no home directory the default is a folder for temporary files.
        prompt_key: Column of the chat, a list of messages.
        image_key: Column of lists of images.
        video_key: Column of lists of videos.
        max_prompt_length: Width of a prompt, in tokens.
        return_raw_chat: Whether rows get ``raw_prompt``, the messages.
        return_full_prompt: Whether rows get ``full_prompts``, the text.
        truncation: What happens to a longer prompt: ``"left"`` drops its beginning, ``"right"`` its end, ``"middle"``
            keeps both ends, ``"error"`` raises.
        filter_overlong_prompts: Whether rows are left out whose prompt is longer, counted in tokens of the applied
            template.
        filter_overlong_prompts_workers: Processes that count. None means a quarter of the cores, fewer for few rows.
        apply_chat_template_kwargs: Given on to ``apply_chat_template``, such as ``{"enable_thinking": False}``.
        mm_processor_kwargs: Given on to the processor, such as ``{"size": {"height": 336, "width": 336}}``.
        use_shm: Whether the files are copied into shared memory.
        need_tools_kwargs: Whether rows without ``tools_kwargs`` are warned of.
        shuffle: Whether the rows are put into an order that ``seed`` settles.
        seed: None counts as 0, so that all ranks agree.
    """

    cache_dir: str = "~/.cache/probe/rlhf"
    prompt_key: str = "prompt"
    image_key: str = "images"
    video_key: str = "videos"
    max_prompt_length: int = 1024
    return_raw_chat: bool = False
    return_full_prompt: bool = False
    truncation: str = "error"
    filter_overlong_prompts: bool = True
    filter_overlong_prompts_workers: int | None = None
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    mm_processor_kwargs: dict[str, Any] = field(default_factory=dict)
    use_shm: bool = False
    need_tools_kwargs: bool = False
    shuffle: bool = False
    seed: int | None = None

    @classmethod
    def from_config(cls, config: Any) -> DatasetConfig:
        """Read a mapping, an OmegaConf ``DictConfig``, a dataclass or any object with attributes.

        What is missing or None has its default; entries of other names aren't looked at, because the section of a
        trainer's config usually holds more.

        Raises:
            InputTypeError: An entry is of the wrong kind.
            InputError: An entry is out of range.
            UnknownNameError: ``truncation`` is another word.

        >>> DatasetConfig.from_config({"max_prompt_length": 512, "truncation": "left"}).truncation
        'left'
        """
        look_up = _look_up(config)
        _refuse_tool_file(look_up)
        given = {one.name: _plain(look_up(one.name)) for one in fields(cls)}
        options = cls(**{name: value for name, value in given.items() if value is not None})
        options._check()
        return replace(options, cache_dir=str(_cache_dir(options.cache_dir)))

    def _check(self) -> None:
        for one in fields(self):
            _KINDS[str(one.type)](f"config.{one.name}", getattr(self, one.name))
        _at_least_one("config.max_prompt_length", self.max_prompt_length)
        if self.filter_overlong_prompts_workers is not None:
            _at_least_one("config.filter_overlong_prompts_workers", self.filter_overlong_prompts_workers)
        if self.seed is not None and self.seed < 0:
            raise InputError(f"config.seed: got {self.seed}, expected 0 or more")
        if self.truncation not in TRUNCATIONS:
            raise UnknownNameError.of("config.truncation", self.truncation, TRUNCATIONS)
        for name in _OWN_ARGUMENTS:
            if name in self.apply_chat_template_kwargs:
                raise InputError(f"config.apply_chat_template_kwargs: got {name!r}, which the dataset sets itself")


def _cache_dir(given: str) -> Path:
    """The folder itself; the default one where there is no home directory is a folder for what is temporary."""
    if given == DatasetConfig.cache_dir:
        with suppress(RuntimeError):
            return Path(given).expanduser()
        return Path(tempfile.gettempdir()) / f"probe-rlhf-{os.getuid() if hasattr(os, 'getuid') else 'cache'}"
    return expanded("config.cache_dir", given)


def _look_up(config: Any) -> Callable[[str], Any]:
    if isinstance(config, Mapping):  # a DictConfig is one too; its `get` takes values marked as missing for None
        return config.get
    if config is None or isinstance(config, str | bytes | int | float | list | tuple | type):
        raise InputTypeError(f"config: got {config!r}, expected a mapping or an object with attributes")
    return lambda name: getattr(config, name, None)


def _plain(value: Any) -> Any:
    """A container of OmegaConf as the dict or list that it stands for."""
    if type(value).__module__.partition(".")[0] != "omegaconf":
        return dict(value) if isinstance(value, Mapping) else value
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value, resolve=True)


def _refuse_tool_file(look_up: Callable[[str], Any]) -> None:
    if look_up("tool_config_path") is not None:  # ignored, it would change every prompt without a word
        raise InputError(
            "config.tool_config_path: got a path, expected None: probe doesn't read files of tools; "
            "give the tools' schemas as config.apply_chat_template_kwargs.tools"
        )


def _a(kind: type, words: str) -> Callable[[str, Any], None]:
    def check(name: str, given: Any) -> None:
        if not (type(given) is int if kind is int else isinstance(given, kind)):
            raise InputTypeError(f"{name}: got {given!r}, expected {words}")

    return check


def _whole_or_none(name: str, given: Any) -> None:
    if given is not None:
        _a(int, "a whole number or None")(name, given)


def _at_least_one(name: str, given: int) -> None:
    if given < 1:
        raise InputError(f"{name}: got {given}, expected at least 1")


_KINDS: Final[dict[str, Callable[[str, Any], None]]] = {
    "str": _a(str, "a string"),
    "int": _a(int, "a whole number"),
    "bool": _a(bool, "True or False"),
    "int | None": _whole_or_none,
    "dict[str, Any]": _a(dict, "a mapping"),
}
