"""Who a process is: its rank, and what it goes by without one. Nothing is imported or started to find out."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from probe.errors import InputError
from probe.guard import attempt
from probe.records import Process

#: What a process goes by whose script nobody can name.
NAMELESS: Final = "python"

#: Inference engines that have processes of their own.
ENGINES: Final = frozenset({"sglang", "vllm"})


def describe(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    name: str | None = None,
    role: str | None = None,
    device: str = "",
    device_name: str = "",
    tables: str = "",
) -> Process:
    """The row about this process, as far as it is known by now.

    Args:
        rank: Its number in the job; None asks: see :func:`rank_and_size`.
        world_size: How many ranks the job has; None asks likewise, and is 1 where nobody says.
        name: What it is shown as while it has no rank; None asks: see :func:`default_name`.
        role: What it does in the job, such as "driver" or "rollout"; None is "engine" for a process of an inference
            engine, see :func:`engine`.
        device: Whose memory is watched.
        device_name: What kind of device that is.
        tables: Of the row types that its recorders bring.

    Returns:
        The row, without attempt and without what it is called in the run.

    Raises:
        InputError: ``name`` or ``role`` is empty, or the environment's ``RANK`` or ``WORLD_SIZE`` is no whole number.
    """
    for argument, text in (("name", name), ("role", role)):
        if text is not None and not (isinstance(text, str) and text.strip()):
            raise InputError(f"{argument}: got {text!r}, expected a text such as 'driver', or None")
    serves = engine()
    if serves and role is None:
        name, role = name or _of_engine(serves), "engine"
    found = rank_and_size()
    size = found[1] if world_size is None else world_size
    return Process(
        time_ns=time.monotonic_ns(),
        wall_ns=time.time_ns(),
        pid=os.getpid(),
        host=platform.node(),
        rank=found[0] if rank is None else rank,
        world_size=1 if size is None else size,
        name=name or role or default_name(),
        role=role,
        node=node(),
        local_rank=local_rank(),
        device=device,
        device_name=device_name,
        tables=tables,
    )


def rank_and_size(environ: Mapping[str, str] | None = None) -> tuple[int | None, int | None]:
    """This process's rank and the number of ranks: what ``torch.distributed`` says once a process group is
    initialised, else ``RANK`` and ``WORLD_SIZE`` as torchrun and most launchers set them. None is not known, or is not:
    processes of an engine have ranks among themselves, and the variables of the trainer that began them.

    Raises:
        InputError: One of the two variables is no whole number.

    >>> rank_and_size({"RANK": "3", "WORLD_SIZE": "8"}), rank_and_size({})
    ((3, 8), (None, None))
    """
    if engine():
        return None, None
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    known = os.environ if environ is None else environ
    return _whole(known, "RANK"), _whole(known, "WORLD_SIZE")


def several(environ: Mapping[str, str] | None = None) -> bool:
    """Whether a launcher says that this process is one of several, whatever its number: torchrun, Slurm, MPI.

    What is typed into the shell of an allocation is none of its tasks.

    >>> step = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}
    >>> [several(one) for one in (step, {"SLURM_NTASKS": "4"}, {"LOCAL_RANK": "0"})]
    [True, False, True]
    """
    known = os.environ if environ is None else environ
    counts = ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]
    if known.get("SLURM_PROCID"):
        counts.append("SLURM_NTASKS")
    return "LOCAL_RANK" in known or any(known.get(name, "").isdecimal() and int(known[name]) > 1 for name in counts)


def is_child() -> bool:
    """Whether multiprocessing has begun this process."""
    processes: Any = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None


def engine() -> str:
    """The inference engine that this process was begun by and for, such as "vllm"; "" for every other process.

    One that runs in its trainer's own process is the trainer's.
    """
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    target = getattr(multiprocessing and multiprocessing.current_process(), "_target", None)
    package = str(getattr(target, "__module__", "")).partition(".")[0]
    if package not in ENGINES:
        package = _class_of_actor("__module__").partition(".")[0]
    return package if package in ENGINES else ""


def local_rank(environ: Mapping[str, str] | None = None) -> int | None:
    """The number of this process on its machine, as torchrun or Slurm say it."""
    known = os.environ if environ is None else environ
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        if known.get(name, "").isdecimal():
            return int(known[name])
    return None


def node(environ: Mapping[str, str] | None = None) -> str:
    """The machine as its launcher calls it: Slurm by a name, torchrun by a number; "" where none does.

    >>> node({"SLURMD_NODENAME": "gpu-12", "GROUP_RANK": "1"}), node({"GROUP_RANK": "1"}), node({})
    ('gpu-12', 'node 1', '')
    """
    known = os.environ if environ is None else environ
    group = known.get("GROUP_RANK", "")
    return known.get("SLURMD_NODENAME", "") or (f"node {group}" if group else "")


def part_in_ray() -> str:
    """What this process is to Ray: its "driver", a "worker", or "" outside a job; Ray is never imported for this."""
    return _of_ray(_part)


def _of_ray(look: Callable[[Any], str]) -> str:
    """What ``look`` finds in Ray; "" outside a job, and for whatever another version lacks."""
    ray: Any = sys.modules.get("ray")
    if ray is None:
        return ""
    return attempt(lambda: look(ray) if ray.is_initialized() else "", lambda _: "")


def _part(ray: Any) -> str:
    mode = ray._private.worker.global_worker.mode
    return {ray.SCRIPT_MODE: "driver", ray.WORKER_MODE: "worker"}.get(mode, "")


def default_name() -> str:
    """What this process goes by where nobody named it: a Ray actor by its name or class, a child of multiprocessing by
    the name that this gave it, a notebook's kernel as "notebook", a script by its file's name.
    """
    return _of_actor() or _of_child() or _of_notebook() or _of_script()


def _of_engine(package: str) -> str:
    """vLLM and SGLang write into their processes' titles what each is: ``VLLM::Worker_TP0``."""
    titles: Any = sys.modules.get("setproctitle")
    title = "" if titles is None else str(titles.getproctitle())
    return f"{package} {title.rpartition('::')[2] if '::' in title else default_name()}"


def _of_actor() -> str:
    return _of_ray(_name_of_actor)


def _name_of_actor(ray: Any) -> str:
    context = ray.get_runtime_context()
    return (context.get_actor_id() and context.get_actor_name()) or _class_of_actor("__name__")


def _class_of_actor(attribute: str) -> str:
    """The name or the module of the class of the actor of Ray that this process is; "" where it is none."""
    return _of_ray(lambda ray: _of_class(ray, attribute))


def _of_class(ray: Any, attribute: str) -> str:
    if not ray.get_runtime_context().get_actor_id():
        return ""
    worker = ray._private.worker.global_worker
    return str(getattr(type(worker.actors[worker.actor_id]), attribute))


def _of_child() -> str:
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    if multiprocessing is None or multiprocessing.parent_process() is None:
        return ""
    return str(multiprocessing.current_process().name)


def _of_notebook() -> str:
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return "notebook" if shell is not None and hasattr(shell, "kernel") else ""


def _of_script() -> str:
    main: Any = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module; a package's own is called __main__
        names = [one for one in str(spec.name).split(".") if one != "__main__"]
        return names[-1] if names else NAMELESS
    return Path(getattr(main, "__file__", None) or NAMELESS).stem


def _whole(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise InputError(f"{name}: got {text!r} in the environment, expected a whole number")
    return int(text)
