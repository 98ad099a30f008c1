"""What a checkpoint keeps for Hugging Face: model config, tokenizer or processor, optionally the full model in
safetensors.

The full model is put together on the first rank from the shards that are already on the disk, a file's worth at a
time: nothing is gathered over the ranks, and it works the same for FSDP1, FSDP2 and a model alone.
"""

from __future__ import annotations

import copy
import logging
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata

from probe.core.checkpoint.files import to_json
from probe.core.checkpoint.shards import load_shards
from probe.core.checkpoint.state import unwrapped
from probe.guard import attempt

_log = logging.getLogger("probe.checkpoint")

#: Bytes of one safetensors file, at most, where no single tensor is larger.
MAX_FILE_BYTES: Final = 5_000_000_000

_MODEL: Final = "model."


def write_parts(directory: Path, parts: dict[str, Callable[[Path], None]]) -> dict[str, str]:
    """Write each part into ``directory``; what failed, with its error. A part is there whole or not at all.

    A checkpoint whose model and optimizer are safe is worth more than a complete one that crashed the training, so
    that a failure here is logged with its traceback and kept in the manifest.
    """
    failed: dict[str, str] = {}
    for name, write in parts.items():
        why = attempt(partial(_write_part, directory, name, write), partial(_unwritten, name))
        if why is not None:
            failed[name] = why
    return failed


def _write_part(directory: Path, name: str, write: Callable[[Path], None]) -> None:
    """Tokenizers and configs run code of others, which may raise anything."""
    aside = directory / f".{name}.part"
    try:
        aside.mkdir(parents=True)
        write(aside)
        for path in aside.iterdir():
            _move(path, directory / path.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _unwritten(name: str, error: Exception) -> str:
    _log.error("%s couldn't be written; the checkpoint is saved without it", name, exc_info=error)
    return f"{type(error).__name__}: {error}"


def _move(path: Path, target: Path) -> None:
    if target.is_dir() and path.is_dir():
        for inner in path.iterdir():
            _move(inner, target / inner.name)
    else:
        path.replace(target)


def parts_of(model: nn.Module, processing_class: Any) -> dict[str, Callable[[Path], None]]:
    """The parts that there are to write: ``config``, ``generation_config``, ``processing_class``."""
    inner: Any = unwrapped(model)
    parts: dict[str, Callable[[Path], None]] = {}
    if hasattr(getattr(inner, "config", None), "save_pretrained"):
        parts["config"] = lambda directory: _write_config(inner, directory)
    if hasattr(getattr(inner, "generation_config", None), "save_pretrained"):
        parts["generation_config"] = inner.generation_config.save_pretrained
    if processing_class is not None:
        parts["processing_class"] = processing_class.save_pretrained
    return parts


def _write_config(inner: Any, directory: Path) -> None:
    config = copy.deepcopy(inner.config)
    if not getattr(config, "architectures", None):  # a model made from its config has none, and loaders want one
        config.architectures = [type(inner).__name__.removeprefix("FSDP")]
    config.save_pretrained(directory)


def write_full_model(model: nn.Module, shards: Path, chunks: Metadata, directory: Path) -> None:
    """Write the full model as safetensors in the dtypes it is trained in, with an index where it is more than one
    file.

    Args:
        model: The model that trains; its configuration and dtypes are used.
        shards: Directory of the checkpoint's shards, complete.
        chunks: What the shards hold.
        directory: The directory to write into.

    Raises:
        OSError: It can't be written.
    """
    from safetensors.torch import save_file

    sizes = {name: _bytes(chunks, name) for name in chunks.state_dict_metadata if name.startswith(_MODEL)}
    for name in _tied(model) & set(sizes):
        del sizes[name]
    files = list(_files(sizes))
    index: dict[str, str] = {}
    for place, names in enumerate(files, 1):
        file = "model.safetensors" if len(files) == 1 else f"model-{place:05}-of-{len(files):05}.safetensors"
        tensors = {name: _empty(chunks, name) for name in names}
        load_shards(tensors, shards, chunks, None)
        plain = {name.removeprefix(_MODEL): one for name, one in tensors.items()}
        save_file(plain, directory / file, {"format": "pt"})
        index.update(dict.fromkeys(plain, file))
    if len(files) > 1:
        told = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": index}
        (directory / "model.safetensors.index.json").write_bytes(to_json(told))


def _empty(chunks: Metadata, name: str) -> torch.Tensor:
    saved: Any = chunks.state_dict_metadata[name]
    return torch.empty(saved.size, dtype=saved.properties.dtype)


def _bytes(chunks: Metadata, name: str) -> int:
    saved: Any = chunks.state_dict_metadata[name]
    return int(saved.size.numel()) * int(saved.properties.dtype.itemsize)


def _files(sizes: dict[str, int]) -> Iterator[list[str]]:
    names: list[str] = []
    held = 0
    for name, size in sizes.items():
        if names and held + size > MAX_FILE_BYTES:
            yield names
            names, held = [], 0
        names.append(name)
        held += size
    yield names


def _tied(model: nn.Module) -> set[str]:
    """Names that the model says are tied to others, and that are: loaders tie them again."""
    inner: Any = unwrapped(model)
    said = set(getattr(inner, "_tied_weights_keys", None) or ())
    seen: dict[int, str] = {}
    tied: set[str] = set()
    for name, parameter in inner.named_parameters(remove_duplicate=False):
        if id(parameter) in seen and name in said:
            tied.add(_MODEL + name)
        seen.setdefault(id(parameter), name)
    return tied
