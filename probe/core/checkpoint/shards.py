"""Tensors of all ranks in shards that any number of ranks can read, through ``torch.distributed.checkpoint``.

torch keeps the list of chunks as a pickle, which runs code when it is read. Here it is JSON, and only tensors are
written, each read back with ``weights_only=True``: nothing in a checkpoint is ever executed.
"""

from __future__ import annotations

import io
import json
import math
import pickle  # its exception only
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from probe._io import write_durably
from probe.core.checkpoint.files import to_json
from probe.core.checkpoint.peers import Peers, quiet
from probe.core.checkpoint.plain_state import as_dtype
from probe.errors import SerializationError
from probe.guard import raised_as

CHUNKS: Final = "chunks.json"
_NOT_THESE: Final = "a shard doesn't hold the tensors that it should"


class _Writer(FileSystemWriter):
    """torch's writer, but for the list of chunks, which is JSON."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write this rank's files. Where torch hides why it couldn't behind an error of its own, say why."""
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__cause__ or cause.__context__
            if cause is None:
                raise
            raise cause from error

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        """Write what all ranks have told; called on the first rank only."""
        stored = {result.index: result.storage_data for of_rank in results for result in of_rank}
        write_durably(Path(self.path) / CHUNKS, to_json({"version": 1, "tensors": _listed(metadata, stored)}))


class _Reader(FileSystemReader):
    """torch's reader, given the list of chunks instead of unpickling it."""

    def __init__(self, path: Path, chunks: Metadata) -> None:
        super().__init__(path)
        self._chunks = chunks

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """What :func:`read_chunks` has read."""
        return self._chunks

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Fill what the plan names; each piece is read as a tensor and as nothing else."""
        try:
            return super().read_data(plan, planner)
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:  # how torch.load says that it isn't one
            raise SerializationError(f"{self.path}: {_NOT_THESE}: {error}") from error


class _TensorsOnly(DefaultLoadPlanner):
    """torch's planner unpickles what isn't a tensor; this one refuses."""

    def load_bytes(self, read_item: Any, value: Any) -> None:
        """Refuse."""
        del value  # refused unread
        raise SerializationError(f"{read_item.dest_index.fqn}: the checkpoint holds bytes, expected a tensor")


def _listed(metadata: Metadata, stored: Mapping[MetadataIndex, Any]) -> dict[str, Any]:
    listed: dict[str, Any] = {}
    for name, tensor in metadata.state_dict_metadata.items():
        if not isinstance(tensor, TensorStorageMetadata):
            raise SerializationError(f"{name}: got {type(tensor).__name__}, expected a tensor")
        chunks = []
        for chunk in tensor.chunks:
            where = stored[MetadataIndex(name, chunk.offsets)]
            chunks.append([list(chunk.offsets), list(chunk.sizes), where.relative_path, where.offset, where.length])
        dtype = str(tensor.properties.dtype).removeprefix("torch.")
        listed[name] = {"dtype": dtype, "size": list(tensor.size), "chunks": chunks}
    return listed


def read_chunks(directory: Path) -> Metadata:
    """Which tensors ``directory`` holds, in which chunks of which files.

    Raises:
        SerializationError: The list can't be understood.
        OSError: It can't be read.
    """
    path = directory / CHUNKS
    try:
        told = json.loads(path.read_bytes())
        tensors: dict[str, Any] = {}
        stored: dict[MetadataIndex, _StorageInfo] = {}
        for name, tensor in told["tensors"].items():
            chunks = [_chunk(name, one, stored) for one in tensor["chunks"]]
            _check_covered(name, chunks, tensor["size"])
            properties = TensorProperties(dtype=as_dtype(tensor["dtype"]))
            tensors[name] = TensorStorageMetadata(properties, torch.Size(tensor["size"]), chunks)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError) as error:
        raise SerializationError(f"{path}: not a list of chunks that probe wrote: {error!r}") from error
    return Metadata(tensors, storage_data=stored, storage_meta=StorageMeta())


def _check_covered(name: str, chunks: list[ChunkStorageMetadata], size: list[int]) -> None:
    """What isn't in a chunk would keep the value that it had before."""
    inside = all(
        len(one.offsets) == len(one.sizes) == len(size)
        and min((*one.offsets, *one.sizes), default=0) >= 0
        and all(begin + count <= most for begin, count, most in zip(one.offsets, one.sizes, size, strict=True))
        for one in chunks
    )
    if not inside or sum(math.prod(one.sizes) for one in chunks) != math.prod(size):
        raise SerializationError(f"{name}: its {len(chunks)} chunks don't make up a tensor of shape {tuple(size)}")


def _chunk(name: str, told: list[Any], stored: dict[MetadataIndex, _StorageInfo]) -> ChunkStorageMetadata:
    offsets, sizes, file, start, length = told
    if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
        raise SerializationError(f"{name}: got the file {file!r}, expected a file name without a directory")
    stored[MetadataIndex(name, offsets)] = _StorageInfo(file, int(start), int(length))
    return ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


def check_shards(directory: Path, chunks: Metadata, share: slice) -> None:
    """Read chunks and throw them away: whether they hold what the list says, before anything is filled with them.

    A checksum tells that a file is as it was written; this tells that what was written are these tensors.

    Args:
        directory: The directory that holds the shards.
        chunks: What :func:`read_chunks` said of it.
        share: Which of the chunks, so that ranks share the work.

    Raises:
        SerializationError: A chunk isn't the tensor that the list says.
        OSError: A file can't be read.
    """
    sizes = {
        MetadataIndex(name, chunk.offsets): (chunk.sizes, tensor.properties.dtype)
        for name, tensor in chunks.state_dict_metadata.items()
        if isinstance(tensor, TensorStorageMetadata)
        for chunk in tensor.chunks
    }
    for index, where in list(chunks.storage_data.items())[share]:
        size, dtype = sizes[index]
        path = directory / where.relative_path
        with path.open("rb") as file:
            file.seek(where.offset)
            piece = io.BytesIO(file.read(where.length))
        with raised_as(partial(_unreadable, f"{path}: {_NOT_THESE}: {index.fqn}"), but=()):
            found: Any = torch.load(piece, map_location="cpu", weights_only=True)
        told = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        if not isinstance(found, torch.Tensor) or found.shape != size or found.dtype != dtype:
            expected = f"{dtype} {tuple(size)}"
            raise SerializationError(f"{path}: {_NOT_THESE}: a piece of {index.fqn} is {told}, expected {expected}")


def _unreadable(which: str, error: Exception) -> SerializationError:
    """torch has no one error for bytes that are no tensor."""
    why = str(error).partition("\n")[0].partition(". ")[0]  # torch goes on with advice on how to run its code
    return SerializationError(f"{which} can't be read: {why}")


def shard_files(chunks: Metadata) -> set[str]:
    """Names of the files that hold the chunks."""
    return {info.relative_path for info in chunks.storage_data.values()}


def save_shards(tensors: Mapping[str, torch.Tensor], directory: Path, peers: Peers) -> None:
    """Write the tensors of all ranks. Sharded ones from the ranks that hold them, the same tensor of many ranks once.

    A meeting of all ranks of ``peers``; to be called in :meth:`Peers.together`.

    Args:
        tensors: The same names on every rank; plain, DTensor or ShardedTensor.
        directory: A directory that all ranks see.
        peers: The ranks that write together.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with quiet():
        save(
            dict(tensors),
            storage_writer=_Writer(directory),
            planner=planner,
            process_group=peers.group,
            no_dist=not peers.distributed,
        )


def load_shards(tensors: Mapping[str, torch.Tensor], directory: Path, chunks: Metadata, peers: Peers | None) -> None:
    """Fill ``tensors`` in place from what any number of ranks wrote.

    Args:
        tensors: The tensors to fill, by name.
        directory: The directory that holds the shards.
        chunks: What :func:`read_chunks` said of the directory.
        peers: The ranks that read together, each what it holds. None means this process alone, without communication.
    """
    planner = _TensorsOnly(flatten_state_dict=False, flatten_sharded_tensors=False)
    with quiet():
        load(
            dict(tensors),
            storage_reader=_Reader(directory, chunks),
            planner=planner,
            process_group=None if peers is None else peers.group,
            no_dist=peers is None or not peers.distributed,
        )
