"""What Ray calls by a variable of its own, in jobs that nobody changes and nobody starts by ``probe run``.

``RAY_RUNTIME_ENV_HOOK=probe_rl.ray.runtime_env`` is asked in each ``ray.init``, and
``RAY_TRAIN_CALLBACKS=probe_rl.ray.TrainCallback`` by each trainer of Ray Train v2. The driver is observed, and each of
its job's workers, whether the cluster was there before or not. Where the environment names no run directory nothing of
probe is imported.
"""

from __future__ import annotations

import os

from probe_rl import harmless, load

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
    with harmless():
        load("probe.adapters.attachment").attach()
        load("probe.runs.ending")  # which the end of the interpreter needs, where some modules can't be imported
        made: dict[str, Any] | None = load("probe.adapters.ray_environment").for_workers(given, os.environ, _observe)
        return made
    return given


def _observe(environ: dict[str, str] | None = None) -> None:
    """In a worker, before it trains: whatever it imports, or has imported, is observed, and recorded to where these
    variables say. An environment without probe says so: what a setup hook raises ends the worker.
    """
    import os

    with harmless():
        for name, value in (environ or {}).items():
            os.environ.setdefault(name, value)
        from probe_rl import load

        load("probe.adapters.attachment").attach()


# -------------------------------------------------------------------------------------------------------- Ray Train v2


def __getattr__(name: str) -> Any:
    if name == "TrainCallback":
        from importlib import import_module

        base = import_module("ray.train.v2._internal.execution.callback").WorkerGroupCallback
        methods = {
            "__init__": _driver_begins,
            "after_worker_group_start": _workers_begin,
            "before_worker_group_shutdown": _workers_end,
            "__module__": "__main__",
        }
        return type(name, (base,), methods)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _driver_begins(self: Any) -> None:
    """The callback is made in the driver, and sent from there to the process that controls the workers."""
    import os

    self.environ = {}
    if not os.environ.get("PROBE_RUN_DIR"):
        return
    from probe_rl import load

    with harmless():
        load("probe.adapters.attachment").attach()
        load("probe.runs.ending")
        self.environ = load("probe.adapters.ray_environment").passed(os.environ)


def _workers_begin(self: Any, worker_group: Any) -> None:
    """Have each worker observed before it trains, and again where Ray has begun them anew. What is wrong with a worker
    is for Ray to find out.
    """
    if not self.environ:
        return
    with harmless("probe can't observe the workers of Ray Train"):
        worker_group.execute(_observe, self.environ)


def _workers_end(self: Any, worker_group: Any) -> None:
    """Ray kills workers as soon as they have trained: what they recorded last is written before. One that doesn't
    answer is waited for five seconds.
    """
    import sys

    if not self.environ:
        return
    with harmless("probe can't ask the workers of Ray Train to write"):
        asked = worker_group.execute_async(_write)
        sys.modules["ray"].wait(asked, num_returns=len(asked), timeout=5)


def _write() -> None:
    """In a worker: wait until all that is recorded is in its file, where it records."""
    import sys

    session = sys.modules.get("probe.session")
    recording = None if session is None else session.current_session()
    if recording is not None:
        recording.flush(4)


#: Sent as they stand, so that a process without this module can load them.
_FUNCTIONS = (_observe, _driver_begins, _workers_begin, _workers_end, _write)
for _sent in (*_FUNCTIONS, harmless, harmless.__init__, harmless.__enter__, harmless.__exit__):
    _sent.__module__ = "__main__"
