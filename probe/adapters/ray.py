"""Ray: what workers of a cluster need that was there before their driver, and the driver's end, which ends its actors
without asking. What they train with has adapters of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

from probe._io import expanded_or_same
from probe.adapters.automatic import VARIABLE
from probe.adapters.ray_environment import is_asked, joins, with_ours
from probe.adapters.seams import Call, Seam
from probe.adapters.telling import session

_ended: Final[list[tuple[Path, int]]] = []  #: the run of the job that this driver has let go of last


def _driver_ends(call: Call) -> Generator[None, None, None]:
    """Before a driver lets go of its cluster: actors are told, so that they end in order."""
    del call
    ray: Any = sys.modules.get("ray")
    if ray is not None and ray.is_initialized() and (session() is not None or os.environ.get(VARIABLE)):
        from probe.runs.ending import end
        from probe.runs.processes import part_in_ray

        directory, attempt = _run()
        if part_in_ray() == "driver" and directory is not None and attempt is not None:
            _ended[:] = [(directory, attempt)]
            end(directory, attempt)
    yield


def _cluster_ends(call: Call) -> None:
    """The processes that `ray.init` had begun on this machine are gone: what actors had no time for is done here."""
    del call
    if _ended:
        from probe.runs.ending import seal_ended

        seal_ended(*_ended.pop())


def _job_begins(call: Call) -> Generator[None, None, None]:
    """Workers of a cluster that was there before get what the driver has in its environment. What the end needs is
    imported now: at the end of the interpreter some modules can't be any more.
    """
    if is_asked(os.environ):
        _give_environment(call)
    yield
    if session() is not None or os.environ.get(VARIABLE):
        from probe.runs import ending

        del ending  # only to have it loaded


def _give_environment(call: Call) -> None:
    services: Any = sys.modules.get("ray._private.services")
    address, found = call.argument("address"), None
    if not address:
        found = services.find_bootstrap_address(call.argument("_temp_dir"))
    if not joins(address, os.environ, found):
        return
    given = call.argument("runtime_env")
    if given is None:  # Ray takes the one of the configuration where it isn't given another
        given = getattr(call.argument("job_config"), "runtime_env", None)
    call.give("runtime_env", with_ours(given, os.environ))


def _run() -> tuple[Path | None, int | None]:
    """The run of this process and its attempt; of its actors where it hasn't recorded itself."""
    from probe.runs.attempts import launch_of

    open_now: Any = session()
    if open_now is not None:
        return open_now.directory, open_now.process.attempt
    place = os.environ.get(VARIABLE)
    if not place:
        return None, None
    directory = Path(expanded_or_same(place)).absolute()
    return directory, launch_of(directory)


#: `ray.shutdown` calls `disconnect`, and so does the end of the interpreter, while the actors are still there.
SEAMS: Final = (
    Seam("ray._private.worker", "init", "begin of the job", _job_begins, begins=False, always=True),
    Seam("ray._private.worker", "disconnect", "end of the job", _driver_ends, begins=False, always=True),
    Seam(
        "ray._private.node", "Node.kill_all_processes", "end of the cluster", _cluster_ends, begins=False, always=True
    ),
)
