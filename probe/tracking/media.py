"""What is logged beside numbers: histograms, tables, figures, text, images and spans, each frozen when it is made.

Each kind is plain data that can be written as JSON and read again, so that it waits in the journal like a number does.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np

from probe.errors import InputError, InputTypeError

Cell = bool | int | float | str | None


@dataclass(frozen=True)
class Medium:
    """One thing that isn't a number. ``kind`` names what it is; a backend lists the kinds that it ``shows``."""

    kind: ClassVar[str] = ""

    def plain(self) -> dict[str, Any]:
        """As JSON values; :func:`medium_of` reads it."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Histogram(Medium):
    """How often values fall between neighbouring edges; :meth:`from_values` makes one.

    Attributes:
        edges: The n + 1 increasing limits of the bins.
        counts: The n counts; a value on an edge counts above it, on the last edge below.
    """

    kind: ClassVar[str] = "histogram"
    edges: Sequence[float]
    counts: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) + 1 or not self.counts:
            raise InputError(
                f"edges: got {len(self.edges)} for {len(self.counts)} counts, expected at least one count, "
                "and one edge more than counts"
            )

    @classmethod
    def from_values(cls, values: Any, bins: int = 30) -> Self:
        """A histogram of the finite ones among ``values``.

        Args:
            values: A sequence, an array, or a tensor on the CPU, of any shape.
            bins: How many bins it has.

        Raises:
            InputTypeError: It is a tensor on a device, which would have to be waited for.
            InputError: None of the values is finite.

        >>> Histogram.from_values([0, 1, 1, 4], bins=2)
        Histogram(edges=(0.0, 2.0, 4.0), counts=(3, 1))
        """
        device = getattr(getattr(values, "device", None), "type", "cpu")
        if device != "cpu":
            raise InputTypeError(f"values: got a tensor on {device}, expected one on the CPU; copy it when it is ready")
        if "torch" in sys.modules and isinstance(values, sys.modules["torch"].Tensor):
            values = values.detach().double().numpy()
        array = np.asarray(values, dtype=np.float64).reshape(-1)
        array = array[np.isfinite(array)]
        if array.size == 0:
            raise InputError("values: got no finite number, expected at least one")
        counts, edges = np.histogram(array, bins=bins)
        return cls(tuple(edges.tolist()), tuple(counts.tolist()))

    def figure(self, title: str) -> Figure:
        """The histogram as bars, for backends that show figures and no histograms; made without plotly."""
        middles = [(low + high) / 2 for low, high in itertools.pairwise(self.edges)]
        widths = [high - low for low, high in itertools.pairwise(self.edges)]
        bars = {"type": "bar", "x": middles, "y": list(self.counts), "width": widths}
        layout = {"title": {"text": title}, "bargap": 0, "yaxis": {"title": {"text": "count"}}}
        return Figure(json.dumps({"data": [bars], "layout": layout}))


@dataclass(frozen=True)
class Table(Medium):
    """Rows of cells under named columns; :meth:`from_frame` makes one of a pandas frame."""

    kind: ClassVar[str] = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        bad = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if bad is not None:
            raise InputError(f"rows: got a row of {len(bad)} cells, expected {len(self.columns)}: {bad!r:.80}")
        object.__setattr__(self, "columns", tuple(map(str, self.columns)))
        object.__setattr__(self, "rows", tuple(tuple(map(_cell, row)) for row in self.rows))

    @classmethod
    def from_frame(cls, frame: Any) -> Self:
        """The cells of a pandas frame as a table."""
        return cls(list(frame.columns), frame.to_numpy(dtype=object).tolist())

    def markdown(self) -> str:
        """The table as Markdown.

        >>> print(Table(["a", "b"], [[1, "x|y"]]).markdown())
        | a | b |
        |---|---|
        | 1 | x\\|y |
        """
        lines = [self.columns, *self.rows]
        texts = ["| " + " | ".join(markdown_cell(cell) for cell in line) + " |" for line in lines]
        return "\n".join([texts[0], "|" + "---|" * len(self.columns), *texts[1:]])


@dataclass(frozen=True)
class Text(Medium):
    """Words, as they are. A plain ``str`` given to ``log`` becomes one."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Figure(Medium):
    """A plotly figure, as its JSON. A figure given to ``log`` becomes one."""

    kind: ClassVar[str] = "figure"
    spec: str


@dataclass(frozen=True)
class Image(Medium):
    """A picture as PNG; :meth:`from_picture` makes one."""

    kind: ClassVar[str] = "image"
    png: bytes
    width: int
    height: int

    def plain(self) -> dict[str, Any]:
        """The picture as JSON values: its bytes in base64."""
        return {**super().plain(), "png": base64.b64encode(self.png).decode()}

    @classmethod
    def from_picture(cls, picture: Any) -> Self:
        """A picture of a PNG's path or bytes, of a Pillow image, or of an array or CPU tensor.

        An array is (height, width), (height, width, channels) or (channels, height, width), with 1, 3 or 4
        channels, of uint8, or of floats from 0 to 1.

        Raises:
            InputError: It is no PNG, or an array of another shape or dtype.
        """
        if isinstance(picture, str | Path):
            picture = Path(picture).read_bytes()
        if isinstance(picture, bytes):
            if picture[:8] != _PNG or len(picture) < 24:
                raise InputError(f"picture: got bytes that begin with {picture[:8]!r}, expected a PNG")
            width, height = struct.unpack(">II", picture[16:24])
            return cls(picture, width, height)
        if type(picture).__module__.startswith("PIL."):
            picture = picture if picture.mode in {"L", "RGB", "RGBA"} else picture.convert("RGBA")
        pixels = _pixels(np.asarray(picture))
        return cls(_png(pixels), pixels.shape[1], pixels.shape[0])


@dataclass(frozen=True)
class Span(Medium):
    """Something that took time, such as a phase of a step. Times are nanoseconds since the epoch."""

    kind: ClassVar[str] = "span"
    begin_ns: int
    end_ns: int
    attributes: Mapping[str, Cell] = field(default_factory=dict)
    error: str = ""  #: what it failed with; "" where it didn't
    #: Only among :class:`Spans`: what it's called, its number, and that of the span around it (None: the step's).
    name: str = ""
    number: int = 0
    parent: int | None = None


@dataclass(frozen=True)
class Spans(Medium):
    """All the spans of a step, nested by their numbers. See ``probe.tracking.spans`` for those of a session."""

    kind: ClassVar[str] = "spans"
    spans: Sequence[Span]

    def __post_init__(self) -> None:
        read = (Span(**one) if isinstance(one, Mapping) else one for one in self.spans)
        object.__setattr__(self, "spans", tuple(read))


_KINDS: Final[dict[str, type[Medium]]] = {one.kind: one for one in (Histogram, Table, Text, Figure, Image, Span, Spans)}
KINDS: Final = frozenset(_KINDS)


def medium_of(plain: Mapping[str, Any]) -> Medium:
    """What :meth:`Medium.plain` wrote.

    >>> medium_of(Text("good").plain())
    Text(text='good')
    """
    fields = dict(plain)
    kind = _KINDS[fields.pop("kind")]
    if kind is Image:
        fields["png"] = base64.b64decode(fields["png"])
    made = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return kind(**made)


def as_medium(value: Any) -> Medium | None:
    """``value`` where it is one of the kinds, or something that becomes one by itself; else None."""
    if isinstance(value, Medium):
        return value
    if isinstance(value, str):
        return Text(value)
    module = type(value).__module__.partition(".")[0]
    if hasattr(value, "to_plotly_json") and hasattr(value, "to_json"):
        return Figure(value.to_json())
    if module == "PIL" and hasattr(value, "mode"):
        return Image.from_picture(value)
    if module == "pandas" and hasattr(value, "columns"):
        return Table.from_frame(value)
    return None


def markdown_cell(value: Any) -> str:
    """A cell's text where ``|`` and line ends would break the table."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def page(figure: Figure, title: str) -> str:
    """A whole HTML page of a plotly figure, which needs nothing from a network."""
    spec = figure.spec.replace("</", "<\\/")  # a label may hold "</script>"
    title = title.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<!doctype html><meta charset="utf-8"><title>{title}</title><body style="margin:0"><div id="figure"></div>'
        f"<script>{plotly_script()}</script><script>const figure = {spec};"
        'Plotly.newPlot("figure", figure.data, figure.layout, {responsive: true});</script>'
    )


def plotly_script() -> str:
    """plotly.js, as text."""
    from importlib import resources

    # The file, without importing plotly: a training worker never loads that.
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


def _cell(value: Any) -> Cell:
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        value = value.item()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


_PNG: Final = b"\x89PNG\r\n\x1a\n"
_COLOURS: Final = {1: 0, 3: 2, 4: 6}


def _pixels(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(height, width, channels) of uint8."""
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim == 3 and array.shape[2] not in _COLOURS and array.shape[0] in _COLOURS:
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in _COLOURS or 0 in array.shape:
        raise InputError(f"picture: got an array of shape {array.shape}, expected height, width and 1, 3 or 4 channels")
    if array.dtype.kind == "f":
        array = (np.nan_to_num(np.clip(array, 0, 1)) * 255).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise InputError(f"picture: got an array of {array.dtype}, expected uint8, or floats from 0 to 1")
    return array


def _png(pixels: np.ndarray[Any, Any]) -> bytes:
    """PNG (W3C, third edition): a header, the lines without filter, an end."""
    height, width, channels = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    return _PNG + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines, 6)) + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


NUMBER_TEXTS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def strict(value: Any) -> Any:
    """JSON values in which what JSON has no number for is a string: ``"NaN"``, ``"Infinity"``, ``"-Infinity"``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else NUMBER_TEXTS[str(value)]
    if isinstance(value, Mapping):
        return {key: strict(one) for key, one in value.items()}
    return [strict(one) for one in value] if isinstance(value, list | tuple) else value


def strict_json(value: Any) -> str:
    """One line of JSON that every strict reader takes."""
    return json.dumps(strict(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
