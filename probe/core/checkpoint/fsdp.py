"""Checkpoints of a training whose model is sharded by FSDP1 or FSDP2, or isn't sharded at all."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata

from probe._check import also_named, whole_number
from probe._io import write_durably
from probe.core.checkpoint import files
from probe.core.checkpoint.files import EXTRA, HUGGINGFACE, SHARDS, Manifest
from probe.core.checkpoint.hf import parts_of, write_full_model, write_parts
from probe.core.checkpoint.manager import BaseCheckpointManager
from probe.core.checkpoint.peers import Peers, quiet
from probe.core.checkpoint.plain_state import read_plain, write_plain
from probe.core.checkpoint.remote import download, upload
from probe.core.checkpoint.retention import Place, update_checkpoint_tracker
from probe.core.checkpoint.rng_state import get_rng_state, load_rng_state
from probe.core.checkpoint.shards import check_shards, load_shards, read_chunks, save_shards, shard_files
from probe.core.checkpoint.state import (
    OptimizerLoad,
    State,
    check_same,
    load_model,
    model_state,
    optimizer_state,
    saved_model,
)
from probe.errors import InputError, InputTypeError, MissingKeyError, ProbeError, SerializationError
from probe.guard import on_error
from probe.hooks import emit, observed, point

_STRUCTURE: Final = "structure.json"
_KINDS: Final = ("model", "optimizer")
_SCHEDULER: Final = "lr_scheduler.safetensors"
_OPTIONS: Final = ("process_group", "verify_checksums")

#: Told on every rank once a checkpoint is complete.
SAVED = point(
    "checkpoint.saved",
    "a checkpoint is complete and in place; carries path, global_step, total_bytes, world_size, contents, failed "
    "(optional parts that couldn't be written, with their errors), remote (hdfs_path or None)",
)
#: Told on every rank once a checkpoint has been loaded.
LOADED = point(
    "checkpoint.loaded",
    "a checkpoint has been loaded; carries path, global_step, total_bytes, world_size (that saved it), contents "
    "(loaded), failed (as in checkpoint.saved)",
)

_NO_MANIFEST: Final = Manifest(0, 0, [], {}, saved_at_ns=0)
_log = logging.getLogger("probe.checkpoint")


class FSDPCheckpointManager(BaseCheckpointManager):
    """Saves and loads model, optimizer, scheduler and random state of all ranks.

    Works for FSDP1, FSDP2, DDP and a plain module, with a process group or without. Any number of ranks can load
    what any other number has saved: the tensors lie in shards of ``torch.distributed.checkpoint``. Loading never
    runs code from a file.

    Args:
        model: See :class:`BaseCheckpointManager`.
        optimizer: See :class:`BaseCheckpointManager`.
        lr_scheduler: See :class:`BaseCheckpointManager`.
        processing_class: See :class:`BaseCheckpointManager`.
        checkpoint_contents: See :class:`BaseCheckpointManager`. Without an optimizer one may be asked for, as verl's
            default does; then saving or loading raises.
        trust_remote_code: Has no effect: nothing here runs code that came with a model. verl's trainers give it.
        **kwargs: ``tokenizer``: another name of ``processing_class``. ``checkpoint_config``: another name of
            ``checkpoint_contents``, whose ``async_save`` has the manager set the tracker, see :meth:`save_checkpoint`.
            ``process_group``: the ranks that hold the model; None means all. ``verify_checksums``: whether loading
            reads every file once more to compare its SHA-256, each rank a share of them (default); False compares
            sizes only.

    Raises:
        InputTypeError: An argument is unknown, or has the wrong type.
        ConflictError: An argument was given under both of its names.
        InputError: As for :class:`BaseCheckpointManager`.
        UnknownNameError: As for :class:`BaseCheckpointManager`.
    """

    @also_named(tokenizer="processing_class", checkpoint_config="checkpoint_contents")
    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        lr_scheduler: Any = None,
        processing_class: Any = None,
        checkpoint_contents: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
        **kwargs: Any,
    ) -> None:
        del trust_remote_code  # see Args
        for name in kwargs:
            if name not in _OPTIONS:
                raise InputTypeError(f"unexpected argument {name!r}, expected one of {', '.join(_OPTIONS)}")
        if not isinstance(model, nn.Module):
            raise InputTypeError(f"model: got {type(model).__name__}, expected a torch.nn.Module")
        if processing_class is not None and not callable(getattr(processing_class, "save_pretrained", None)):
            kind = type(processing_class).__name__
            raise InputTypeError(
                f"processing_class: got {kind}, expected a tokenizer or processor with save_pretrained"
            )
        super().__init__(model, optimizer, lr_scheduler, processing_class, checkpoint_contents)
        if self.should_save_lora_only:
            _log.warning("checkpoint_contents.save_lora_only is ignored: all weights are saved, not only those of LoRA")
        self._group = kwargs.get("process_group")
        self._verify = bool(kwargs.get("verify_checksums", True))
        self._tracks = bool((checkpoint_contents or {}).get("async_save"))

    # ------------------------------------------------------------------------------------------------------------- save

    @observed("checkpoint.save_checkpoint", "a checkpoint is saved; arguments local_path, hdfs_path, global_step")
    def save_checkpoint(
        self,
        local_path: str | os.PathLike[str],
        hdfs_path: str | None = None,
        global_step: int = 0,
        max_ckpt_to_keep: int | None = None,
    ) -> None:
        """Save a checkpoint; to be called on every rank.

        It is written to ``{local_path}.incomplete`` and renamed when every rank's files are on the disk and listed
        with their checksums. Whatever happens before, the checkpoints that were there stay as they were, one at
        ``local_path`` itself included. Then the tracker beside it is set, where ``local_path`` itself names the step.
        For ``global_step_7/actor`` the trainer knows when the step is complete, and calls
        :func:`probe.core.checkpoint.update_checkpoint_tracker`; with ``async_save`` verl's trainers leave that to the
        manager, and the one that completes the step last does it: whose save ends when no other part of the step is
        being written, nor one missing that the step before has. Only then old checkpoints are removed.

        The config, the tokenizer and the full model under ``huggingface/`` are optional: where one can't be written,
        the checkpoint is complete without it, an error is logged, and the manifest names it.

        Args:
            local_path: Directory to make, on a file system that all ranks share.
            hdfs_path: Any fsspec URL that the complete checkpoint is then copied to.
            global_step: The trainer's step.
            max_ckpt_to_keep: How many checkpoints stay; None or 0 means all.

        Raises:
            InputError: An argument can't be used, or there is no optimizer to save. Every rank raises.
            InputTypeError: An argument has the wrong type. Every rank raises.
            SerializationError: There is state that can't be written without pickle.
            OSError: The disk is full, read-only …
            PeerError: It failed on another rank.
        """
        peers = Peers(self._group)
        peers.together(lambda: _check_save(local_path, hdfs_path, global_step, max_ckpt_to_keep))
        peers.together(lambda: self._check_optimizer("save"))
        target = _absolute(local_path)
        stepped = any(peers.together(lambda: self.optimizer is not None and bool(self.optimizer.state)))
        peers.on_first(lambda: _begin(target, global_step))
        staging = files.staging_of(target)
        with _cleared_on_failure(staging, peers), quiet():
            self._write_state(staging, peers, stepped)
            failed = self._write_optional(staging, peers)
            manifest = self._list_files(staging, peers, global_step, failed)
            peers.on_first(lambda: _commit(staging, target, manifest, tracks=self._tracks))
        peers.on_first(lambda: self.retain(str(target), global_step, max_ckpt_to_keep))
        self.previous_saved_paths = peers.together(lambda: self.previous_saved_paths)[0]
        if hdfs_path is not None:
            peers.on_first(lambda: upload(target, hdfs_path))
        if SAVED.listeners:
            emit(SAVED, path=str(target), remote=hdfs_path, **_manifest_contents(manifest, manifest.contents))

    def _check_optimizer(self, which: str) -> None:
        if self.optimizer is None and "optimizer" in self.checkpoint_contents[which]:
            raise InputError(f"checkpoint_contents.{which}: asks for the optimizer, but optimizer is None")

    def _write_state(self, staging: Path, peers: Peers, stepped: bool) -> None:
        peers.together(lambda: _check_shared(staging))
        collected: list[State] = []
        peers.together(lambda: collected.extend(self._states(stepped)))
        tensors = {name: one for state in collected for name, one in state.tensors.items()}
        peers.together(lambda: save_shards(tensors, staging / SHARDS, peers))
        trees = files.to_json({kind: state.tree for kind, state in zip(_KINDS, collected, strict=False)})
        peers.on_first(lambda: write_durably(staging / SHARDS / _STRUCTURE, trees))
        if "extra" in self.checkpoint_save_contents:
            peers.on_first((staging / EXTRA).mkdir)
            peers.together(lambda: self._write_extra(staging / EXTRA, peers))

    def _states(self, stepped: bool) -> Iterator[State]:
        yield model_state(self.model)
        if self.optimizer is not None and "optimizer" in self.checkpoint_save_contents:
            yield optimizer_state(self.model, self.optimizer, stepped=stepped)

    def _write_extra(self, directory: Path, peers: Peers) -> None:
        write_plain(directory / _rng_file(peers.rank), get_rng_state())
        if peers.first and self.lr_scheduler is not None:
            write_plain(directory / _SCHEDULER, self.lr_scheduler.state_dict())

    def _write_optional(self, staging: Path, peers: Peers) -> dict[str, str]:
        def write() -> dict[str, str]:
            parts = parts_of(self.model, self.processing_class)
            if "hf_model" in self.checkpoint_save_contents:
                chunks = read_chunks(staging / SHARDS)
                parts["hf_model"] = partial(write_full_model, self.model, staging / SHARDS, chunks)
            return write_parts(staging / HUGGINGFACE, parts)

        return peers.together(write if peers.first else dict)[0]

    def _list_files(self, staging: Path, peers: Peers, global_step: int, failed: dict[str, str]) -> Manifest:
        """Every file with its checksum, each rank taking a share; all must be seen from the first rank."""
        expected = shard_files(read_chunks(staging / SHARDS)) if peers.first else set()
        extra = "extra" in self.checkpoint_save_contents
        wanted = {f"{SHARDS}/{name}" for name in expected}
        wanted |= {f"{EXTRA}/{_rng_file(rank)}" for rank in range(peers.size) if extra}
        names = peers.on_first(lambda: _all_there(staging, wanted))
        names = peers.together(lambda: names)[0] or []
        shares = peers.together(lambda: files.entries(staging, names[peers.rank :: peers.size]))
        contents = [name for name in self.checkpoint_save_contents if name not in failed]
        return Manifest(
            global_step, peers.size, contents, {name: entry for one in shares for name, entry in one.items()}, failed
        )

    # ------------------------------------------------------------------------------------------------------------- load

    @observed("checkpoint.load_checkpoint", "a checkpoint is loaded; arguments local_path, hdfs_path")
    def load_checkpoint(
        self,
        local_path: str | os.PathLike[str] | None,
        hdfs_path: str | None = None,
        del_local_after_load: bool = False,
    ) -> None:
        """Load a checkpoint; to be called on every rank. ``hf_model`` is never loaded: the shards hold the same.

        Everything is checked before anything is changed: the files against the manifest, the names and shapes
        against model and optimizer. Each rank gets its own random state back. On another number of ranks than saved
        it, ranks that the checkpoint knows get theirs, and further ones keep the state that they have (another
        rank's would make the two draw the same numbers); a warning says so.

        Args:
            local_path: The checkpoint; with None (:func:`find_latest_ckpt_path` found none) nothing is done.
            hdfs_path: Where to fetch it from, any fsspec URL, when it isn't at ``local_path``.
            del_local_after_load: Whether ``local_path`` is removed when every rank has loaded.

        Raises:
            InputError: Files are missing or damaged (what is expected and what was found), nothing is there, or there
                is no optimizer to load into.
            ShapeError: A tensor has another shape than the model's.
            MissingKeyError: The checkpoint and the model don't have the same tensors.
            SerializationError: A file isn't what probe writes.
            PeerError: It failed on another rank. Every rank raises.
        """
        if local_path is None:
            return
        peers = Peers(self._group)
        peers.together(lambda: self._check_optimizer("load"))
        target = _absolute(local_path)
        peers.on_first(lambda: _fetch(target, hdfs_path))
        manifest = self._checked(target, peers)
        extra: list[dict[str, Any]] = []
        if "extra" in self.checkpoint_load_contents:
            peers.together(lambda: extra.append(self._read_extra(target, manifest, peers)))
        with quiet():
            self._load_state(target, peers)
        for one in extra:
            peers.together(partial(self._load_extra, one))
        if del_local_after_load:
            peers.on_first(lambda: _remove_loaded(target, manifest.global_step))
        if LOADED.listeners:
            emit(LOADED, path=str(target), **_manifest_contents(manifest, self.checkpoint_load_contents))

    def _checked(self, target: Path, peers: Peers) -> Manifest:
        def check() -> list[str]:
            share = dict(list(manifest.files.items())[peers.rank :: peers.size])
            return files.problems(target, share, checksums=self._verify)

        manifest = peers.together(lambda: Manifest.read(target) if peers.first else _NO_MANIFEST)[0]
        found = [line for lines in peers.together(check) for line in lines]
        files.check_listed(target, manifest, found)
        lacking = {name for name in self.checkpoint_load_contents if name != "hf_model"} - set(manifest.contents)
        if lacking:
            raise MissingKeyError(
                f"checkpoint {target}: it lacks the contents {', '.join(sorted(lacking))}; "
                f"it has {', '.join(manifest.contents)}"
            )
        return manifest

    def _load_state(self, target: Path, peers: Peers) -> None:
        ready: list[Any] = []
        peers.together(lambda: ready.extend(self._prepared(target)))
        saved, tree, model, optimizer = ready
        tensors = {**model.tensors, **(optimizer.tensors if optimizer else {})}
        share = slice(peers.rank, None, peers.size)
        peers.together(lambda: check_shards(target / SHARDS, saved, share))  # nothing is changed by a damaged one
        peers.together(lambda: load_shards(tensors, target / SHARDS, saved, peers))
        peers.together(lambda: load_model(self.model, tree))
        if optimizer:
            peers.together(optimizer.apply)

    def _prepared(self, target: Path) -> tuple[Metadata, Any, State, OptimizerLoad | None]:
        """What is to be filled, after it has been compared with what is there."""
        where = f"checkpoint {target}"
        saved = read_chunks(target / SHARDS)
        path = target / SHARDS / _STRUCTURE
        trees = _read_trees(path)
        model = model_state(self.model)
        check_same(model, saved, "model", where)
        optimizer = None
        try:
            tree = saved_model(model, trees["model"], where)
            if self.optimizer is not None and "optimizer" in self.checkpoint_load_contents:
                optimizer = OptimizerLoad(self.model, self.optimizer, trees["optimizer"], saved, where)
        except ProbeError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
            raise SerializationError(f"{path}: the saved structure doesn't fit this model: {error!r}") from error
        return saved, tree, model, optimizer

    def _read_extra(self, target: Path, manifest: Manifest, peers: Peers) -> dict[str, Any]:
        """What is to be put into the scheduler and the generators."""
        directory = target / EXTRA
        has_scheduler = f"{EXTRA}/{_SCHEDULER}" in manifest.files
        found: dict[str, Any] = {}
        if self.lr_scheduler is not None:
            if not has_scheduler:
                raise MissingKeyError(f"checkpoint {target}: it has no state for the lr_scheduler that was given")
            found["lr_scheduler"] = read_plain(directory / _SCHEDULER)
        elif has_scheduler and peers.first:
            _log.warning("%s: its lr_scheduler state isn't loaded, because there is no lr_scheduler here", target)
        if manifest.world_size != peers.size and peers.first:
            _log.warning(
                "%s: saved by %d ranks, loaded by %d: ranks 0 to %d get their random state, other ranks keep theirs",
                target, manifest.world_size, peers.size, min(manifest.world_size, peers.size) - 1,
            )  # fmt: skip
        if peers.rank < manifest.world_size:
            found["rng"] = read_plain(directory / _rng_file(peers.rank))
        return found

    def _load_extra(self, found: Mapping[str, Any]) -> None:
        if "lr_scheduler" in found:
            self.lr_scheduler.load_state_dict(found["lr_scheduler"])
        if "rng" in found:
            load_rng_state(found["rng"])


def _absolute(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100  (resolve() would follow a link that the caller made on purpose)


def _check_save(local_path: Any, hdfs_path: Any, global_step: Any, max_ckpt_to_keep: Any) -> None:
    if not isinstance(local_path, str | os.PathLike) or not os.fspath(local_path):
        raise InputTypeError(f"local_path: got {local_path!r}, expected a path")
    if Path(local_path).name.endswith((files.INCOMPLETE, files.REPLACED)):
        raise InputError(
            f"local_path: got {local_path}, expected another ending: {files.INCOMPLETE} and {files.REPLACED} mark "
            "checkpoints that aren't complete"
        )
    if hdfs_path is not None and (not isinstance(hdfs_path, str) or not hdfs_path):
        raise InputTypeError(f"hdfs_path: got {hdfs_path!r}, expected a URL or None")
    for name, value in (("global_step", global_step), ("max_ckpt_to_keep", max_ckpt_to_keep or 0)):
        whole_number(name, value, 0)


def _check_shared(staging: Path) -> None:
    if not staging.is_dir():
        raise InputError(
            f"local_path: the first rank made {staging}, but this rank doesn't see it; expected a file system that all "
            "ranks share"
        )


def _all_there(staging: Path, wanted: set[str]) -> list[str]:
    found = files.files_of(staging)
    if missing := sorted(wanted - set(found)):
        raise InputError(
            f"local_path: the first rank doesn't see {', '.join(missing)} of other ranks in {staging}; expected a file "
            "system that all ranks share"
        )
    return found


def _commit(staging: Path, target: Path, manifest: Manifest, *, tracks: bool) -> None:
    place = Place.from_path(target, manifest.global_step)
    if place is not None:
        manifest = replace(manifest, saved_at_ns=max(manifest.saved_at_ns, place.saved_last_ns() + 1))
    manifest.write(staging)
    files.put_in_place(staging, target)
    if place is not None and (place.flat or (tracks and place.has_all_parts(manifest.global_step))):
        update_checkpoint_tracker(place.root, manifest.global_step)


def _remove_loaded(target: Path, global_step: int) -> None:
    """After it was loaded; a part of a step whose directory is a link stays, as its bytes are somewhere else's."""
    if target.is_symlink() or not _is_in_link(target, global_step):
        files.discard(target)


def _is_in_link(target: Path, global_step: int) -> bool:
    place = Place.from_path(target, global_step)
    return place is not None and not place.flat and target.parent.is_symlink()


def _begin(target: Path, global_step: int) -> None:
    if _is_in_link(target, global_step) and not target.parent.exists():
        target.parent.unlink()  # it leads nowhere
    files.begin(target).joinpath(SHARDS).mkdir()


def _cleared_on_failure(staging: Path, peers: Peers) -> on_error:
    def clear(error: BaseException) -> None:
        # Only when all ranks have met: where one is gone, the others may still be writing, and the next save clears
        # it.
        if isinstance(error, Exception) and peers.first and peers.agreed_to_fail:
            shutil.rmtree(staging, ignore_errors=True)

    return on_error(clear)


def _fetch(target: Path, hdfs_path: str | None) -> None:
    with suppress(OSError):  # a read-only disk can't be settled, but can be read
        files.settle(target)
    if (target / files.MANIFEST).exists():
        return
    if hdfs_path is None or files.holds_others(target):
        raise InputError(files.describe_missing(target))
    download(hdfs_path, target)


def _manifest_contents(manifest: Manifest, contents: list[str]) -> dict[str, Any]:
    return {
        "global_step": manifest.global_step,
        "total_bytes": manifest.total_bytes,
        "world_size": manifest.world_size,
        "contents": contents,
        "failed": manifest.failed,
    }


def _read_trees(path: Path) -> dict[str, Any]:
    try:
        trees = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise SerializationError(f"{path}: not JSON: {error}") from error
    if not isinstance(trees, dict) or not set(trees) <= set(_KINDS) or "model" not in trees:
        raise SerializationError(f"{path}: not the saved structure of a probe checkpoint, a JSON object with 'model'")
    return trees


def _rng_file(rank: int) -> str:
    return f"rng_rank_{rank:05}.safetensors"
