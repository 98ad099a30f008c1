"""What every checkpoint manager has: what is saved and loaded, random state, and which old checkpoints may go."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from probe._check import also_named, whole_number
from probe.core.checkpoint import rng_state as generators
from probe.core.checkpoint.peers import Peers
from probe.core.checkpoint.retention import Place, prune, remove, written_checkpoints
from probe.errors import InputError, InputTypeError, UnknownNameError

CONTENTS: Final = ("model", "optimizer", "extra", "hf_model")
_DEFAULT: Final = ("model", "optimizer", "extra")
_SPELLINGS: Final = {"load": ("load", "load_contents"), "save": ("save", "save_contents")}

#: What else verl's configurations of checkpoints hold (0.9.1: CheckpointConfig and its kinds). It is about how others
#: write their files, or about running code that came with a model, which nothing here does.
_OF_OTHERS: Final = ("async_save", "mbridge_config", "save_lora_only", "strict", "trust_remote_code")


@dataclass(frozen=True)
class Contents:
    """Which parts are loaded and saved: ``model``, ``optimizer``, ``extra`` (scheduler, random state), ``hf_model``."""

    load: tuple[str, ...]
    save: tuple[str, ...]

    @classmethod
    def from_config(cls, given: Mapping[str, Any] | None, *, optimizer: bool) -> Contents:
        """What a configuration asks for; by default all that there is, without ``hf_model``.

        verl's own configuration objects are taken whole: names that have no meaning here are passed over, as are those
        that begin with an underscore, such as Hydra's ``_target_``.

        Raises:
            InputTypeError: It is not a mapping.
            InputError: ``model`` isn't among them.
            UnknownNameError: A part or a key has a name that isn't known.

        >>> Contents.from_config({"save_contents": ["model", "hf_model"], "async_save": False}, optimizer=False)
        Contents(load=('model', 'extra'), save=('model', 'hf_model'))
        """
        if given is not None and not isinstance(given, Mapping):
            raise InputTypeError(f"checkpoint_contents: got {type(given).__name__}, expected a mapping or None")
        config = {} if given is None else dict(given.items())
        known = [spelling for spellings in _SPELLINGS.values() for spelling in spellings]
        for key in config:
            if key not in known and key not in _OF_OTHERS and not str(key).startswith("_"):
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
        raise InputError(f"{argument}: got {lists}, expected only one of the two keys, or the same names in both")
    for name in lists[0]:
        if name not in CONTENTS:
            raise UnknownNameError.of(argument, name, CONTENTS)
    if "model" not in lists[0]:
        raise InputError(f"{argument}: got {list(lists[0])}, expected 'model' among them")
    return lists[0]


class BaseCheckpointManager:
    """What a checkpoint manager of any kind has: what is saved and loaded, and which old checkpoints may go.

    Made for subclasses, which know how the model is wrapped, as verl's trainers make theirs. A subclass defines
    :meth:`save_checkpoint` and :meth:`load_checkpoint`; it calls :meth:`ensure_checkpoint_capacity` before it writes
    and :meth:`register_checkpoint` once the checkpoint is complete. With a process group these are for one rank alone.

    Args:
        model: The model to save and to load into: what the subclass takes, a list of modules for example.
        optimizer: The optimizer to save and to load into, where there is one.
        lr_scheduler: The scheduler of the learning rate to save and to load into, where there is one.
        processing_class: A tokenizer or processor, anything with ``save_pretrained``.
        checkpoint_contents: ``load`` and ``save`` (or ``load_contents`` and ``save_contents``): lists of ``model``,
            ``optimizer``, ``extra``, ``hf_model``, each with ``model``. By default all but ``hf_model``. verl's
            ``CheckpointConfig`` is such a mapping. ``checkpoint_config`` is another name for it.

    Attributes:
        checkpoint_config: The configuration as it was given.
        checkpoint_contents: What is loaded and saved: lists under ``load`` and ``save``.
        checkpoint_load_contents: The names of what is loaded.
        checkpoint_save_contents: The names of what is saved.
        previous_saved_paths: Checkpoints that are kept now, oldest first.
        previous_global_step: The step of the last one, for subclasses; None at first.
        rank: This process's rank, 0 without a process group.
        world_size: The number of ranks, 1 without a process group.

    Raises:
        InputError: As :meth:`Contents.from_config`.
        InputTypeError: As :meth:`Contents.from_config`.
        UnknownNameError: As :meth:`Contents.from_config`.

    >>> manager = BaseCheckpointManager(model=[], checkpoint_config={"save_contents": ["model", "hf_model"]})
    >>> manager.should_save_hf_model, manager.should_save_extra, manager.should_load_extra
    (True, False, True)
    """

    @also_named(checkpoint_config="checkpoint_contents")
    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        processing_class: Any = None,
        checkpoint_contents: Mapping[str, Any] | None = None,
    ) -> None:
        contents = Contents.from_config(checkpoint_contents, optimizer=optimizer is not None)
        self.model = model
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.processing_class = processing_class
        self.checkpoint_config = checkpoint_contents
        self.checkpoint_contents = {"load": list(contents.load), "save": list(contents.save)}
        self.checkpoint_load_contents = self.checkpoint_contents["load"]
        self.checkpoint_save_contents = self.checkpoint_contents["save"]
        self.previous_saved_paths: list[str] = []
        self.previous_global_step: int | None = None
        peers = Peers()
        self.rank, self.world_size = peers.rank, peers.size

    def save_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, global_step: int = 0, max_ckpt_to_keep: int | None = None
    ) -> None:
        """Save the checkpoint to ``local_path``, and keep only the newest ``max_ckpt_to_keep``; a subclass says how.

        Args:
            local_path: Directory to make, on a file system that all ranks share.
            hdfs_path: Any fsspec URL that the complete checkpoint is then copied to.
            global_step: The trainer's step.
            max_ckpt_to_keep: How many checkpoints stay; None or 0 means all.

        Raises:
            NotImplementedError: The class doesn't say.
        """
        raise NotImplementedError(f"{type(self).__name__} has no save_checkpoint")

    def load_checkpoint(
        self, local_path: str | None, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """Load the checkpoint in ``local_path`` into model, optimizer and scheduler; a subclass says how.

        Args:
            local_path: The checkpoint; with None nothing is done.
            hdfs_path: Where to fetch it from, any fsspec URL, when it isn't at ``local_path``.
            del_local_after_load: Whether ``local_path`` is removed when every rank has loaded.

        Raises:
            NotImplementedError: The class doesn't say.
        """
        raise NotImplementedError(f"{type(self).__name__} has no load_checkpoint")

    @property
    def should_save_model(self) -> bool:
        """Whether the model is to be saved."""
        return "model" in self.checkpoint_save_contents

    @property
    def should_save_optimizer(self) -> bool:
        """Whether the optimizer is to be saved."""
        return "optimizer" in self.checkpoint_save_contents

    @property
    def should_save_extra(self) -> bool:
        """Whether scheduler and random state are to be saved."""
        return "extra" in self.checkpoint_save_contents

    @property
    def should_save_hf_model(self) -> bool:
        """Whether the whole model is to be saved in the form of Hugging Face."""
        return "hf_model" in self.checkpoint_save_contents

    @property
    def should_save_lora_only(self) -> bool:
        """Whether the configuration asks for the LoRA adapters alone (``save_lora_only``)."""
        return bool((self.checkpoint_config or {}).get("save_lora_only", False))

    @property
    def should_load_model(self) -> bool:
        """Whether the model is to be loaded."""
        return "model" in self.checkpoint_load_contents

    @property
    def should_load_optimizer(self) -> bool:
        """Whether the optimizer is to be loaded."""
        return "optimizer" in self.checkpoint_load_contents

    @property
    def should_load_extra(self) -> bool:
        """Whether scheduler and random state are to be loaded."""
        return "extra" in self.checkpoint_load_contents

    @property
    def should_load_hf_model(self) -> bool:
        """Whether a model in the form of Hugging Face is to be loaded."""
        return "hf_model" in self.checkpoint_load_contents

    @staticmethod
    def is_lora_only_state_dict(state_dict: Mapping[str, Any]) -> bool:
        """Whether a state dict holds something, and nothing but the weights of LoRA adapters.

        >>> BaseCheckpointManager.is_lora_only_state_dict({"q_proj.lora_A.default.weight": 0})
        True
        """
        return bool(state_dict) and all("lora_" in name or ".adapter_" in name for name in state_dict)

    @staticmethod
    def checkpath(local_path: str | None, hdfs_path: str | None) -> tuple[bool, str]:
        """Whether there is a local path, and the path to use: the local one, else the other.

        Args:
            local_path: A local path, or None.
            hdfs_path: A URL, or None.

        Raises:
            InputError: Both are None.

        >>> BaseCheckpointManager.checkpath(None, "hdfs://node/ckpt")
        (False, 'hdfs://node/ckpt')
        """
        path = hdfs_path if local_path is None else local_path
        if path is None:
            raise InputError("local_path and hdfs_path: both are None, expected at least one path")
        return local_path is not None, path

    def ensure_checkpoint_capacity(self, max_ckpt_to_keep: int | None) -> None:
        """Before a save: remove the oldest of ``previous_saved_paths``, so that one less than the limit is left.

        With a limit of 1 nothing goes: the only checkpoint stays until :meth:`register_checkpoint` says that there is
        another one.

        Args:
            max_ckpt_to_keep: How many checkpoints stay; None or 0 means all.

        Raises:
            InputError: The limit is negative.
            InputTypeError: It isn't a whole number.
        """
        if _limit(max_ckpt_to_keep) > 1:
            self._forget_all_but(_limit(max_ckpt_to_keep) - 1)

    def register_checkpoint(self, new_path: str | os.PathLike[str], max_ckpt_to_keep: int | None) -> None:
        """After a save: count ``new_path`` as the newest checkpoint, and remove the oldest above the limit.

        Args:
            new_path: The checkpoint, which is complete.
            max_ckpt_to_keep: How many checkpoints stay, the new one included; None or 0 means all.

        Raises:
            InputError: The limit is negative.
            InputTypeError: It isn't a whole number.
        """
        limit = _limit(max_ckpt_to_keep)
        self.previous_saved_paths = [
            *(path for path in self.previous_saved_paths if path != str(new_path)),
            str(new_path),
        ]
        if limit:
            self._forget_all_but(limit)

    def _forget_all_but(self, count: int) -> None:
        kept = self.previous_saved_paths[-count:]
        going = self.previous_saved_paths[: len(self.previous_saved_paths) - len(kept)]
        self.remove_previous_save_local_path(going)
        self.previous_saved_paths = kept

    def remove_previous_save_local_path(self, path: str | os.PathLike[str] | list[str]) -> None:
        """Remove checkpoints, one or many, of whatever kind. What isn't there is passed over, what stays is logged.

        Of a checkpoint that probe wrote, files that others have put into it stay.
        """
        for one in [path] if isinstance(path, str | os.PathLike) else list(path):
            if Path(one).is_dir() or Path(one).is_symlink():
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
            self.register_checkpoint(newest, max_ckpt_to_keep)
            return
        kept = prune(place, newest, max_ckpt_to_keep) if max_ckpt_to_keep else written_checkpoints(place)
        self.previous_saved_paths = [str(path) for path in kept]


def _limit(max_ckpt_to_keep: int | None) -> int:
    """How many checkpoints stay; 0 means all."""
    return whole_number("max_ckpt_to_keep", max_ckpt_to_keep or 0, 0)
