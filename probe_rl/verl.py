"""What verl loads in each process that imports it: the entry point ``probe`` of its group ``verl.plugins``.

verl only imports this module, while its own package is being imported. Where the environment names no run directory it
waits for verl's tracker, so that ``trainer.logger=["console","probe"]`` is understood, and imports nothing of probe
until then. Named in ``VERL_USE_EXTERNAL_MODULES`` it observes anyway. What fails is said and never raised: verl would
swallow it.
"""

from __future__ import annotations

import os
import sys

from probe_rl import harmless, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

_PLUGIN: Final = "probe.adapters.plugin"
_TRACKER: Final = "verl.utils.tracking"


class _Waiting:
    """Stands among the finders and lets every import pass to the others; at verl's tracker it hands over to probe."""

    waits = True

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """None; for the tracker what probe's own finder says, which was put on too late to be asked."""
        if not self.waits or name != _TRACKER:
            return None
        self.waits = False  # and stays where it is: another thread may be going through the finders
        with harmless(""):  # nobody has asked for probe yet: verl says it where its logger is asked for
            load(_PLUGIN)
            return load("probe.adapters.imports").find_spec(name, path, target)
        return None


def _arm() -> None:
    wanted = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    asked = os.environ.get("PROBE_RUN_DIR") or __name__ in [one.strip() for one in wanted]
    if not asked and _TRACKER not in sys.modules:
        sys.meta_path.insert(0, _Waiting())
        return
    with harmless():
        load(_PLUGIN)


_arm()
