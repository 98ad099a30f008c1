"""Lists of numbers that wait for the writer's thread, as bytes: waiting lists start collections of garbage, and bytes
don't.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


def packed(values: Any) -> Any:
    """``values`` as bytes; as they are where MessagePack can't tell them, such as NumPy's numbers.

    Args:
        values: Lists, tuples and dicts of Python's numbers, None and text, in any nesting; no bytes. Nobody changes
            them afterwards.
    """
    try:
        return _encode(values)
    except (TypeError, ValueError, OverflowError):  # an unknown type, a lone surrogate, a number of over 64 bits
        return values


def unpacked(kept: Any) -> Any:
    """What :func:`packed` was given; its tuples are lists then.

    >>> unpacked(packed(([3, 4], None, {"key": 0.5})))
    [[3, 4], None, {'key': 0.5}]
    """
    return _decode(kept) if type(kept) is bytes else kept
