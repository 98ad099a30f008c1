"""What travels to the page: frames, one after the other, in one long answer.

A frame is the length of its head (4 bytes, little-endian), the head (JSON), and the bytes that ``sizes`` in the head
tells of. Its ``kind`` is one of these:

=========== ========================================================================================================
``hello``   the first one: ``config`` of the panel, ``command`` that shows the run again; ``head`` and one buffer are a
            snapshot as a notebook gets it; ``head`` is null where none is needed, or while there is nothing
``message`` ``head`` and buffers of a message of the panel, see :mod:`probe.live.protocol`
``beat``    nothing, so that either end notices when the other one has gone
``end``     the last one: the server ends
=========== ========================================================================================================
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Final

_LENGTH: Final = struct.Struct("<I")


def frame(kind: str, buffers: Sequence[bytes] = (), **told: Any) -> bytes:
    """One frame.

    >>> made = frame("message", [b"abc"], head={"seq": 1})
    >>> made[4:]
    b'{"kind":"message","head":{"seq":1},"sizes":[3]}abc'
    >>> int.from_bytes(made[:4], "little")
    47
    """
    # Escaped to ASCII, so that a lone surrogate of a broken file name can't make the head unreadable.
    head = json.dumps({"kind": kind, **told, "sizes": [len(one) for one in buffers]}, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *buffers])


BEAT: Final = frame("beat")
END: Final = frame("end")
