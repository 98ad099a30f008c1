"""Objects of a batch on the wire: each row's in a wrapper of its own, which some wires strip.

TransferQueue's encoder sends a TensorDict as its tensors alone. TensorDict keeps an object in a
``NonTensorData`` beside the tensors, so that it may arrive in one of these forms:

========== ============================================================ =====================
form       what arrives                                                 what it stood for
========== ============================================================ =====================
"wrapped"  a ``NonTensorData``, its payload in ``_non_tensordict``      the payload
"dict"     a plain dict with the wrapper's own three keys, or one in a  the payload under "data"
           ``NonTensorData``
"empty"    a TensorDict without keys and batch dimensions               lost: read as None
"plain"    anything else                                                itself
========== ============================================================ =====================

A payload that was None and one that was lost can't be told apart once the wrapper is gone; whoever reads "empty" is
therefore told of it through :data:`STRIPPED`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from tensordict import NonTensorData, NonTensorStack, TensorDictBase, is_non_tensor

from probe.errors import ShapeError
from probe.hooks import emit, point

Form = Literal["wrapped", "dict", "empty", "plain"]
Objects = npt.NDArray[np.object_]

#: Told once for each field (and each lone payload) in which the wire had stripped something.
STRIPPED: Final = point(
    "codec.stripped_payload",
    "objects arrived without their wrapper; carries field ('' for a lone payload), rows, dicts (payload recovered), "
    "lost (payload gone, read as None)",
)

_WRAPPER_KEYS: Final = frozenset({"data", "_metadata", "_is_non_tensor"})


def unwrap(item: Any) -> tuple[Any, Form]:
    """The payload of ``item``, and the form that it arrived in (see the module's table)."""
    # The attribute is private, but it is where the payload of every NonTensorData is, also of one that was emptied.
    beside = getattr(item, "_non_tensordict", None)
    if isinstance(beside, dict) and "data" in beside:
        payload = beside["data"]  # a wire that stripped the wrapper may have wrapped what was left of it again
        return (payload["data"], "dict") if _is_wrapper(payload) else (payload, "wrapped")
    if isinstance(item, TensorDictBase) and not is_non_tensor(item) and not item.batch_dims and not len(item.keys()):
        return None, "empty"
    return (item["data"], "dict") if _is_wrapper(item) else (item, "plain")


def _is_wrapper(item: Any) -> bool:
    return type(item) is dict and item.keys() == _WRAPPER_KEYS and item["_is_non_tensor"] is True


def unwrap_wire_stripped_payload(item: Any) -> Any:
    """The payload of an object that came over a wire, whether or not its wrapper did.

    Returns:
        The payload; None for a TensorDict without keys and batch dimensions, whose payload was lost (listeners of
        ``codec.stripped_payload`` are told); anything else unchanged.

    >>> unwrap_wire_stripped_payload({"data": "hello", "_metadata": None, "_is_non_tensor": True})
    'hello'
    """
    payload, form = unwrap(item)
    if form in ("dict", "empty") and STRIPPED.listeners:
        emit(STRIPPED, field="", rows=1, dicts=int(form == "dict"), lost=int(form == "empty"))
    return payload


class Column(NamedTuple):
    """Objects (N,), and how many of them had arrived as dicts or not at all."""

    objects: Objects
    dicts: int = 0
    lost: int = 0


def is_object_column(value: Any) -> bool:
    """Whether a column of a TensorDict holds objects, stripped or not, rather than tensors."""
    if isinstance(value, list) or is_non_tensor(value):
        return True
    return isinstance(value, TensorDictBase) and not len(value.keys())


def object_column(name: str, value: Any, rows: int) -> Column:
    """The objects of one column of a TensorDict of ``rows`` rows.

    Args:
        name: The column's name, for errors.
        value: What the TensorDict holds: a ``NonTensorStack``, a ``NonTensorData`` (one payload for all rows, or an
            array that holds the rows), a list, or the empty TensorDict that a wire made of any of them.
        rows: How many rows are expected.

    Raises:
        ShapeError: Another number of rows.
    """
    if isinstance(value, NonTensorStack):
        return _gathered(name, value.tensordicts, rows)
    if isinstance(value, list):
        return _gathered(name, value, rows)
    payload, form = unwrap(value)
    if form == "empty" or (isinstance(value, TensorDictBase) and not is_non_tensor(value)):
        return Column(objects_of([None] * rows), lost=rows)
    if isinstance(payload, np.ndarray) and payload.dtype == object and payload.shape[:1] == (rows,):
        return Column(objects_of(list(payload)))
    return Column(objects_of([payload] * rows), dicts=rows if form == "dict" else 0)


def _gathered(name: str, items: Iterable[Any], rows: int) -> Column:
    found, dicts, lost = [], 0, 0
    for item in items:
        if isinstance(item, NonTensorStack):  # a row of objects, such as one list for each of its turns
            payload, form = item.tolist(), "plain"
        else:
            payload, form = unwrap(item)
        dicts += form == "dict"
        lost += form == "empty"
        found.append(payload)
    if len(found) != rows:
        raise ShapeError(f"{name!r}: got {len(found)} objects for a batch of {rows} rows")
    return Column(objects_of(found), dicts, lost)


def objects_of(items: Sequence[Any]) -> Objects:
    """``items`` as an array (N,) of objects; lists of equal length stay lists."""
    made = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        made[place] = item
    return made


def object_stack(items: Iterable[Any]) -> NonTensorStack | NonTensorData:
    """``items`` as a column of a TensorDict that any index selects from, one wrapper for each row.

    An array put into a TensorDict becomes one opaque value for the whole batch: it isn't cut with the rows, and
    TransferQueue pickles it with the whole storage of every tensor view in it.
    """
    found = [item.tolist() if isinstance(item, NonTensorData) else item for item in items]
    if not found:
        return NonTensorData(None, batch_size=[0])  # older TensorDicts can't hold an empty stack
    return NonTensorStack(*[NonTensorData(item, batch_size=[]) for item in found])
