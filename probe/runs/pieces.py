"""Pieces of an open JSONL file, as :mod:`probe.runs.sync` copies them to a store that can't append.

::

    rank-00000.jsonl.0-52311.gz        the lines of bytes 0 to 52311, compressed
    rank-00000.jsonl.52311-90112.gz    those that came until the next look

Each byte of the file is in the piece that reaches farthest among those that begin at or before it, so that a larger
piece takes the place of several in the moment in which it appears. A file whose first piece is gone doesn't count: it
has become Parquet, and deleting that piece was the commit.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from probe.runs.layout import Segment, segment_of

_PIECE: Final = re.compile(r"(?P<file>.+\.jsonl)\.(?P<begin>\d+)-(?P<end>\d+)\.gz")

#: Level of compression: the lowest is five times as fast as the default, and a tenth of the lines' size all the same.
_LEVEL: Final = 1


class Piece(NamedTuple):
    """The complete lines of bytes ``begin`` to ``end`` of a segment's JSONL file."""

    segment: Segment
    begin: int
    end: int

    @property
    def name(self) -> str:
        """File name.

        >>> Piece(Segment.of_rank(0), 0, 52311).name
        'rank-00000.jsonl.0-52311.gz'
        """
        return f"{self.segment.name}.{self.begin}-{self.end}.gz"


def piece_of(name: str) -> Piece | None:
    """The piece whose file is called ``name``; None for any other file.

    >>> piece_of("process-driver.1.jsonl.7-12.gz"), piece_of("rank-00000.jsonl"), piece_of("metrics.jsonl.0-1.gz")
    (Piece(segment=Segment(place='driver', number=1), begin=7, end=12), None, None)
    """
    found = _PIECE.fullmatch(name)
    segment = segment_of(found["file"]) if found else None
    if found is None or segment is None or int(found["begin"]) >= int(found["end"]):
        return None
    return Piece(segment, int(found["begin"]), int(found["end"]))


def cover(pieces: Iterable[Piece]) -> list[Piece]:
    """Those of one segment's pieces that count, by place; none where the first bytes are in none.

    >>> one = Segment.of_rank(0)
    >>> [piece[1:] for piece in cover([Piece(one, 5, 9), Piece(one, 0, 5), Piece(one, 0, 7), Piece(one, 11, 12)])]
    [(0, 7), (5, 9)]
    """
    known = sorted(pieces, key=lambda one: (one.begin, one.end))
    found: list[Piece] = []
    while True:
        reached = found[-1].end if found else 0
        best = max((one for one in known if one.begin <= reached < one.end), key=lambda one: one.end, default=None)
        if best is None:
            return found
        found.append(best)


def pack(lines: bytes) -> bytes:
    """The content of a piece's file; of the same lines always the same."""
    return gzip.compress(lines, _LEVEL, mtime=0)


def unpack(content: bytes, piece: Piece) -> bytes:
    """The lines in a piece's file.

    Raises:
        OSError: It is damaged.
    """
    try:
        found = gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise OSError(f"{piece.name} is damaged: {error}") from error
    if len(found) != piece.end - piece.begin:
        raise OSError(f"{piece.name} is damaged: it has {len(found)} bytes, expected {piece.end - piece.begin}")
    return found
