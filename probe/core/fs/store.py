"""What a local path or a URL holds: its files with sizes, versions and checksums, as one inventory.

Everything that ``probe.core.fs`` decides is decided by comparing inventories: whether a cached copy is still good,
whether a copy is whole, whether the source changed meanwhile. Stores differ in what they tell of a file; here that
becomes one shape.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from probe.core.fs.checksum import Checksum, checksum_of, version_of
from probe.errors import (
    CopyError,
    InputError,
    InputTypeError,
    MissingDependencyError,
    ProbeError,
    SourceMissingError,
)
from probe.guard import raised_as
from probe.redaction import without_logins

#: The package and the extra of ``probe-rl`` that bring a kind of URL.
DRIVERS: Final[Mapping[str, tuple[str, str]]] = {
    "s3": ("s3fs", "s3"),
    "s3a": ("s3fs", "s3"),
    "gs": ("gcsfs", "gcs"),
    "gcs": ("gcsfs", "gcs"),
    "abfs": ("adlfs", "azure"),
    "abfss": ("adlfs", "azure"),
    "az": ("adlfs", "azure"),
    "http": ("aiohttp", "http"),
    "https": ("aiohttp", "http"),
    "hf": ("huggingface_hub", "data"),
}

#: Stores whose folders are only the beginnings of keys.
_FLAT: Final = frozenset({"s3", "gs", "abfs", "oss", "cos", "obs"})
_URL: Final = re.compile(r"[a-zA-Z][\w.+-]*(::|://)")


#: Is told how many bytes of a file have come.
At: TypeAlias = Callable[[int], object]


class Entry(NamedTuple):
    """One file. ``path`` is its name in its store, ``size_bytes`` None where the store doesn't say."""

    path: str
    size_bytes: int | None
    version: str = ""
    checksum: Checksum | None = None


@dataclass
class Inventory:
    """The files below a path by their relative names with ``/``; a single file has the name ``""``."""

    shown: str
    is_folder: bool
    is_local: bool = False
    files: dict[str, Entry] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes that are known."""
        return sum(entry.size_bytes or 0 for entry in self.files.values())

    def fingerprint(self) -> str:
        """The same for the same names, sizes and versions."""
        rows = sorted((name, entry.size_bytes, entry.version) for name, entry in self.files.items())
        text = json.dumps([self.is_folder, sorted(self.folders), rows])
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def add(self, name: str, entry: Entry) -> None:
        """Add a file and the folders that its name implies."""
        self.files[name] = entry
        self.add_folder(posixpath.dirname(name))

    def add_folder(self, name: str) -> None:
        """Add a folder and those around it."""
        while name and name not in self.folders:
            self.folders.add(name)
            name = posixpath.dirname(name)


class Source(Protocol):
    """Something to copy from: :class:`LocalSource` or :class:`RemoteSource`."""

    shown: str
    workers: int  #: files that may be fetched at once

    def inventory(self) -> Inventory:
        """What is there now."""

    def fetch(self, entry: Entry, target: Path, stopped: Callable[[], bool], at: At | None = None) -> None:
        """Write a file to ``target``; give up where ``stopped()`` says so, and tell ``at`` how many bytes have come."""

    def trusts(self, entry: Entry) -> bool:
        """Whether a checksum that doesn't fit means damage; some stores show something else in its place."""


def is_non_local(path: str) -> bool:
    """Whether ``path`` is a URL of another store; ``file://`` is this machine.

    >>> is_non_local("s3://bucket/model"), is_non_local("file:///tmp/model"), is_non_local("/tmp/model")
    (True, False, False)
    """
    if not _URL.match(path) or "://" not in path:
        return False
    return not path.startswith(("file://", "local://"))


def as_location(argument: str, given: object) -> str:
    """``given`` as text, checked: a path, or a URL that names something.

    Raises:
        InputTypeError: It is neither a string nor a path object.
        InputError: It is empty, or a URL of nothing.
    """
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if not isinstance(given, str):
        raise InputTypeError(f"{argument}: got {given!r}, expected a path or a URL")
    named = given.rpartition("://")[2] if is_non_local(given) or given.startswith("file:") else given
    if not named or (is_non_local(given) and not named.strip("/")) or "\0" in given:
        raise InputError(f"{argument}: got {without_logins(given)!r}, expected a path or a URL of a file or directory")
    return given


def local_path(location: str) -> str:
    """The plain path of a local path or ``file://`` URL, without slashes at its end."""
    if location.startswith(("file://", "local://")):
        from fsspec.implementations.local import LocalFileSystem

        return str(LocalFileSystem._strip_protocol(location))
    return location.rstrip("/") or "/"


def source_of(location: str, options: Mapping[str, Any] | None = None) -> Source:
    """The source for a checked location."""
    if is_non_local(location):
        return RemoteSource(location, options or {})
    return LocalSource(local_path(location))


def safe_name(name: str, shown: str) -> str:
    """``name`` if it stays inside the folder it is joined to.

    Object stores allow keys such as ``a/../../b`` and ``a//b``, which on a disk would be another place.

    Raises:
        InputError: It doesn't.
    """
    if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
        raise InputError(f"src: {shown!r} holds {name!r}, which can't be the name of a local file")
    return name


# ---------------------------------------------------------------------------------------------------- this machine


class LocalSource:
    """A file or directory on this machine. Symbolic links are followed, as Hugging Face's cache is made of them."""

    workers = 1

    def __init__(self, path: str) -> None:
        self.shown = path

    def inventory(self) -> Inventory:
        """What is there now; versions are the times of change in ns.

        Raises:
            SourceMissingError: There is nothing.
            InputError: There is a loop of links, or something that is no file.
            CopyError: A folder can't be read.
        """
        try:
            status = Path(self.shown).stat()
            found = Inventory(self.shown, stat.S_ISDIR(status.st_mode), is_local=True)
            if found.is_folder:
                self._walk(found, "", {(status.st_dev, status.st_ino)})
            else:
                found.add("", self._entry(self.shown, status))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _missing(self.shown, error) from error
        except OSError as error:
            raise CopyError(f"src: {self.shown!r} can't be read: {error}") from error
        return found

    def _walk(self, found: Inventory, folder: str, around: set[tuple[int, int]]) -> None:
        with os.scandir(Path(self.shown, folder)) as children:
            names = sorted(child.name for child in children)
        for name in names:
            relative = f"{folder}/{name}" if folder else name
            path = Path(self.shown, relative)
            status = path.stat()
            if not stat.S_ISDIR(status.st_mode):
                found.add(relative, self._entry(str(path), status))
                continue
            here = (status.st_dev, status.st_ino)
            if here in around:
                raise InputError(f"src: {str(path)!r} is a link to a directory that contains it")
            found.add_folder(relative)
            self._walk(found, relative, around | {here})

    @staticmethod
    def _entry(path: str, status: os.stat_result) -> Entry:
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"src: {path!r} is neither a file nor a directory, so it can't be copied")
        return Entry(path, status.st_size, str(status.st_mtime_ns))

    def fetch(self, entry: Entry, target: Path, stopped: Callable[[], bool], at: At | None = None) -> None:
        """Copy a file with its permission bits."""
        import shutil

        del stopped, at  # a local copy is one call of the operating system
        shutil.copy(entry.path, target)

    def trusts(self, entry: Entry) -> bool:
        """Local files have no checksums that could be anything else."""
        del entry
        return True


# ------------------------------------------------------------------------------------------------------ other stores


class RemoteSource:
    """A file or directory behind an ``fsspec`` URL.

    Args:
        url: Any URL that ``fsspec`` knows.
        options: Settings that are given to the file system, over what ``FSSPEC_…`` variables and configuration files
            say.

    Raises:
        MissingDependencyError: The package for this kind of URL isn't installed.
        InputError: There is no such kind of URL.
        CopyError: The file system can't be set up.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.shown = without_logins(url)
        self.files, path = open_store(url, options)
        self.root = path.rstrip("/")
        # Clients that aren't asynchronous (hdfs, ftp, …) don't say whether threads may share them.
        self.workers = 8 if getattr(self.files, "async_impl", False) else 1
        self._is_http = "http" in _protocols(self.files)

    def inventory(self) -> Inventory:
        """What the store lists now; nothing is taken from a listing made earlier.

        Raises:
            SourceMissingError: Nothing is there.
            InputError: A name that can't be a local file's.
            CopyError: The store doesn't answer, or refuses.
        """
        with telling(self.shown):
            self.files.invalidate_cache()
            if self.shown.endswith("/") and self.files.isdir(f"{self.root}/"):
                return self._folder()
            about = self.files.info(self.root)
            if about.get("type") == "directory":
                return self._folder()
            found = Inventory(self.shown, is_folder=False)
            found.add("", self._entry(about))
            return found

    def _folder(self) -> Inventory:
        found = Inventory(self.shown, is_folder=True)
        root = f"{self.root}/" if self._is_http else self.root
        for path, about in self._listed(root):
            name = self._relative(path)
            is_marker = not name or name.endswith("/")  # how consoles of object stores make empty folders
            if about.get("type") == "directory" or (is_marker and not about.get("size")):
                if name.strip("/"):
                    found.add_folder(safe_name(name.rstrip("/"), self.shown))
            elif not (self._is_http and name.startswith("?")):  # a page of links also links to its other orders
                found.add(safe_name(name, self.shown), self._entry(self._sized(about)))
        return self._checked(found)

    def _listed(self, root: str) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from self.files.find(root, withdirs=True, detail=True).items()
        if not _FLAT.isdisjoint(_protocols(self.files)):
            # There a key may be a file and the beginning of others; find(withdirs=True) then shows the folder alone.
            yield from self.files.find(root, detail=True).items()

    def _relative(self, path: str) -> str:
        if path.rstrip("/") == self.root:
            return ""
        if not path.startswith(f"{self.root}/"):
            raise InputError(f"src: {self.shown!r} lists {path!r}, which isn't below it")
        return path[len(self.root) + 1 :]

    def _checked(self, found: Inventory) -> Inventory:
        both = found.folders & found.files.keys()
        if both:
            raise InputError(
                f"src: in {self.shown!r} {min(both)!r} is both a file and a directory, which a disk can't hold"
            )
        if not found.files and not found.folders and not self.files.exists(self.root):
            raise SourceMissingError(f"src: there is nothing at {self.shown!r}")
        return found

    def _sized(self, about: dict[str, Any]) -> dict[str, Any]:
        return {**about, **self.files.info(about["name"])} if about.get("size") is None else about

    def _entry(self, about: Mapping[str, Any]) -> Entry:
        checksum = checksum_of(_protocols(self.files), about)
        return Entry(str(about["name"]), about.get("size"), version_of(about), checksum)

    def fetch(self, entry: Entry, target: Path, stopped: Callable[[], bool], at: At | None = None) -> None:
        """Download one file.

        Raises:
            CopyError: What the store's client raised is its cause.
        """
        with telling(self.shown, entry.path):
            self.files.get_file(entry.path, str(target), callback=_watching(stopped, at))

    def trusts(self, entry: Entry) -> bool:
        """False for an S3 object whose ETag isn't its MD5, because it is encrypted with a key of KMS or the customer's.

        https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
        """
        if not hasattr(self.files, "call_s3"):
            return True
        with telling(self.shown, entry.path):
            bucket, key, _ = self.files.split_path(entry.path)
            head = self.files.call_s3("head_object", Bucket=bucket, Key=key)
        kms = str(head.get("ServerSideEncryption") or "").startswith("aws:kms")
        return not (kms or head.get("SSECustomerAlgorithm"))


def _watching(stopped: Callable[[], bool], at: At | None) -> Any:
    from fsspec.callbacks import Callback

    def watch(_size: int | None, value: int, **_: Any) -> None:
        """Clients report each chunk; that's the place to end a transfer that nobody waits for any more."""
        if stopped():
            raise InterruptedError("given up, since another file failed")
        if at is not None:
            at(value)

    return Callback(hooks={"watch": watch})


def open_store(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The ``fsspec`` file system of a URL, and the path in it. See :class:`RemoteSource` for what it raises."""
    import fsspec

    with raised_as(lambda error: _unopened(without_logins(url), error), but=()):  # each client has its own errors
        files, path = fsspec.core.url_to_fs(url, **options)
        return files, str(path)


def _unopened(url: str, error: Exception) -> ProbeError:
    why = without_logins(str(error))
    if isinstance(error, ImportError):
        protocol = url.partition("://")[0].rpartition("::")[2].lower()
        if protocol in DRIVERS:
            return MissingDependencyError.of(f"copying from {protocol}://", *DRIVERS[protocol])
        return MissingDependencyError(f"src: {url!r} needs a package that isn't installed: {why}")
    if isinstance(error, ValueError):
        return InputError(f"src: got {url!r}, expected a path or a URL that fsspec knows: {why}")
    return CopyError(f"src: {url!r} can't be opened: {type(error).__name__}: {why}")


def telling(shown: str, path: str | None = None) -> raised_as:
    """A block in which what a store's client raises, most of it no OSError, becomes errors that name the URL.

    Raises:
        SourceMissingError: It said that there is nothing.
        CopyError: It said anything else.
    """

    shown, path = without_logins(shown), path and without_logins(path)

    def told(error: Exception) -> CopyError:
        if not isinstance(error, FileNotFoundError):
            return _failed(shown, error, path)
        return _missing(shown, error, path) if is_missing(error) else _failed(shown, error.__cause__ or error, path)

    return raised_as(told)


def is_missing(error: FileNotFoundError) -> bool:
    """Whether the store said so itself: the HTTP client says "not found" of servers that are down or refuse, too."""
    cause = error.__cause__
    status = getattr(cause, "status", None)
    if isinstance(status, int):
        return status in (404, 410)
    return not isinstance(cause, OSError) or isinstance(cause, FileNotFoundError)


def _failed(shown: str, error: BaseException, path: str | None) -> CopyError:
    which = f"{shown!r}" if path is None else f"{path!r} of {shown!r}"
    return CopyError(f"{which} can't be reached, or refuses: {type(error).__name__}: {without_logins(str(error))}")


def _missing(shown: str, error: OSError, path: str | None = None) -> SourceMissingError:
    at = getattr(error, "filename", None)
    at = without_logins(at) if isinstance(at, str) else None
    inside = path or (at if at != shown else None)
    if inside is not None and inside.rstrip("/") not in (shown, shown.rpartition("://")[2].rstrip("/")):
        return SourceMissingError(f"src: {inside!r} of {shown!r} isn't there (any more)")
    return SourceMissingError(f"src: there is nothing at {shown!r}{_hint(shown)}")


def _hint(shown: str) -> str:
    if re.match(r"[a-z0-9+]+:/[^/]", shown):
        return "; give a URL as a string, pathlib shortens its '//'"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", shown) and not Path(shown).parent.exists():
        return (
            "; a model of the Hugging Face hub is copied as 'hf://"
            + shown
            + "', or given to from_pretrained by its name"
        )
    return ""


def _protocols(files: Any) -> tuple[str, ...]:
    protocol = files.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
