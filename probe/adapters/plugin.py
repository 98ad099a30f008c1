"""What verl loads in each process that imports it: the entry point ``probe`` of its group ``verl.plugins``.

verl only imports this module, while its own package is being imported, so that it acts on import and imports nothing of
verl. Where the environment names no run directory it uses the standard library alone: it waits for verl's tracker, so
that ``trainer.logger=["console","probe"]`` is understood. Named in ``VERL_USE_EXTERNAL_MODULES`` it observes anyway.
"""

from __future__ import annotations

import os
from types import ModuleType


def arm() -> None:
    """Observe verl where there is somewhere to record to, else wait until its tracker is asked for probe."""
    wanted = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    if os.environ.get("PROBE_RUN_DIR") or __name__ in [one.strip() for one in wanted]:
        from probe.adapters.attachment import attach

        attach("verl", "ray")
        return
    from probe.adapters.imports import when_imported

    when_imported("verl.utils.tracking", _let_probe_be_a_logger)


def _let_probe_be_a_logger(module: ModuleType) -> None:
    from probe.adapters.verl_logger import accept

    accept(module)


arm()
