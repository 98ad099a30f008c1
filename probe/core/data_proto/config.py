"""Settings of all DataProtos in the process."""

from __future__ import annotations

import os
from typing import ClassVar

from probe.errors import InputTypeError


class _ConfigType(type):
    """Gives :class:`DataProtoConfig` a property on the class itself."""

    _auto_padding = False

    @property
    def auto_padding(cls) -> bool:
        """Whether every batch may be padded by ``chunk``; see :class:`DataProtoConfig`."""
        names = ("PROBE_AUTO_PADDING", "VERL_AUTO_PADDING")
        return cls._auto_padding or any(os.environ.get(name, "").strip().lower() in ("1", "true") for name in names)

    @auto_padding.setter
    def auto_padding(cls, enabled: bool) -> None:
        if not isinstance(enabled, bool):
            raise InputTypeError(f"auto_padding: got {enabled!r}, expected True or False")
        cls._auto_padding = enabled


class DataProtoConfig(metaclass=_ConfigType):
    """Settings of all batches in the process.

    ``DataProtoConfig.auto_padding``: whether ``chunk`` adds copies of rows when a batch doesn't divide
    evenly. Also switched on by the environment, ``PROBE_AUTO_PADDING=1`` or ``VERL_AUTO_PADDING=TRUE``. A
    single batch opts in with ``from_dict(..., auto_padding=True)``.
    """

    #: The entry of ``meta_info`` with which one batch opts in.
    auto_padding_key: ClassVar[str] = "_probe_auto_padding"
