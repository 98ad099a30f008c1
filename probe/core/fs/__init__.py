"""Files from anywhere to this machine: cached, checked, and safe when all ranks of a node ask at once.

A path is a local path or any ``fsspec`` URL (``s3://``, ``gs://``, ``hdfs://``, ``http://``, ``memory://``, …). What a
store's client needs to know (endpoints, credentials) comes from its own environment variables or from ``fsspec``'s,
such as ``FSSPEC_S3_ENDPOINT_URL``.

The inventories stand in ``fs_store``, the transfers in ``fs_transfer``, the cache in ``fs_cache``.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any, Final

from probe.core.fs.cache import CACHED, Place, kept
from probe.core.fs.progress import Teller
from probe.core.fs.store import (
    LocalSource,
    RemoteSource,
    Source,
    as_location,
    is_missing,
    is_non_local,
    local_path,
    safe_name,
    source_of,
    telling,
)
from probe.core.fs.transfer import aside, differences, download, merge, swap, upload
from probe.errors import CopyError, InputError, NoRoomError, SourceMissingError, TargetExistsError
from probe.hooks import observed
from probe.redaction import without_logins

__all__ = [
    "CACHED",
    "CopyError",
    "NoRoomError",
    "SourceMissingError",
    "TargetExistsError",
    "copy",
    "copy_to_local",
    "copy_to_shm",
    "exists",
    "get_local_temp_path",
    "is_non_local",
    "local_mkdir_safe",
    "makedirs",
    "md5_encode",
    "verify_copy",
]

#: Shared memory of the node, seen as a folder.
SHM: Final = Path("/dev/shm")  # noqa: S108  (that's what it is called; copies lie in a private folder)
#: The part of shared memory that is left free: NCCL and data loaders talk through it.
SHM_RESERVE: Final = 0.1
_LOCK: Final = ".file.lock"
#: A model on the hub: its name, or that of its organisation before it (the rule of ``huggingface_hub``).
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
#: What is called so is a file, and its path was meant.
# fmt: off
_DATA: Final = frozenset((
    ".arrow", ".bin", ".csv", ".gif", ".gz", ".jpeg", ".jpg", ".json", ".jsonl", ".mp4", ".npy", ".npz", ".parquet",
    ".png", ".pt", ".pth", ".safetensors", ".tar", ".toml", ".tsv", ".txt", ".wav", ".webp", ".yaml", ".yml", ".zip",
))
# fmt: on

_log = logging.getLogger("probe.core.fs")


@observed("fs.copy_to_local", "a file or directory is copied to this machine, unless it is already here")
def copy_to_local(
    src: str | os.PathLike[str],
    cache_dir: str | os.PathLike[str] | None = None,
    filelock: str = _LOCK,
    verbose: bool = False,
    always_recopy: bool = False,
    use_shm: bool = False,
) -> str:
    """The local path of ``src``: itself where it is local, otherwise that of a copy, which is made once.

    The copy lies at ``{cache_dir}/{md5 of src}/{name}``. Each call compares what the store lists now (names, sizes,
    ETags or times) with what was copied, and the copy's own files with how they were left; on any difference it is
    copied again. A copy is made aside, every file checked for size and for the checksum that its store tells (such as
    the MD5 in S3's ETag), and renamed when it's whole. Whoever still reads the old copy of a source that changed should
    open its files anew.

    The name of a model on the Hugging Face hub (``Qwen/Qwen2.5-0.5B``, ``gpt2``) comes back as it is, as from verl,
    whose trainers hand it on to ``from_pretrained``. What looks like a path is taken for one: absolute, with a dot at
    its beginning, below a directory that is there, or with the suffix of a file of data.

    Args:
        src: A local path or the name of a model (returned as they are), or a URL of a file or directory; a slash at the
            end does no harm.
        cache_dir: Local directory for copies. None is the system's directory for temporary files, where only copies
            that this user made are used.
        filelock: Name of the lock file beside the copy, or an absolute path of one.
        verbose: Whether to show on standard error what is copied, and how far it is: a bar in a terminal, a line for
            every tenth elsewhere. The logger ``probe.core.fs`` then gets at INFO what it gets at DEBUG otherwise.
        always_recopy: Whether to copy even if the copy at hand is good.
        use_shm: Whether to copy on into shared memory, see :func:`copy_to_shm`.

    Raises:
        SourceMissingError: There is nothing at ``src`` (it's a FileNotFoundError, too).
        CopyError: The store fails or refuses, a file isn't what its store lists, or the source changed meanwhile;
            nothing half copied is left.
        NoRoomError: It doesn't fit on the disk.
        MissingDependencyError: This kind of URL needs a package that isn't installed.
        InputError: An argument can't be used, or the source holds names such as ``..`` that would leave the cache.
        InputTypeError: An argument has the wrong type.

    >>> copy_to_local("/") == "/"
    True
    """
    location = as_location("src", src)
    if isinstance(src, str) and _is_hub_id(src):
        if use_shm:
            _log.warning(
                "%s isn't copied into shared memory: it names a model of the Hugging Face Hub, not a local path", src
            )
        return src
    if not is_non_local(location):
        found = _existing(location)
        return copy_to_shm(found, verbose=verbose) if use_shm else found
    place = _place(location, cache_dir, filelock)
    local = kept(source_of(location), place, again=bool(always_recopy), teller=Teller(bool(verbose)))
    return copy_to_shm(local, verbose=verbose) if use_shm else local


@observed("fs.copy_to_shm", "a local file or directory is copied into shared memory")
def copy_to_shm(src: str | os.PathLike[str], *, verbose: bool = False) -> str:
    """The path of a copy of ``src`` in the node's shared memory, so that all its processes read it from there.

    Where there is no shared memory, or the copy would leave less than a tenth of it free, the path of ``src`` itself is
    returned and a warning logged. The copy outlives the process; a source that changed is copied again.

    Args:
        src: A local file or directory.
        verbose: As for :func:`copy_to_local`.

    Raises:
        SourceMissingError: It isn't there.
        InputError: ``src`` is a URL; :func:`copy_to_local` with ``use_shm`` takes those.
        CopyError: It can't be read.
    """
    location = as_location("src", src)
    if is_non_local(location):
        raise InputError(
            f"src: got {without_logins(location)!r}, expected a local path; copy_to_local(…, use_shm=True) copies URLs"
        )
    path = _existing(location)
    whole = Path(os.path.abspath(path))  # noqa: PTH100  (resolve() gives the name that a link points to)
    if whole.resolve().is_relative_to(SHM):
        return path
    if not SHM.is_dir() or not os.access(SHM, os.W_OK):
        _log.warning("%s isn't copied into shared memory: %s doesn't exist or can't be written to", path, SHM)
        return path
    home = _own_folder(SHM / f"probe-cache-{os.getuid()}")
    place = Place(home / md5_encode(str(whole)), whole.name or "root", _LOCK)
    reserve = int(shutil.disk_usage(SHM).total * SHM_RESERVE)
    try:
        return kept(LocalSource(str(whole)), place, again=False, teller=Teller(bool(verbose)), reserve_bytes=reserve)
    except NoRoomError as error:
        _log.warning("%s isn't copied into shared memory, which is too small: %s", path, error)
        return path


@observed("fs.verify_copy", "a copy is compared with its source")
def verify_copy(src: str | os.PathLike[str], dest: str | os.PathLike[str]) -> bool:
    """Whether ``dest`` holds the same names as ``src`` with the same sizes, and the checksums that a store tells.

    Two local trees are compared by names and sizes alone. What differs is logged at INFO.

    Args:
        src: A local path or URL of the original.
        dest: A local path or URL of the copy.

    Raises:
        SourceMissingError: ``src`` isn't there; a missing ``dest`` is False.
        CopyError: One of them can't be read.
    """
    expected = source_of(as_location("src", src)).inventory()
    try:
        present = source_of(as_location("dest", dest)).inventory()
    except SourceMissingError:
        _log.info("%s isn't a copy of %s: it doesn't exist", dest, src)
        return False
    wrong = list(differences(expected, present))
    if wrong:
        _log.info("%s isn't a copy of %s: %s", dest, src, "; ".join(wrong[:5]))
    return not wrong


@observed("fs.copy", "a file or directory is copied from one place to another")
def copy(
    src: str | os.PathLike[str], dst: str | os.PathLike[str], *, dirs_exist_ok: bool = False, **kwargs: Any
) -> bool:
    """Copy a file or directory to ``dst``; both may be local or URLs.

    A file goes into ``dst`` if that is a directory or ends with a slash, else it becomes ``dst``. A directory becomes
    ``dst``. A local copy is made aside and renamed. In a store, readers may see a part of a directory until this
    returns, and one that fails is deleted again.

    Args:
        src: The file or directory to copy, a local path or a URL.
        dst: Where it goes, a local path or a URL.
        dirs_exist_ok: Whether a directory's files may be put into one that is there already.
        **kwargs: Options for the file systems of the URLs, such as ``endpoint_url``.

    Returns:
        True; what fails raises.

    Raises:
        SourceMissingError: ``src`` isn't there.
        TargetExistsError: ``dst`` is there and ``src`` is a directory.
        CopyError: As for :func:`copy_to_local`.
        NoRoomError: As for :func:`copy_to_local`.
        InputError: As for :func:`copy_to_local`.
        MissingDependencyError: As for :func:`copy_to_local`.
    """
    source_location, target_location = as_location("src", src), as_location("dst", dst)
    source = source_of(source_location, kwargs)
    if is_non_local(target_location):
        _copy_out(source, source_location, target_location, dirs_exist_ok, kwargs)
    else:
        _copy_in(source, source_location, target_location, dirs_exist_ok)
    return True


def _copy_out(source: Source, origin: str, location: str, dirs_exist_ok: bool, options: dict[str, Any]) -> None:
    found = source.inventory()
    target = RemoteSource(location, options)
    with telling(location):
        target.files.invalidate_cache()
        is_folder = _info_type(target) == "directory"
        if not found.is_folder and (is_folder or location.endswith("/")):
            target = RemoteSource(f"{location.rstrip('/')}/{_name(origin)}", options)
        elif found.is_folder and not dirs_exist_ok and _info_type(target) is not None:
            raise TargetExistsError(f"dst: {target.shown!r} already exists; dirs_exist_ok=True adds to it")
    upload(source, found, target)


def _info_type(target: RemoteSource) -> str | None:
    try:
        return str(target.files.info(target.root).get("type"))
    except FileNotFoundError as error:
        if is_missing(error):
            return None
        raise


def _copy_in(source: Source, origin: str, location: str, dirs_exist_ok: bool) -> None:
    found = source.inventory()
    target = Path(local_path(location))
    if not found.is_folder and (target.is_dir() or location.endswith("/")):
        target /= _name(origin)
    there = os.path.lexists(target)
    if found.is_folder and there and not (dirs_exist_ok and target.is_dir()):
        raise TargetExistsError(f"dst: {str(target)!r} already exists; dirs_exist_ok=True adds to a directory")
    if isinstance(source, LocalSource) and Path(os.path.realpath(target)).is_relative_to(
        os.path.realpath(source.shown)
    ):
        raise InputError(f"dst: {str(target)!r} is the source {source.shown!r} itself, or inside it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with aside(target.parent) as made:
            fresh = made / target.name
            download(source, found, fresh)
            if found.is_folder and there:
                merge(fresh, target, found)
            else:
                swap(fresh, target, made)
    except CopyError:
        raise
    except OSError as error:
        raise CopyError(f"dst: {str(target)!r} can't be written: {error}") from error


def exists(path: str | os.PathLike[str], **kwargs: Any) -> bool:
    """Whether there is a file or directory; ``kwargs`` are options for the file system of a URL.

    Args:
        path: A local path or a URL.
        **kwargs: Options for the file system of a URL, such as ``endpoint_url``.

    Raises:
        CopyError: The store doesn't answer or refuses, which is no answer.

    >>> exists("/"), exists("memory://nothing-here")
    (True, False)
    """
    location = as_location("path", path)
    if not is_non_local(location):
        return Path(local_path(location)).exists()
    target = RemoteSource(location, kwargs)
    with telling(location):
        target.files.invalidate_cache()
        return _info_type(target) is not None


def makedirs(name: str | os.PathLike[str], mode: int = 0o777, exist_ok: bool = False, **kwargs: Any) -> None:
    """Make a directory and those around it; in an object store, which has none, that may do nothing.

    Args:
        name: The directory, a local path or a URL.
        mode: Permissions of local directories, before the umask.
        exist_ok: Whether the directory may be there already.
        **kwargs: Options for the file system of a URL.

    Raises:
        FileExistsError: It is there, and ``exist_ok`` is false.
        CopyError: The store fails or refuses.
    """
    location = as_location("name", name)
    if not is_non_local(location):
        os.makedirs(local_path(location), mode, exist_ok)  # noqa: PTH103  (Path.mkdir raises others at broken links)
        return
    target = RemoteSource(location, kwargs)
    with telling(location):
        try:
            target.files.makedirs(target.root, exist_ok=exist_ok)
        except FileExistsError as error:
            raise TargetExistsError(f"name: {target.shown!r} already exists") from error


def local_mkdir_safe(path: str | os.PathLike[str]) -> str:
    """Make a local directory and those around it, from any number of processes at once; returns the path.

    Raises:
        FileExistsError: There is a file.
        InputError: It is a URL.
    """
    location = as_location("path", path)
    if is_non_local(location):
        raise InputError(f"path: got {without_logins(location)!r}, expected a local path; makedirs takes URLs")
    made = local_path(location)
    Path(made).mkdir(parents=True, exist_ok=True)
    return made


def md5_encode(path: str) -> str:
    """The MD5 of a path's text in hex, as names of cached copies use it.

    >>> md5_encode("abc")
    '900150983cd24fb0d6963f7d28e17f72'
    """
    return hashlib.md5(path.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()


def get_local_temp_path(hdfs_path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None) -> str:
    """Where the copy of a URL lies: ``{cache_dir}/{md5 of the URL}/{name}``. Makes nothing.

    A slash at the end changes nothing, and what follows ``?`` or ``#`` in an HTTP URL is no part of the name.

    Args:
        hdfs_path: The URL of the original.
        cache_dir: Local directory for copies. None is the system's directory for temporary files.

    Raises:
        InputError: The URL names nothing that a file could be called.

    >>> get_local_temp_path("s3://bucket/model/", "/cache")
    '/cache/8529b28ceb4f0cb8c8a63110ec6d731d/model'
    """
    location = as_location("hdfs_path", hdfs_path).rstrip("/")
    root = tempfile.gettempdir() if cache_dir is None else as_location("cache_dir", cache_dir)
    if is_non_local(root):
        raise InputError(f"cache_dir: got {without_logins(root)!r}, expected a local directory")
    return str(Path(local_path(root), md5_encode(location), _name(location)))


# ------------------------------------------------------------------------------------------------------------ helpers


def _is_hub_id(src: str) -> bool:
    """Whether a text can only mean a model on the hub.

    >>> [_is_hub_id(one) for one in ("Qwen/Qwen2.5-0.5B", "gpt2", "/models/gpt2", "./gpt2", "a/b/c", "x/train.parquet")]
    [True, True, False, False, False, False]
    """
    path = Path(src)
    if not _HUB_ID.fullmatch(src) or path.suffix.lower() in _DATA or path.exists():
        return False
    return "/" not in src or not path.parent.exists()


def _existing(location: str) -> str:
    path = local_path(location)
    if not Path(path).exists():
        LocalSource(path).inventory()  # raises, with what is wrong
    return path


def _name(location: str) -> str:
    """What a copy of a location is called.

    >>> _name("https://host/data/train.parquet?token=abc#part"), _name("zip://a/b.txt::s3://bucket/all.zip")
    ('train.parquet', 'b.txt')
    """
    inner = location.partition("::")[2] if location.partition("::")[0].endswith("cache") else location
    inner = inner.partition("::")[0]
    if inner.startswith(("http://", "https://")):
        inner = inner.partition("?")[0].partition("#")[0]
    return safe_name(inner.rstrip("/").rpartition("/")[2] or "root", location)


def _place(location: str, cache_dir: str | os.PathLike[str] | None, filelock: str) -> Place:
    target = Path(get_local_temp_path(location, cache_dir))
    if cache_dir is None:
        _own_folder(target.parent)
    return Place(target.parent, target.name, filelock)


def _own_folder(folder: Path) -> Path:
    """A folder that nobody else can put anything into, in a place where everybody may write."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise CopyError(f"cache_dir: {str(folder)!r} can't be created: {error}; give another cache_dir") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise CopyError(
            f"cache_dir: {str(folder)!r} isn't a directory of this user (its owner is user {status.st_uid}); "
            "give a cache_dir of your own"
        )
    return folder
