"""Images and videos of a dataset's row, in the forms in which files hold them, as what a processor takes."""

from __future__ import annotations

import base64
import binascii
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe.errors import InputError, InputTypeError, MissingDependencyError

if TYPE_CHECKING:
    from PIL.Image import Image

#: Keys of the dict forms; the first one that isn't None is the picture.
_IMAGE_KEYS: Final = ("bytes", "image", "path")
_FORMS: Final = "a PIL image, bytes, a path or URL, {'bytes': …}, {'path': …}, {'image': …} or an array (H, W, 3) uint8"


def load_image(value: Any, cache_dir: str | None = None) -> Image:
    """One picture as an RGB PIL image, decoded at once so that no file stays open.

    Args:
        value: A PIL image; the bytes of a file; a path, an ``fsspec`` URL or a ``data:`` URL; a dict with one of these
            under ``bytes``, ``image`` or ``path``; an array or nested lists (H, W, 3), uint8.
        cache_dir: Where a remote file is copied to.

    Raises:
        InputTypeError: Another form.
        InputError: It can't be decoded, or a dict asks for more than decoding (resizing is the processor's work).
        MissingDependencyError: Pillow isn't installed.

    >>> load_image(np.zeros((2, 3, 3), dtype=np.uint8)).size
    (3, 2)
    """
    pillow = _pillow()
    if isinstance(value, Mapping):
        return load_image(_only(value, _IMAGE_KEYS, "image"), cache_dir)
    if isinstance(value, pillow.Image):
        image = value
    elif isinstance(value, np.ndarray | list):
        image = pillow.fromarray(_pixels(value, 3, "(H, W, 3)"))
    elif isinstance(value, bytes | bytearray | memoryview):
        image = _decoded(bytes(value))
    elif isinstance(value, str | os.PathLike):
        image = _decoded(_content(os.fspath(value), cache_dir))
    else:
        raise InputTypeError(f"image: got {type(value).__name__}, expected {_FORMS}")
    found: Image = image if image.mode == "RGB" else image.convert("RGB")
    return found


def load_video(value: Any, cache_dir: str | None = None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One video as an array (T, H, W, 3), uint8.

    Args:
        value: A list of frames, each in a form of :func:`load_image`, or an array (T, H, W, 3); or a dict with one of
            these under ``video`` or ``frames``. A video file isn't decoded here: that takes a decoder, and a choice of
            frames that belongs to whoever made the dataset.
        cache_dir: Where remote frames are copied to.

    Raises:
        InputTypeError: Another form.
        InputError: No frames, or frames of different sizes.

    >>> load_video([np.zeros((2, 3, 3), dtype=np.uint8)] * 4).shape
    (4, 2, 3, 3)
    """
    if isinstance(value, Mapping):
        return load_video(_only(value, ("video", "frames"), "video"), cache_dir)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return _pixels(value, 4, "(T, H, W, 3)")
    if not isinstance(value, list | tuple | np.ndarray):
        raise InputTypeError(
            f"video: got {type(value).__name__}, expected a list of frames or an array (T, H, W, 3) uint8; "
            "a video file must be decoded into frames beforehand"
        )
    frames = [np.asarray(load_image(frame, cache_dir)) for frame in value]
    if not frames:
        raise InputError("video: got no frames, expected at least one")
    if len({frame.shape for frame in frames}) > 1:
        sizes = sorted({f"{frame.shape[1]}x{frame.shape[0]}" for frame in frames})
        raise InputError(f"video: got frames of sizes {', '.join(sizes)}, expected one size")
    return np.stack(frames)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError.of("a dataset with images", "pillow", "data") from error
    return Image


def _only(value: Mapping[str, Any], keys: tuple[str, ...], what: str) -> Any:
    """What lies under one of ``keys``; a table fills the keys that a row doesn't have with None."""
    given = {key: one for key, one in value.items() if one is not None and key != "type"}
    # Hugging Face keeps the name of the file beside its bytes.
    wanted = next((key for key in keys if key in given), None)
    if wanted is None or set(given) - {wanted, "path"}:
        raise InputError(f"{what}: got a dict with {sorted(given)}, expected one of {', '.join(keys)}")
    return given[wanted]


def _pixels(value: Any, dims: int, shape: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    try:
        pixels = np.asarray(value)
    except ValueError as error:
        raise InputError(f"pixels: got ragged lists, expected an array {shape}") from error
    whole = pixels.dtype.kind in "iu" and (not pixels.size or (pixels.min() >= 0 and pixels.max() <= 255))
    if pixels.ndim != dims or pixels.shape[-1] != 3 or not pixels.size or not whole:
        raise InputError(
            f"pixels: got {pixels.dtype} {pixels.shape}, expected an array {shape} of whole numbers 0 to 255"
        )
    return pixels.astype(np.uint8)


def _content(name: str, cache_dir: str | None) -> bytes:
    if name.startswith("data:"):
        head, _, text = name.partition(",")
        if not head.endswith(";base64"):
            raise InputError(f"image: got a data URL {head!r}, expected one in base64")
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise InputError(f"image: the data URL can't be read: {error}") from error
    from probe.core.fs import copy_to_local, is_non_local

    place: str | Path = name.removeprefix("file://")
    if not is_non_local(name):
        place = Path(place)  # a text might mean a model on the hub
    return Path(copy_to_local(place, cache_dir=cache_dir)).read_bytes()


def _decoded(content: bytes) -> Image:
    try:
        image: Image = _pillow().open(io.BytesIO(content))
        image.load()
    except OSError as error:  # PIL's own error for what isn't an image, or is cut short, is one
        raise InputError(f"image: {len(content)} bytes can't be decoded: {error}") from error
    return image
