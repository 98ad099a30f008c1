"""Transformers' ``Trainer``, and with it every trainer that extends it, observed as it is.

* A *step* is one optimizer step, under the number that the trainer logs it with (``state.global_step`` after it). It
  begins as its batches are fetched and lasts until those of the next one are, so that logging, evaluation and saving
  are in it, each a phase.
* A *micro-batch* is from ``compute_loss`` to the end of ``training_step``: forward and backward. What it is made of is
  what ``_prepare_inputs`` gave, the dict that ``compute_loss`` receives.
* The phase ``update`` is from the first micro-batch to the end of the optimizer's step. Generation, which trainers of
  TRL do inside ``training_step``, ends it, and the next micro-batch begins another.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

from probe.adapters.lengths import Arrivals
from probe.adapters.seams import Call, Seam
from probe.adapters.telling import drop_step, end_step, follow_step, session
from probe.adapters.told_batches import Rule, ToldBatch
from probe.adapters.trl_packing import evaluation_packer_of, packer_of, tell_waiting
from probe.guard import on_error
from probe.hooks import current_scope, emit, phase, point, scope

LOG: Final = point("session.log", "a trainer logs the metrics of a step; carries metrics and step")

#: What a function of a trainer tells: it yields once, while the function runs.
Telling = Generator[None, None, None]


class Prepared:
    """What a trainer has prepared for its model, without keeping its tensors alive.

    Args:
        inputs: A mapping of names to tensors and other things; of anything else nothing is known.
    """

    def __init__(self, inputs: Any) -> None:
        self._columns = {name: _held(inputs[name]) for name in inputs} if isinstance(inputs, Mapping) else {}

    def now(self) -> dict[str, Any]:
        """It, as a dict; an empty one where any of its tensors has gone."""
        found = {name: column() for name, column in self._columns.items()}
        return {} if any(one is _GONE for one in found.values()) else found


def _held(value: Any) -> Callable[[], Any]:
    try:
        reference = weakref.ref(value)
    except TypeError:  # None, a number, a list
        return lambda: value
    return lambda: _GONE if (found := reference()) is None else found


_GONE: Final = object()


class Loop:
    """Where one trainer is, on one thread.

    Args:
        trainer: A ``Trainer``.

    Attributes:
        inputs: What ``_prepare_inputs`` gave, until ``compute_loss`` begins. Its tensors are the trainer's to keep:
            those that TRL prepares to generate from go before a loss is computed.
        count: Micro-batches of the step; None where that isn't known.
        evaluated: Batches of the evaluation that have been computed; None outside of one.
        training: Whether it is inside ``training_step``.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = weakref.ref(trainer)  # its model's memory isn't ours to keep
        self.inputs: Prepared | None = None
        self.count: int | None = None
        self.evaluated: int | None = None
        self.training = False
        self._computed = 0
        self._step: int | None = None
        self._batch: ToldBatch | None = None
        self._evaluation: ToldBatch | None = None
        self._update: scope | None = None
        self._optimizer: scope | None = None
        self._micro_batch: scope | None = None
        self._arrivals = Arrivals()

    @property
    def trainer(self) -> Any:
        """The trainer, None where nobody has it any more."""
        return self._trainer()

    @property
    def computing(self) -> bool:
        """Whether it is between the beginning of ``compute_loss`` and the end of its micro-batch."""
        return self._micro_batch is not None

    def begin_step(self) -> None:
        """The batches of the next step are fetched: the step before ends, unless the user's own code says its steps."""
        self.end_update()
        open_now = session()
        if open_now is None or (current_scope().step is not None and open_now.steps.begun is None):
            return
        self._step = int(self.trainer.state.global_step) + 1
        follow_step(self._step)
        tell_waiting()

    def fetched(self, batches: int) -> None:
        """The batches of the step are there.

        Args:
            batches: How many.
        """
        self._computed = 0
        self.count = batches if not _generates_within(self.trainer.args) else None

    def begin_micro_batch(self) -> None:
        """``compute_loss`` begins."""
        given, self.inputs = self.inputs, None
        inputs = None if given is None else given.now()
        if not self.training and (self.evaluated is None or inputs is None):
            return
        self.end_micro_batch()
        if self.training and self._update is None:
            self._update = _entered(scope("phase", "update", phase="update"))
            self._batch = self._begun(lambda: packer_of(self.trainer), self.count)
        batch = self._batch if self.training else self._evaluation
        index = self._computed if self.training else self.evaluated or 0
        if batch is not None:
            self._micro_batch = _entered(batch.micro_batch(index, inputs))
        if self.training:
            self._computed += 1
        else:
            self.evaluated = index + 1

    def _begun(self, rule: Callable[[], Rule], count: int | None) -> ToldBatch:
        return ToldBatch(self._arrivals, type(self.trainer).__name__, rule, count)

    @contextlib.contextmanager
    def evaluation(self, loader: Any) -> Generator[None, None, None]:
        """The block computes the batches of ``loader`` without training on them.

        Args:
            loader: What gives them.
        """
        self.end_update()
        outer = self.evaluated, self._evaluation, self.training
        self.evaluated, self.training = 0, False
        self._evaluation = self._begun(lambda: evaluation_packer_of(self.trainer, loader), None)
        try:
            with phase("evaluate"):
                with on_error(self.end_micro_batch):
                    yield
                self.end_micro_batch()
                self._evaluation.end()
        finally:
            (self.evaluated, self._evaluation, self.training), self.inputs = outer, None

    def end_micro_batch(self, error: BaseException | None = None) -> None:
        """Forward and backward are done.

        Args:
            error: What has ended them, None where nothing was raised.
        """
        opened, self._micro_batch = self._micro_batch, None
        _leave(opened, error)
        self._arrivals.deliver()

    def begin_optimizer(self) -> None:
        """The optimizer's step begins."""
        self.end_optimizer()
        self._optimizer = _entered(scope("phase", "optimizer_step", phase="optimizer_step"))

    def end_optimizer(self, error: BaseException | None = None) -> None:
        """The optimizer's step has ended.

        Args:
            error: What has ended it, None where nothing was raised.
        """
        opened, self._optimizer = self._optimizer, None
        _leave(opened, error)

    def end_update(self, error: BaseException | None = None) -> None:
        """What follows is no part of the update.

        Args:
            error: What has ended the update, None where nothing was raised.
        """
        self.end_micro_batch(error)
        self.end_optimizer(error)
        opened, self._update = self._update, None
        if self._batch is not None and error is None:
            self._batch.end()
        self._batch = None
        _leave(opened, error)

    def close(self, error: BaseException | None = None) -> None:
        """The training has ended. A step for which there was no batch any more was none.

        Args:
            error: What has ended it, None where nothing was raised.
        """
        self.end_update(error)
        if self._step is None:
            return
        trainer = self.trainer
        if trainer is not None and self._step > int(trainer.state.global_step) and not self._computed:
            drop_step()
        else:
            end_step()
        self._step = None


class _Here(threading.local):
    loop: Loop | None = None


_here: Final = _Here()


def loop_of(trainer: Any) -> Loop:
    """Where this trainer is on this thread.

    Args:
        trainer: A ``Trainer``.
    """
    found = _here.loop
    if found is None or found.trainer is not trainer:
        found = _here.loop = Loop(trainer)
    return found


def current_loop() -> Loop | None:
    """Where the trainer is that this thread is in, None where it is in none."""
    return _here.loop


def finish(error: BaseException | None = None) -> None:
    """The training that this thread is in has ended.

    Args:
        error: What has ended it, None where nothing was raised.
    """
    found, _here.loop = _here.loop, None
    if found is not None:
        found.close(error)


def _entered(opened: scope) -> scope:
    opened.__enter__()
    return opened


def _leave(opened: scope | None, error: BaseException | None = None) -> None:
    if opened is not None:
        opened.__exit__(None if error is None else type(error), error, None)


def _generates_within(arguments: Any) -> bool:
    """Whether a step's micro-batches come from several generations, each of which ends an update."""
    for_each = getattr(arguments, "steps_per_generation", None)
    if not for_each:
        return False
    each: int = for_each * (getattr(arguments, "num_iterations", None) or 1)
    return bool(each % arguments.gradient_accumulation_steps)


# -------------------------------------------------------------------------------------------------- the functions


def _train(call: Call) -> Telling:
    outer = _here.loop
    _here.loop = Loop(call.args[0])
    try:
        with on_error(finish):
            yield
    finally:
        finish()
        _here.loop = outer


def _fetch(call: Call) -> Telling:
    loop = loop_of(call.args[0])
    loop.begin_step()
    with phase("data"):
        yield
    loop.fetched(len(call.result[0]))


def _training_step(call: Call) -> Telling:
    loop = loop_of(call.args[0])
    outer, loop.training, loop.inputs = loop.training, True, None
    try:
        with on_error(loop.end_micro_batch):
            yield
    finally:
        loop.training, loop.inputs = outer, None
        loop.end_micro_batch()


def prepared(call: Call) -> None:
    """``_prepare_inputs`` has given what ``compute_loss`` receives.

    Args:
        call: Of that function of a trainer.
    """
    loop = _here.loop
    if loop is not None and loop.trainer is call.args[0] and (loop.training or loop.evaluated is not None):
        loop.inputs = Prepared(call.result)


def _loss_begins(call: Call) -> None:
    loop = _here.loop
    if loop is not None and loop.trainer is call.args[0]:
        loop.begin_micro_batch()


def _evaluate(call: Call) -> Telling:
    with loop_of(call.args[0]).evaluation(call.argument("dataloader")):
        yield


def _save(call: Call) -> Telling:
    del call
    with phase("save_checkpoint"):
        yield


def _log(call: Call) -> Telling:
    metrics = dict(call.argument("logs", {}))
    step = int(call.args[0].state.global_step)
    yield
    if LOG.listeners:
        emit(LOG, metrics=metrics, step=step)


def _predicted(call: Call) -> Telling:
    del call
    if _here.loop is not None:
        _here.loop.end_micro_batch()
    yield


def _before_optimizer(call: Call) -> None:
    del call
    if _here.loop is not None:
        _here.loop.begin_optimizer()


def _after_optimizer(call: Call) -> Telling:
    del call
    if _here.loop is not None:
        _here.loop.end_optimizer()
    yield


def _after_step(call: Call) -> Telling:
    del call
    if _here.loop is not None:
        _here.loop.end_update()
    yield


_TRAINER: Final = "transformers.trainer"
_CALLBACKS: Final = "transformers.trainer_callback"

#: Where Transformers is observed.
SEAMS: Final = (
    Seam(_TRAINER, "Trainer._inner_training_loop", "training", _train),
    Seam(_TRAINER, "Trainer.get_batch_samples", "steps", _fetch),
    Seam(_TRAINER, "Trainer.training_step", "micro-batches", _training_step),
    Seam(_TRAINER, "Trainer._prepare_inputs", "what compute_loss receives", prepared, begins=False),
    Seam(_TRAINER, "Trainer.compute_loss_context_manager", "losses", _loss_begins, begins=False),
    Seam(_TRAINER, "Trainer.evaluation_loop", "evaluation", _evaluate),
    Seam(_TRAINER, "Trainer._save_checkpoint", "checkpoints", _save, begins=False),
    Seam(_TRAINER, "Trainer.log", "metrics", _log, begins=False),
    Seam(_CALLBACKS, "CallbackHandler.on_pre_optimizer_step", "optimizer", _before_optimizer, begins=False),
    Seam(_CALLBACKS, "CallbackHandler.on_optimizer_step", "optimizer's end", _after_optimizer, begins=False),
    Seam(_CALLBACKS, "CallbackHandler.on_step_end", "updates", _after_step, begins=False),
    Seam(_CALLBACKS, "CallbackHandler.on_prediction_step", "evaluated batches", _predicted, begins=False),
)
