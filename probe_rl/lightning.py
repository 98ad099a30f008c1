"""What Lightning calls for each ``Trainer`` that is made: the entry point ``probe`` of its group of callback factories.

The groups are ``lightning.pytorch.callbacks_factory`` and ``pytorch_lightning.callbacks_factory``. Where the
environment names no run directory nothing of probe is imported. Fabric, whose loop is the program's own, asks for
callbacks too; it has no step that could be told, and nobody is named for it.
"""

from __future__ import annotations

import os

from probe_rl import harmless, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def callbacks() -> list[Any]:
    """Observe Lightning from now on where there is somewhere to record to.

    Returns:
        No callback: a trainer is seen through the one function that calls the hooks of all callbacks.
    """
    if os.environ.get("PROBE_RUN_DIR"):
        with harmless():
            load("probe.adapters.attachment").attach("lightning")
    return []
