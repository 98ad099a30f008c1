"""``Trainer(callbacks=[probe.lightning.Callback(…)])``: a training of Lightning is recorded, nothing is patched.

``Callback`` is a :class:`Recording` and a callback of the package ``lightning`` or ``pytorch_lightning``, whichever has
been imported when it is first asked for; of both where both have been.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

from probe.adapters import automatic
from probe.adapters.lightning import HOOKS, heard
from probe.adapters.seams import Armed, Seam, ToldCall
from probe.errors import MissingDependencyError
from probe.exits import code_of
from probe.session import Session, current_session, start

_PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")


class Recording:
    """What ``Callback`` is beside a callback of Lightning's: it records steps, micro-batches, evaluation and memory.

    A session that is open already is used and stays open. Otherwise one begins as the trainer is set up, and ends as
    it is torn down. Beside ``probe.attach("lightning")`` nothing is told twice; checkpoints as a phase and the metrics
    that Lightning's loggers get are seen by ``attach`` alone.

    Args:
        project: As of :func:`probe.start`.
        experiment: Likewise.
        **options: Likewise; they are checked as the trainer is set up.

    Attributes:
        session: The session that is recorded in, None before the trainer is set up and after it is torn down.
    """

    tells_probe = True

    def __init__(self, project: str = "lightning", experiment: str | None = None, **options: Any) -> None:
        super().__init__()
        self.session: Session | None = None
        self._given = (project, experiment, options)
        self._own = False
        where = Seam("probe.lightning", "Callback", "hooks", heard)
        self._armed = Armed(where, automatic.is_recording)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to the processes that Lightning starts: how to begin a session, not the session."""
        return {"_given": self._given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        project, experiment, options = state["_given"]
        type(self).__init__(self, project, experiment, **options)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin to record, unless somebody has.

        Args:
            trainer: Lightning's.
            pl_module: Likewise.
            stage: Likewise.

        Raises:
            InputError: An option is none of :func:`probe.start`.
            RunError: The run directory can't be made.
        """
        del trainer, pl_module, stage  # a hook is given more than this one needs
        if self.session is not None:
            return
        self.session = current_session()
        if self.session is None:
            project, experiment, options = self._given
            self.session = start(project, experiment, **options)
            self._own = True

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the session that :meth:`setup` began.

        Args:
            trainer: Lightning's.
            pl_module: Likewise.
            stage: Likewise.
        """
        del trainer, pl_module, stage  # as above
        self._close(0)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End step and session.

        Args:
            trainer: Lightning's.
            pl_module: Likewise.
            exception: Likewise.
        """
        del pl_module  # as above
        self._hear(trainer, "on_exception", exception)
        self._close(code_of(exception))

    def _close(self, exit_code: int) -> None:
        opened, self.session = self.session, None
        if self._own and opened is not None:
            self._own = False
            opened.close(exit_code)

    def _hear(self, trainer: Any, hook: str, *given: Any) -> None:
        if not self._armed.off:
            with ToldCall(self._armed, self._hear, (trainer, hook, *given), {}):
                pass


def _hook(name: str) -> Any:
    def run(self: Recording, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        del pl_module  # what is told is the trainer's
        self._hear(trainer, name, *args, *kwargs.values())

    run.__name__, run.__qualname__ = name, f"Recording.{name}"
    run.__doc__ = "Told to probe."
    return run


for _name in HOOKS.keys() - {"on_exception"}:
    setattr(Recording, _name, _hook(_name))


if TYPE_CHECKING:

    class Callback(Recording):
        """As it is made at run time, where it is known which package there is."""


def __getattr__(name: str) -> Any:
    if name != "Callback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = type(name, (Recording, *_bases()), {"__module__": __name__, "__doc__": Recording.__doc__})
    globals()[name] = made
    return made


def _bases() -> list[type]:
    """Lightning's own class of callbacks, of each package that has been imported; else of the first that can be."""
    imported = [name for name in _PACKAGES if name in sys.modules]
    for name in imported or _PACKAGES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        return [sys.modules[one].Callback for one in imported or [name]]
    raise MissingDependencyError(
        "probe.lightning.Callback needs the package 'lightning' or 'pytorch-lightning'; "
        "install it with: pip install lightning"
    )
