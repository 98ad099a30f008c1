"""What Ray calls in each ``ray.init`` where the environment says ``RAY_RUNTIME_ENV_HOOK=probe_rl.ray.runtime_env``.

For drivers that nobody changes and nobody starts by ``probe run``: the driver is observed, and each of its job's
workers, whether the cluster was there before or not. Where the environment names no run directory nothing of probe is
imported.
"""

from __future__ import annotations

import os

from probe_rl import load, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def runtime_env(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """Observe this driver, and have its workers observed, where there is somewhere to record to.

    Args:
        given: The job's ``runtime_env``; None where it has none.

    Returns:
        The same with what workers need beside it: variables, and a ``worker_process_setup_hook`` where the job has
        none. What is in it already stays.
    """
    if not os.environ.get("PROBE_RUN_DIR"):
        return given
    try:
        load("probe.adapters.attachment").attach()
        load("probe.runs.ending")  # which the end of the interpreter needs, where some modules can't be imported
        made: dict[str, Any] | None = load("probe.adapters.ray_environment").for_workers(given, os.environ, _observe)
    except Exception as error:  # the job goes on without
        say(error)
        return given
    return made


def _observe() -> None:
    """In a worker, before its first task: whatever it imports is observed. An environment without probe says so."""
    import os
    import sys

    try:
        from probe_rl import load

        load("probe.adapters.attachment").attach()
    except Exception as error:  # what a setup hook raises ends the worker
        sys.stderr.write(f"probe can't observe process {os.getpid()}: {type(error).__name__}: {error}\n")


_observe.__module__ = "__main__"  # so that it is sent as it stands: a worker without this module could not load it
