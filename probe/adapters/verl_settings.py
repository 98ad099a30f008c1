"""What verl says of itself and of its batches."""

from __future__ import annotations

import sys
from typing import Any


def packer() -> str:
    """By whose rule a batch is cut: ``"verl 0.9.1"``."""
    return f"verl {getattr(sys.modules.get('verl'), '__version__', '')}".rstrip()


def setting(data: Any, key: str, default: Any) -> Any:
    """What the batch says of how it wants to be treated, read as verl reads it.

    Args:
        data: A TensorDict of verl's.
        key: Of the setting.
        default: Where the batch doesn't say, as verl has it.
    """
    known: Any = sys.modules.get("verl.utils.tensordict_utils")
    value = default if known is None else known.get_non_tensor_data(data=data, key=key, default=default)
    return default if value is None else value
