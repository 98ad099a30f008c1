"""The kernels of the Jupyter server, and whose they are: in its own process, as its own sessions page tells them."""

from __future__ import annotations

from typing import Any, Final

from jupyter_core.utils import ensure_async

#: Kernels that are told at most, those that were busy last.
MOST: Final = 1000


async def kernels(sessions: Any, manager: Any) -> list[dict[str, Any]]:
    """The kernels that run on this machine.

    Args:
        sessions: The server's session manager.
        manager: Its kernel manager.

    Returns:
        Of each ``id``, ``pid``, ``name`` (of its kernel spec), ``state`` (such as "idle" and "busy"), ``last`` (when a
        message of it was seen last, in ISO 8601) and ``sessions``: of each notebook, console or file that uses it
        ``path``, ``name`` and ``type``. One that runs elsewhere, behind a gateway, is left out.
    """
    used: dict[str, list[dict[str, str]]] = {}
    for one in await ensure_async(sessions.list_sessions()):
        told = {what: str(one.get(what) or "") for what in ("path", "name", "type")}
        used.setdefault(one["kernel"]["id"], []).append(told)
    found = []
    for one in await ensure_async(manager.list_kernels()):
        pid = _pid(manager, one["id"])
        if pid is not None:
            last = str(one.get("last_activity") or "")
            mine = {"name": one.get("name"), "state": one.get("execution_state"), "last": last}
            found.append({"id": one["id"], "pid": pid, **mine, "sessions": used.get(one["id"], [])})
    return sorted(found, key=lambda one: str(one["last"]), reverse=True)[:MOST]


def _pid(manager: Any, kernel: str) -> int | None:
    """The process of a kernel; None where it isn't one of this machine."""
    from jupyter_client.provisioning.local_provisioner import LocalProvisioner

    try:
        provisioner = getattr(manager.get_kernel(kernel), "provisioner", None)
    except KeyError:  # it has ended meanwhile
        return None
    return provisioner.pid if isinstance(provisioner, LocalProvisioner) else None
