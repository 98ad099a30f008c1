"""A checkpoint to and from a store behind any ``fsspec`` URL.

The manifest goes last, so that half a copy never looks complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.core.checkpoint.files import MANIFEST, Manifest, begin, check_listed, problems, put_in_place
from probe.errors import InputError
from probe.redaction import without_logins


def _store(url: str) -> tuple[Any, str]:
    import fsspec

    if "://" in url:
        store, root = fsspec.core.url_to_fs(url)
    else:  # a path, whatever is in it: fsspec would take "a::b" for a chain of two
        store = fsspec.filesystem("file")
        root = store._strip_protocol(url)
    return store, root.rstrip("/")


def upload(directory: Path, url: str) -> None:
    """Copy a complete checkpoint to ``url``, replacing one that is there.

    Raises:
        InputError: A copy has another size.
        OSError: A file couldn't be copied; the store's client may raise an error of its own instead.
    """
    store, root = _store(url)
    manifest = Manifest.read(directory)
    if store.exists(f"{root}/{MANIFEST}"):
        store.rm_file(f"{root}/{MANIFEST}")
    for name in [*sorted(manifest.files), MANIFEST]:
        remote = f"{root}/{name}"
        store.makedirs(remote.rpartition("/")[0], exist_ok=True)
        store.put_file(str(directory / name), remote)
        expected = (directory / name).stat().st_size
        if (size := store.size(remote)) is not None and size != expected:
            shown = without_logins(f"{url}/{name}")
            raise InputError(f"hdfs_path: {shown} has {size} bytes after the copy, expected {expected}")


def download(url: str, directory: Path) -> None:
    """Copy the checkpoint at ``url`` to ``directory``, which it replaces when all of it is there.

    Raises:
        InputError: What has come isn't what its manifest lists.
        SerializationError: There is no manifest of probe's.
        OSError: A file couldn't be copied; the store's client may raise an error of its own instead.
    """
    store, root = _store(url)
    staging = begin(directory)
    store.get_file(f"{root}/{MANIFEST}", str(staging / MANIFEST))
    manifest = Manifest.read(staging)
    for name in manifest.files:
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        store.get_file(f"{root}/{name}", str(staging / name))
    check_listed(staging, manifest, problems(staging, manifest.files, checksums=False))
    put_in_place(staging, directory)
