"""Numbers of every kind (and what is logged beside them), taken as they are at one moment and made plain floats later.

The trainer's thread only takes: what can change afterwards (a tensor, an array, a Metric) is copied at once,
and what lies on a device is sent on its way without waiting for it. Making floats is left to the sending
thread.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from probe.core.metric import Metric
from probe.guard import attempt
from probe.tracking.media import Medium, as_medium
from probe.tracking.transfer import Transfer

if TYPE_CHECKING:
    import torch

#: Sends tensors that lie on devices on their way to the host; see ``transfer.start_transfer``.
StartTransfer = Callable[[Sequence["torch.Tensor"]], Transfer]

_PLAIN: Final = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_})


class Unusable(NamedTuple):
    """Stands where a value was that isn't one number."""

    why: str


def _not_copied(error: Exception) -> Unusable:
    return Unusable(f"it can't be copied from its device: {error!r}")


def _not_arrived(error: Exception) -> Unusable:
    return Unusable(f"it couldn't be read from its device: {error!r}")


def _unreadable(error: Exception) -> Unusable:
    return Unusable(f"it can't be read: {error!r}")


def _no_number(error: Exception) -> Unusable:
    return Unusable(str(error)) if isinstance(error, TypeError | ValueError | OverflowError) else _unreadable(error)


def _unreadable_name(error: Exception) -> str:
    return f"a name whose repr raised {type(error).__name__}"


class Snapshot:
    """What one call of ``log`` was given, safe from later changes.

    Attributes:
        values: Name to a number of any kind, a ``Medium``, or :class:`Unusable`.
        transfer: Brings the values of ``waiting``, in that order, from a device; None where there are none.
        waiting: Their names.
        media: Histograms, texts and so on by name, known after :meth:`floats`.
    """

    __slots__ = ("media", "transfer", "values", "waiting")

    def __init__(self, data: Mapping[str, Any], start: StartTransfer) -> None:
        self.values: dict[Any, Any] = dict(data)
        self.media: dict[str, Medium] = {}
        self.transfer: Transfer | None = None
        self.waiting: list[str] = []
        on_device: list[torch.Tensor] = []
        tensor_type = getattr(sys.modules.get("torch"), "Tensor", None)
        for name, value in self.values.items():
            kind = type(value)
            if kind in _PLAIN:
                continue
            frozen = self.values[name] = _item(value) if kind is tensor_type else _freeze(value)
            if frozen is value and _is_tensor(value):
                self.waiting.append(name)
                on_device.append(value)
        if on_device:
            self._send(on_device, start)

    def _send(self, on_device: list[torch.Tensor], start: StartTransfer) -> None:
        # A lost device must not reach training through its logging.
        sent = attempt(lambda: start(on_device), _not_copied)
        if isinstance(sent, Unusable):
            self.values.update(dict.fromkeys(self.waiting, sent))
        else:
            self.transfer = sent
            self.values.update(dict.fromkeys(self.waiting))  # let go of the device's memory

    def ready(self) -> bool:
        """Whether :meth:`floats` would wait for nothing."""
        if self.transfer is None:
            return True
        return attempt(self.transfer.ready, lambda _: True)  # of a failed device; reading will say what it was

    def abandon(self) -> None:
        """Stop waiting for what is under way from a device."""
        if self.transfer is not None:
            self.transfer = None
            self.values.update(dict.fromkeys(self.waiting, Unusable("it had not arrived from its device in time")))

    def floats(self) -> tuple[dict[str, float], dict[str, str]]:
        """The numbers, and why the rest are none, each by name; what is shown beside them goes to ``media``."""
        if self.transfer is not None:
            self._arrive(self.transfer)
        good: dict[str, float] = {}
        bad: dict[str, str] = {}
        for name, value in self.values.items():
            if not isinstance(name, str):
                bad[attempt(partial(repr, name), _unreadable_name)] = (
                    f"its name is a {type(name).__name__}, expected a str"
                )
                continue
            if isinstance(value, Unusable):
                bad[name] = value.why
                continue
            if isinstance(value, Medium):
                self.media[name] = value
                continue
            number = value if type(value) is float else attempt(partial(to_float, value), _no_number)
            if isinstance(number, Unusable):
                bad[name] = number.why
            else:
                good[name] = number
        return good, bad

    def _arrive(self, transfer: Transfer) -> None:
        self.transfer = None
        # The device may have failed since; its values are missing, the others are not.
        arrived = attempt(transfer.read, _not_arrived)
        if isinstance(arrived, Unusable):
            self.values.update(dict.fromkeys(self.waiting, arrived))
        else:
            self.values.update(zip(self.waiting, arrived, strict=True))


def to_float(value: Any) -> float:
    """A number of any kind (python, numpy, Decimal, Fraction, Metric, tensor of one element) as a float.

    Raises:
        TypeError: It isn't one number.
        ValueError: It isn't one number.
        OverflowError: No float can hold it.

    >>> to_float(np.float32(0.5)), to_float(Metric("mean", [1, 2])), to_float(True)
    (0.5, 1.5, 1.0)
    >>> to_float("0.5")
    Traceback (most recent call last):
    TypeError: got str, expected a number
    """
    if type(value) not in _PLAIN:
        given, value = value, _freeze(value)
        if isinstance(value, Medium):
            raise TypeError(f"got {type(given).__name__}, expected a number")
        if isinstance(value, Unusable):
            raise TypeError(value.why)
        if _is_tensor(value):
            value = value.item()
    number = float(value)
    if math.isinf(number) and value != number:  # such as Decimal("1e400")
        raise OverflowError(f"got {value!r}, which no float can hold")
    return number


def _freeze(value: Any) -> Any:
    """``value`` as it is now: something immutable, :class:`Unusable`, or a tensor on a device, unchanged."""
    return attempt(partial(_frozen, value), _unreadable)  # odd subclasses of tensors and arrays raise what they like


def _frozen(value: Any) -> Any:
    if isinstance(value, Metric):
        return value.aggregate()
    if _is_tensor(value):
        return _freeze_tensor(value)
    if isinstance(value, np.ndarray | np.generic):
        return _freeze_array(value)
    if not hasattr(value, "__float__"):
        return as_medium(value) or Unusable(f"got {type(value).__name__}, expected a number")
    return value


def _item(tensor: torch.Tensor) -> Any:
    """What ``_freeze`` gives, quickly for the usual tensor."""
    if tensor.is_cpu:
        try:
            number = tensor.item()
        except RuntimeError:  # more than one element, or something like vmap: the long way says what it is
            return _freeze(tensor)
        if type(number) is not complex:
            return number
    elif tensor.numel() == 1 and not tensor.is_complex():
        return tensor
    return _freeze(tensor)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # nobody has a tensor who hasn't imported torch
    return torch is not None and isinstance(value, torch.Tensor)


def _freeze_tensor(tensor: torch.Tensor) -> Any:
    if type(tensor).__module__ == "torch" and tensor.is_cpu and tensor.numel() == 1:  # quick for the usual case
        number = tensor.item()
        return Unusable("got a complex tensor, expected a real number") if type(number) is complex else number
    if hasattr(tensor, "placements"):
        return Unusable("got a DTensor, whose value takes a collective to read; log its full_tensor()")
    if tensor.numel() != 1:
        return Unusable(f"got a tensor of shape {tuple(tensor.shape)}, expected one element")
    if tensor.is_complex():
        return Unusable("got a complex tensor, expected a real number")
    return tensor.item() if tensor.device.type == "cpu" else tensor


def _freeze_array(array: np.ndarray[Any, Any] | np.generic) -> Any:
    if array.size != 1:
        return Unusable(f"got an array of shape {array.shape}, expected one element")
    if np.ma.is_masked(array):
        return Unusable("got a masked value, expected a number")
    if array.dtype.kind in "biuf":
        return array.reshape(-1)[0].item()  # of a longdouble that's the longdouble itself
    if array.dtype.kind == "O":
        return _freeze(array.item())
    if array.dtype.name.startswith(("bfloat16", "float")):  # ml_dtypes
        return float(array.reshape(()))
    return Unusable(f"got numpy {array.dtype.name}, expected a real number")
