"""What verl's plugin (`probe_rl.verl`) hands over to, as its package or its tracker is being imported.

It acts on import and imports nothing of verl. Where the environment names no run directory it uses the standard library
alone: it waits for verl's tracker, so that ``trainer.logger=["console","probe"]`` is understood. Where the plugin, or
this module, is named in ``VERL_USE_EXTERNAL_MODULES``, it observes anyway.
"""

from __future__ import annotations

import os
from types import ModuleType


def arm() -> None:
    """Observe verl where there is somewhere to record to, else wait until its tracker is asked for probe."""
    wanted = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    named = {"probe_rl.verl", __name__}.intersection(one.strip() for one in wanted)
    if os.environ.get("PROBE_RUN_DIR") or named:
        from probe.adapters.attachment import attach

        attach("verl", "ray")
        return
    from probe.adapters.imports import when_imported

    when_imported("verl.utils.tracking", _let_probe_be_a_logger)


def _let_probe_be_a_logger(module: ModuleType) -> None:
    from probe.adapters.verl_logger import accept

    accept(module)


arm()
