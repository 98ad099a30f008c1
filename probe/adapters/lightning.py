"""Lightning's ``Trainer``, observed as it is: through the one function that calls the hooks of all callbacks.

* A *step* is one optimizer step, under the number that ``trainer.global_step`` has after it. It begins with its first
  batch and lasts until the first batch of the next one: fetching batches, validation and saving are in the one before.
* A *micro-batch* is a batch: from ``on_train_batch_start`` to ``on_before_optimizer_step``, or to
  ``on_train_batch_end`` where gradients are accumulated or the module optimises by its own hand.

:class:`probe.lightning.Callback` tells the same without patching anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from typing import Any, Final
from weakref import WeakKeyDictionary

from probe.adapters.lengths import Arrivals
from probe.adapters.loaders import rule_of_loader
from probe.adapters.seams import Call, Seam
from probe.adapters.telling import end_step, follow_step, session
from probe.adapters.told_batches import Rule, ToldBatch
from probe.hooks import current_scope, emit, phase, point, scope

LOG: Final = point("session.log", "a trainer logs the metrics of a step; carries metrics and step")


class Fit:
    """Where one trainer is."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._computed = 0
        self._evaluated = 0
        self._phase: scope | None = None  # "update", "evaluate" or "predict"
        self._optimizer: scope | None = None
        self._micro_batch: scope | None = None
        self._batch: ToldBatch | None = None
        self._loader = 0  # of an evaluation: the number of the one that its batches come from
        self._arrivals = Arrivals()

    def train_batch_begins(self, trainer: Any, batch: Any, batch_idx: int) -> None:
        """A batch is on its device, its forward and backward follow."""
        del batch_idx  # micro-batches are counted from the begin of their step
        number = int(trainer.global_step) + 1
        if number != self._step:
            self.leave()
            self._begin_step(number)
        self._enter_phase("update")
        self._begin_micro_batch(trainer, batch, self._computed)
        self._computed += 1

    def optimizer_begins(self, trainer: Any, optimizer: Any) -> None:
        """Gradients are there. A module that optimises by its own hand may go on with another forward."""
        del optimizer  # whichever it is
        if self._micro_batch is None or not getattr(trainer.lightning_module, "automatic_optimization", True):
            return
        self._end_micro_batch()
        self._optimizer = scope("phase", "optimizer_step", phase="optimizer_step")
        self._optimizer.__enter__()

    def train_batch_ends(self, trainer: Any, *_: Any) -> None:
        """Forward, backward and, where gradients aren't accumulated further, the optimizer's step are done."""
        self._end_micro_batch()
        if self._step is not None and int(trainer.global_step) >= self._step:
            self.leave()

    def evaluation_begins(self, trainer: Any) -> None:
        """Validation or a test."""
        del trainer
        self.leave()
        self._enter_phase("evaluate")
        self._evaluated = self._loader = 0

    def prediction_begins(self, trainer: Any) -> None:
        """``trainer.predict``."""
        del trainer
        self.leave()
        self._enter_phase("predict")
        self._evaluated = self._loader = 0

    def batch_begins(self, trainer: Any, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> None:
        """A batch of an evaluation or prediction. Those of each loader count anew."""
        del batch_idx  # they are counted here
        if self._phase is None:
            return
        if dataloader_idx != self._loader:
            self._end_micro_batch()
            self._end_batch()
            self._evaluated, self._loader = 0, dataloader_idx
        self._begin_micro_batch(trainer, batch, self._evaluated, dataloader_idx)
        self._evaluated += 1

    def batch_ends(self, trainer: Any, *_: Any) -> None:
        """A batch of an evaluation or prediction has been computed."""
        del trainer
        self._end_micro_batch()

    def leave(self, *_: Any) -> None:
        """What follows is no part of the phase."""
        self._leave_phase()

    def failed(self, trainer: Any, exception: BaseException, *_: Any) -> None:
        """An exception has ended the training, in whatever is open."""
        del trainer
        self._leave_phase(exception)
        self.ended()

    def ended(self, *_: Any) -> None:
        """The training has ended."""
        self.leave()
        if self._step is not None:
            self._step = None
            end_step()

    def _begin_step(self, number: int) -> None:
        self._computed = 0
        open_now = session()
        if open_now is None or (current_scope().step is not None and open_now.steps.begun is None):
            self._step = None  # the user's own code says its steps
            return
        self._step = number
        follow_step(number)

    def _leave_phase(self, error: BaseException | None = None) -> None:
        self._end_micro_batch(error)
        if error is None:
            self._end_batch()
        self._batch = None
        opened, self._phase = self._phase, None
        _leave(opened, error)

    def _enter_phase(self, name: str) -> None:
        if self._phase is None:
            self._phase = scope("phase", name, phase=name)
            self._phase.__enter__()

    def _begin_micro_batch(self, trainer: Any, batch: Any, index: int, loader: int | None = None) -> None:
        self._end_micro_batch()
        if self._batch is None:
            source = type(trainer.lightning_module).__name__
            self._batch = ToldBatch(self._arrivals, source, lambda: _rule(trainer, loader))
        self._micro_batch = self._batch.micro_batch(index, batch)
        self._micro_batch.__enter__()

    def _end_batch(self) -> None:
        opened, self._batch = self._batch, None
        if opened is not None:
            opened.end()

    def _end_micro_batch(self, error: BaseException | None = None) -> None:
        opened, self._micro_batch = self._micro_batch, None
        _leave(opened, error)
        opened, self._optimizer = self._optimizer, None
        _leave(opened, error)
        self._arrivals.deliver()


def _leave(opened: scope | None, error: BaseException | None = None) -> None:
    if opened is not None:
        opened.__exit__(None if error is None else type(error), error, None)


def _rule(trainer: Any, loader: int | None) -> Rule:
    """By whose rule batches are made: that of the loader which was given to the trainer.

    Args:
        trainer: Lightning's.
        loader: Of an evaluation or prediction the number of its loader; None for training.
    """
    if loader is None:
        given = rule_of_loader(trainer.train_dataloader)
        more = {"accumulate_grad_batches": trainer.accumulate_grad_batches}
    else:
        stage = "predict" if trainer.predicting else "test" if trainer.testing else "val"
        loaders = getattr(trainer, f"{stage}_dataloaders")
        several = list(loaders.values()) if isinstance(loaders, dict) else loaders
        one = several[loader] if isinstance(several, (list, tuple)) else several
        given, more = rule_of_loader(one), {}
    if "rows_each" not in given:
        return Rule("", given | more)
    version = getattr(sys.modules.get("torch"), "__version__", "")
    return Rule(f"torch {version}".rstrip(), given | more)


#: What a hook of a callback says of a training. All of them are called with the trainer first.
HOOKS: Final[dict[str, Callable[..., None]]] = {
    "on_train_batch_start": Fit.train_batch_begins,
    "on_before_optimizer_step": Fit.optimizer_begins,
    "on_train_batch_end": Fit.train_batch_ends,
    "on_validation_start": Fit.evaluation_begins,
    "on_validation_batch_start": Fit.batch_begins,
    "on_validation_batch_end": Fit.batch_ends,
    "on_validation_end": Fit.leave,
    "on_test_start": Fit.evaluation_begins,
    "on_test_batch_start": Fit.batch_begins,
    "on_test_batch_end": Fit.batch_ends,
    "on_test_end": Fit.leave,
    "on_predict_start": Fit.prediction_begins,
    "on_predict_batch_start": Fit.batch_begins,
    "on_predict_batch_end": Fit.batch_ends,
    "on_predict_end": Fit.leave,
    "on_train_end": Fit.ended,
    "on_exception": Fit.failed,
}

_fits: Final[WeakKeyDictionary[Any, Fit]] = WeakKeyDictionary()


def heard(call: Call) -> Generator[None, None, None]:
    """A hook is called.

    Args:
        call: Its arguments are the trainer, the hook's name, and what the hook is given behind trainer and module.
    """
    hear = HOOKS.get(call.args[1])
    if hear is None:
        return
    fit = _fits.setdefault(call.args[0], Fit())
    hear(fit, call.args[0], *call.args[2:])
    yield


def _hooks(call: Call) -> Generator[None, None, None]:
    """All callbacks are called; one of probe's own among them has told already what it tells."""
    if not any(getattr(one, "tells_probe", False) for one in call.args[0].callbacks):
        yield from heard(call)


def _save(call: Call) -> Generator[None, None, None]:
    del call
    with phase("save_checkpoint"):
        yield


def _log(call: Call) -> None:
    metrics = call.argument("metrics")
    if LOG.listeners and metrics:  # Lightning's own number for a logger counts from 0; this one is the step's
        emit(LOG, metrics=dict(metrics), step=int(call.args[0].trainer.global_step))


def _of_package(package: str) -> tuple[Seam, ...]:
    logger = f"{package}.trainer.connectors.logger_connector.logger_connector"
    return (
        Seam(f"{package}.trainer.call", "_call_callback_hooks", "hooks", _hooks),
        Seam(f"{package}.trainer.trainer", "Trainer.save_checkpoint", "checkpoints", _save, begins=False),
        Seam(logger, "_LoggerConnector.log_metrics", "metrics", _log, begins=False),
    )


#: Where the package ``lightning`` is observed.
SEAMS: Final = _of_package("lightning.pytorch")

#: Where the package of the older name is observed.
PYTORCH_LIGHTNING: Final = _of_package("pytorch_lightning")
