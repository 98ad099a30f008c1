"""What every checkpoint manager has: what is saved and loaded, random state, and which old checkpoints may go."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from probe.core.checkpoint import rng_state as generators
from probe.core.checkpoint.retention import Place, prune, remove, written_checkpoints
from probe.errors import InputError, InputTypeError, UnknownNameError

CONTENTS: Final = ("model", "optimizer", "extra", "hf_model")
_DEFAULT: Final = ("model", "optimizer", "extra")
_SPELLINGS: Final = {"load": ("load", "load_contents"), "save": ("save", "save_contents")}


@dataclass(frozen=True)
class Contents:
    """Which parts are loaded and saved: ``model``, ``optimizer``, ``extra`` (scheduler, random state), ``hf_model``."""

    load: tuple[str, ...]
    save: tuple[str, ...]

    @classmethod
    def from_config(cls, given: Mapping[str, Any] | None, *, optimizer: bool) -> Contents:
        """What a configuration asks for; by default all that there is, without ``hf_model``.

        Raises:
            InputTypeError: It is not a mapping.
            InputError: ``model`` isn't among them, or an optimizer is asked for and there is none.
            UnknownNameError: A part or a key has a name that isn't known.

        >>> Contents.from_config({"save_contents": ["model", "hf_model"]}, optimizer=False)
        Contents(load=('model', 'extra'), save=('model', 'hf_model'))
        """
        if given is not None and not isinstance(given, Mapping):
            raise InputTypeError(f"checkpoint_contents: got {type(given).__name__}, expected a mapping or None")
        config = {} if given is None else dict(given.items())
        known = [spelling for spellings in _SPELLINGS.values() for spelling in spellings]
        for key, value in config.items():
            if key not in known and value:  # such as async_save=False of others' configurations: asks for nothing
                raise UnknownNameError.of("checkpoint_contents", key, known)
        return cls(*(_wanted(config, which, optimizer) for which in ("load", "save")))


def _wanted(config: Mapping[str, Any], which: str, optimizer: bool) -> tuple[str, ...]:
    given = {key: config[key] for key in _SPELLINGS[which] if config.get(key) is not None}
    if not given:
        return tuple(name for name in _DEFAULT if optimizer or name != "optimizer")
    argument = " and ".join(f"checkpoint_contents.{key}" for key in given)
    if any(isinstance(names, str | Mapping) or not isinstance(names, Iterable) for names in given.values()):
        raise InputTypeError(f"{argument}: got {list(given.values())!r}, expected a list of names")
    lists = [tuple(names) for names in given.values()]
    if len({frozenset(names) for names in lists}) > 1:
        raise InputError(f"{argument}: got {lists}, expected one of the two spellings, or the same in both")
    for name in lists[0]:
        if name not in CONTENTS:
            raise UnknownNameError.of(argument, name, CONTENTS)
    if "model" not in lists[0]:
        raise InputError(f"{argument}: got {list(lists[0])}, expected 'model' among them")
    if "optimizer" in lists[0] and not optimizer:
        raise InputError(f"{argument}: asks for the optimizer, but optimizer is None")
    return lists[0]


class BaseCheckpointManager(ABC):
    """Saves and loads a training's state; made for subclasses that know how the model is wrapped.

    Args:
        model: The model to save and to load into.
        optimizer: The optimizer to save and to load into, where there is one.
        lr_scheduler: The scheduler of the learning rate to save and to load into, where there is one.
        processing_class: A tokenizer or processor, anything with ``save_pretrained``.
        checkpoint_contents: ``load`` and ``save`` (or ``load_contents`` and ``save_contents``): lists of ``model``,
            ``optimizer``, ``extra``, ``hf_model``, each with ``model``. By default all but ``hf_model``.

    Attributes:
        previous_saved_paths: Checkpoints that are kept now, oldest first. After a restart the first save finds them
            again in the directory.

    Raises:
        InputError: As :meth:`Contents.from_config`.
        InputTypeError: As :meth:`Contents.from_config`.
        UnknownNameError: As :meth:`Contents.from_config`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        lr_scheduler: Any = None,
        processing_class: Any = None,
        checkpoint_contents: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputTypeError(f"model: got {type(model).__name__}, expected a torch.nn.Module")
        if processing_class is not None and not callable(getattr(processing_class, "save_pretrained", None)):
            raise InputTypeError(f"processing_class: {type(processing_class).__name__} has no save_pretrained")
        contents = Contents.from_config(checkpoint_contents, optimizer=optimizer is not None)
        self.model = model
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.processing_class = processing_class
        self.checkpoint_contents = {"load": list(contents.load), "save": list(contents.save)}
        self.checkpoint_load_contents = self.checkpoint_contents["load"]
        self.checkpoint_save_contents = self.checkpoint_contents["save"]
        self.previous_saved_paths: list[str] = []

    @abstractmethod
    def save_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, global_step: int = 0, max_ckpt_to_keep: int | None = None
    ) -> None:
        """Save the checkpoint to ``local_path``, and keep only the newest ``max_ckpt_to_keep``.

        Args:
            local_path: Directory to make, on a file system that all ranks share.
            hdfs_path: Any fsspec URL that the complete checkpoint is then copied to.
            global_step: The trainer's step.
            max_ckpt_to_keep: How many checkpoints stay; None or 0 means all.
        """

    @abstractmethod
    def load_checkpoint(
        self, local_path: str | None, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """Load the checkpoint in ``local_path`` into model, optimizer and scheduler.

        Args:
            local_path: The checkpoint; with None nothing is done.
            hdfs_path: Where to fetch it from, any fsspec URL, when it isn't at ``local_path``.
            del_local_after_load: Whether ``local_path`` is removed when every rank has loaded.
        """

    def remove_previous_save_local_path(self, path: str | os.PathLike[str] | list[str]) -> None:
        """Remove checkpoints, one or many. One that isn't there is passed over; one that stays is named in the log."""
        for one in [path] if isinstance(path, str | os.PathLike) else list(path):
            if Path(one).is_dir():
                remove(Path(one))
            self.previous_saved_paths = [kept for kept in self.previous_saved_paths if kept != str(one)]

    @staticmethod
    def local_mkdir(path: str | os.PathLike[str]) -> str:
        """Make a directory, and those above it, and return it absolute; safe when many processes ask at once."""
        absolute = Path(path).absolute()
        absolute.mkdir(parents=True, exist_ok=True)
        return str(absolute)

    @staticmethod
    def get_rng_state() -> dict[str, Any]:
        """State of all random generators of this process: :func:`probe.core.checkpoint.rng_state.get_rng_state`."""
        return generators.get_rng_state()

    @staticmethod
    def load_rng_state(rng_state: Mapping[str, Any]) -> None:
        """Set all random generators of this process: :func:`probe.core.checkpoint.rng_state.load_rng_state`."""
        generators.load_rng_state(rng_state)

    def retain(self, local_path: str, global_step: int, max_ckpt_to_keep: int | None) -> None:
        """Remove all but the newest ``max_ckpt_to_keep`` checkpoints, ``local_path``, just completed, among the kept.

        Which there are is read from the directory: the same part of other steps, written by probe and complete. What
        others wrote is left alone. Where ``local_path`` doesn't name its step, only what this manager itself has
        saved is counted.

        Args:
            local_path: The checkpoint that was just completed.
            global_step: The step that it was made in.
            max_ckpt_to_keep: How many checkpoints stay; None or 0 means all.
        """
        newest = Path(local_path)
        place = Place.from_path(newest, global_step)
        if place is None:
            older = [path for path in self.previous_saved_paths if path != str(newest)]
            going = older[: max(0, len(older) + 1 - max_ckpt_to_keep)] if max_ckpt_to_keep else []
            self.remove_previous_save_local_path(going)
            self.previous_saved_paths = [*(path for path in older if path not in going), str(newest)]
            return
        kept = prune(place, newest, max_ckpt_to_keep) if max_ckpt_to_keep else written_checkpoints(place)
        self.previous_saved_paths = [str(path) for path in kept]
