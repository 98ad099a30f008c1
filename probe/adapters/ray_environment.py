"""What the workers of a Ray cluster need that was there before its driver: they don't inherit the driver's environment.

Those of a cluster that ``ray.init`` begins do. For the others a driver that records adds to the job's ``runtime_env``
what `probe run` put into its own environment; all that the program itself asks for stays as it asked for it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from probe._io import expanded_or_same
from probe.adapters import startup
from probe.adapters.automatic import VARIABLE
from probe.hooks import SWITCH, is_off

#: "off" leaves the ``runtime_env`` of jobs alone.
RUNTIME_ENV_VARIABLE: Final = "PROBE_RUNTIME_ENV"

#: Variables that every process of a job needs as its driver has them.
PASSED: Final = (SWITCH, VARIABLE, "PROBE_ATTEMPT", "PROBE_UPLOAD", "PROBE_ALARMS", "PROBE_DEBUG_SERVER")

_PATH: Final = "PYTHONPATH"

#: Where a job that was submitted finds its own ``runtime_env``; Ray refuses a driver that names a key of it again.
_SUBMITTED: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"

#: What a worker calls before its first task, and the variable by which Ray tells it.
_HOOK: Final = "worker_process_setup_hook"
_HOOK_VARIABLE: Final = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"

_log = logging.getLogger("probe.adapters")


def is_asked(environ: Mapping[str, str]) -> bool:
    """Whether a driver with this environment gives it to its workers.

    Args:
        environ: The driver's.
    """
    if not environ.get(VARIABLE) or is_off():
        return False
    said = environ.get(RUNTIME_ENV_VARIABLE, "on").strip().lower()
    if said not in ("", "on", "off"):
        _log.warning("%s: got %r, expected 'on' or 'off'; it is on", RUNTIME_ENV_VARIABLE, said)
    return said != "off"


def joins(address: str | None, environ: Mapping[str, str], found: str | None) -> bool:
    """Whether ``ray.init`` connects to a cluster that is there, by the order in which Ray looks.

    Args:
        address: As ``ray.init`` was given it.
        environ: The driver's.
        found: The address of a cluster that ``ray start`` began on this machine; None where there is none.
    """
    if address in (None, "", "auto"):
        address = environ.get("RAY_ADDRESS") or address
    if address == "local":
        return False
    return bool(address) or found is not None


def passed(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that workers need, with the run directory as they can find it; none where they aren't to have them.

    Args:
        environ: The driver's.
    """
    return _ours(environ) if is_asked(environ) else {}


def _ours(environ: Mapping[str, str]) -> dict[str, str]:
    ours = {name: environ[name] for name in PASSED if environ.get(name)}
    ours[VARIABLE] = os.path.normpath(Path(expanded_or_same(ours[VARIABLE])).absolute())
    return ours


def with_ours(runtime_env: Mapping[str, Any] | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """A job's ``runtime_env``, with what its workers need to record. What is in it already stays.

    Args:
        runtime_env: The program's own; None where it has none.
        environ: The driver's.

    Returns:
        A new one. Where nothing is to be added it equals the program's.
    """
    made = dict(runtime_env or {})
    theirs = dict(made.get("env_vars") or {})
    submitted = _submitted(environ)
    ours = _ours(environ)
    path = None if _PATH in submitted else _path(theirs.get(_PATH), environ)
    added = {name: value for name, value in ours.items() if name not in theirs and name not in submitted}
    if path is not None:
        theirs[_PATH] = path
    if added or path is not None:
        made["env_vars"] = {**theirs, **added}
    return made


def for_workers(
    runtime_env: Mapping[str, Any] | None, environ: Mapping[str, str], hook: Callable[[], None]
) -> Mapping[str, Any] | None:
    """As :func:`with_ours`, with a hook that each worker calls before its first task.

    Args:
        runtime_env: The program's own; None where it has none.
        environ: The driver's.
        hook: Is sent to the workers, unless the job has a hook of its own.

    Returns:
        A new one; the program's where it is to be left alone.
    """
    if not is_asked(environ):
        return runtime_env
    made = with_ours(runtime_env, environ)
    named = {*made, *(made.get("env_vars") or ()), *_submitted_env(environ), *_submitted(environ)}
    return made if named & {_HOOK, _HOOK_VARIABLE} else {**made, _HOOK: hook}


def _path(theirs: str | None, environ: Mapping[str, str]) -> str | None:
    """The workers' path with the start file in front; None where it stays as it is.

    Where the program names none they keep the one that they have: Ray puts it in the place of ``${PYTHONPATH}``.
    """
    (place,) = startup.__path__
    known = environ.get(_PATH, "").split(os.pathsep)
    if place not in known:  # the driver was observed in another way, as verl's workers are
        return None
    behind = f"${{{_PATH}}}" if theirs is None else theirs
    return None if place in behind.split(os.pathsep) else os.pathsep.join([place, behind] if behind else [place])


def _submitted(environ: Mapping[str, str]) -> frozenset[str]:
    """Names of the variables that ``ray job submit`` was given."""
    try:
        return frozenset(_submitted_env(environ)["env_vars"])
    except (KeyError, TypeError):
        return frozenset()


def _submitted_env(environ: Mapping[str, str]) -> Mapping[str, Any]:
    """The ``runtime_env`` that ``ray job submit`` was given."""
    try:
        return dict(json.loads(environ.get(_SUBMITTED) or "{}")["runtime_env"])
    except (ValueError, KeyError, TypeError):
        return {}
