"""``trainer.logger=["console","probe"]``: verl's tracker takes probe's name, and observes this process from then on.

Where the environment names no run directory the run is ``runs/<project_name>/<experiment_name>`` of verl's own names.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from types import ModuleType
from typing import Any, Final

from probe.adapters import automatic
from probe.adapters.seams import Call, Patches, Seam

#: What verl is told to log to.
NAME: Final = "probe"

_log = logging.getLogger("probe.adapters")


def made(call: Call) -> Generator[None, None, None]:
    """verl's tracker is made: probe is one of the backends that it knows for as long as that takes."""
    project, experiment = call.argument("project_name"), call.argument("experiment_name")
    asked = call.argument("default_backend")
    if NAME in ([asked] if isinstance(asked, str) else asked or []):
        from probe.adapters.attachment import attach

        attach("verl", "ray")
        automatic.begin_named(str(project), str(experiment))
    automatic.is_recording(begin=True)  # where the environment says so
    known = type(call.args[0]).supported_backend
    known.append(NAME)
    try:
        yield
    finally:
        known.remove(NAME)
        _learn(str(project), call.argument("config"))


def _learn(project: str, config: Any) -> None:
    from probe.adapters.telling import session

    open_now = session()
    if open_now is not None:
        open_now.learn(project=project, config=config)


#: Where verl's tracker is made. It is told where nobody records, too: it may be what asks for a recording.
LOGGER: Final = Seam("verl.utils.tracking", "Tracking.__init__", "logger", made, always=True)

_patches: Final = Patches(automatic.is_recording)


def accept(module: ModuleType) -> None:
    """Let verl's tracker take ``"probe"`` for the name of a backend, with nothing else observed.

    Args:
        module: ``verl.utils.tracking``.
    """
    if not _patches.put(LOGGER, module):
        _log.warning("this verl has no Tracking: 'probe' can't be one of its loggers")
