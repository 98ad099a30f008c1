"""Which tracking backends there are, and how one is opened.

A user's own backend is a class with :meth:`Backend.log` and :meth:`Backend.close`, named by its dotted path
(``"my_package.my_module:MyBackend"``). It is made with one argument, the :class:`Setup`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, cast

from probe.errors import BackendError, UnknownNameError
from probe.guard import raised_as
from probe.tracking.backends.base import Backend, Setup, UnreachableError, Values, adapted, adapted_class

__all__ = [
    "BACKENDS",
    "Backend",
    "Setup",
    "UnreachableError",
    "Values",
    "backend_class",
    "load_backend",
    "open_backend",
]

#: Backend by name: where its class is. Nothing is imported before it is asked for.
BACKENDS: Final[dict[str, str]] = {
    "console": "probe.tracking.backends.console:Console",
    "file": "probe.tracking.backends.file:File",
    "mlflow": "probe.tracking.backends.mlflow:MLflow",
    "otlp": "probe.tracking.backends.otlp:OTLP",
    "swanlab": "probe.tracking.backends.swanlab:SwanLab",
    "tensorboard": "probe.tracking.backends.tensorboard:TensorBoard",
    "trackio": "probe.tracking.backends.trackio:Trackio",
    "wandb": "probe.tracking.backends.wandb:WandB",
}


def open_backend(name: str, setup: Setup) -> Backend:
    """The backend of that name, or of that dotted path, ready to be used.

    Raises:
        UnknownNameError: Neither a name of :data:`BACKENDS` nor a dotted path.
        BackendError: It can't be set up, or has no methods ``log`` and ``close``.
        MissingDependencyError: It needs a package that isn't installed.
    """
    make = load_backend(name)
    with raised_as(lambda error: BackendError(f"backend {name!r} can't be set up: {error!r}")):
        backend = make(setup)
    return adapted(backend, name)


def backend_class(name: str) -> type[Backend]:
    """What is known of the backend ``name`` before it is opened: what it shows and takes, how names look there.

    Raises:
        UnknownNameError: As :func:`open_backend`.
        BackendError: As :func:`open_backend`.
    """
    return adapted_class(load_backend(name))


def load_backend(name: str) -> Callable[[Setup], Any]:
    """What makes the backend ``name``, imported.

    Raises:
        UnknownNameError: As :func:`open_backend`.
        BackendError: As :func:`open_backend`.
    """
    path = BACKENDS.get(name, name)
    module, colon, attribute = path.partition(":")
    if not colon:
        module, _, attribute = path.rpartition(".")
    if not module or not attribute:
        raise UnknownNameError.of("default_backend", name, [*BACKENDS, "a dotted path 'package.module:Class'"])
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise BackendError(f"backend {name!r} can't be imported: {error!r}") from error
    if not callable(found):
        raise BackendError(f"backend {name!r}: got {type(found).__name__}, expected a class")
    return cast("Callable[[Setup], Any]", found)
