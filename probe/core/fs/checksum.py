"""What a store tells of a file's content, in its own words, as one version and one checksum."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

#: What stores call the version of a file's content, the most telling first. Times come last: they are coarse.
_VERSION_KEYS: Final = (
    "generation",
    "blob_id",
    "ETag",
    "etag",
    "e_tag",
    "md5Hash",
    "mtime",
    "LastModified",
    "last_modified",
    "Last-Modified",
    "updated",
    "modified",
    "created",
)
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_READ_BYTES: Final = 1 << 20


class Checksum(NamedTuple):
    """What a file's bytes hash to: ``algorithm`` as :mod:`hashlib` names it, ``digest`` in lower-case hex."""

    algorithm: str
    digest: str


def version_of(about: Mapping[str, Any]) -> str:
    """What changes when a file's content does, from what its store tells: an ETag, a generation or a time.

    >>> version_of({"size": 3, "ETag": '"900150983cd24fb0d6963f7d28e17f72"', "LastModified": "today"})
    'ETag=900150983cd24fb0d6963f7d28e17f72'
    >>> version_of({"size": 3})
    ''
    """
    for key in _VERSION_KEYS:
        if about.get(key) is not None:
            return f"{key}={about[key]}".replace('"', "")
    return ""


def checksum_of(protocols: tuple[str, ...], about: Mapping[str, Any]) -> Checksum | None:
    """The checksum of a file's bytes, where its store tells one.

    S3's ETag is the MD5 of an object that was written in one piece; of one written in parts it holds a ``-``, and in a
    directory bucket (``…--x-s3``) it's anything. Google's ``md5Hash`` and HTTP's ``Content-MD5`` (RFC 1864) are
    base64, Azure's are bytes, and the Hugging Face hub has the SHA-256 of large files.

    >>> checksum_of(("s3",), {"name": "b/k", "ETag": '"900150983cd24fb0d6963f7d28e17f72"'})
    Checksum(algorithm='md5', digest='900150983cd24fb0d6963f7d28e17f72')
    >>> checksum_of(("s3",), {"name": "b/k", "ETag": '"900150983cd24fb0d6963f7d28e17f72-2"'}) is None
    True
    >>> checksum_of(("gs",), {"md5Hash": "kAFQmDzST7DWlj99KOF/cg=="}).digest
    '900150983cd24fb0d6963f7d28e17f72'
    """
    if "s3" in protocols:
        return _etag_md5(about)
    large = about.get("lfs")
    if large:
        sha256 = large.get("sha256") if isinstance(large, Mapping) else getattr(large, "sha256", None)
        return Checksum("sha256", str(sha256).lower()) if sha256 else None
    for told in (about.get("md5Hash"), about.get("Content-MD5"), _azure_md5(about)):
        digest = _hex(told)
        if digest is not None:
            return Checksum("md5", digest)
    return None


def _etag_md5(about: Mapping[str, Any]) -> Checksum | None:
    etag = str(about.get("ETag") or "").strip('"').lower()
    in_directory_bucket = str(about.get("name") or "").partition("/")[0].endswith("--x-s3")
    return Checksum("md5", etag) if _MD5.fullmatch(etag) and not in_directory_bucket else None


def _azure_md5(about: Mapping[str, Any]) -> object:
    settings = about.get("content_settings")
    return settings.get("content_md5") if isinstance(settings, Mapping) else None


def _hex(told: object) -> str | None:
    if isinstance(told, str):
        try:
            told = base64.b64decode(told, validate=True)
        except ValueError:
            return None
    return bytes(told).hex() if isinstance(told, bytes | bytearray) and len(told) == 16 else None


def digest_of(path: str | os.PathLike[str], algorithm: str) -> str:
    """The hex digest of a local file's bytes."""
    hasher = hashlib.new(algorithm, usedforsecurity=False)
    with Path(path).open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()
