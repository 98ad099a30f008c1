"""What verl's workers do: the role and phase of each outer method, its mini-batches, and the step that they are in."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any, Final

from probe.adapters.seams import Call, Tell
from probe.adapters.telling import end_step, follow_step, in_step, session
from probe.adapters.verl_settings import setting
from probe.hooks import current_scope, phase, scope
from probe.moments import tell_dealt


class Counts:
    """Where a worker is in what its driver has asked of it.

    Attributes:
        mini_batch: Number of the mini-batch, from 0; None outside of one.
        call: How many batches have been cut into micro-batches since the worker's outer method began.
        supervised: The last step of the SFT trainer, which holds the worker itself; None elsewhere.
        next_step: That begins with the next thing that is asked of the worker; None where that isn't known.
    """

    def __init__(self) -> None:
        self.mini_batch: int | None = None
        self.call = 0
        self.supervised: int | None = None
        self.next_step: int | None = None


#: Of this process: verl runs one outer method at a time.
COUNTS: Final = Counts()


def within(name: str, *, role: str | None = None) -> Tell:
    """A :data:`~probe.adapters.seams.Tell` for an outer method that is the phase ``name``.

    Inside of a phase of the same name, as where a worker hands on to one that it holds, nothing is opened.

    Args:
        name: The phase, by verl's own name for it.
        role: Who works; None inherits.
    """

    def tell(call: Call) -> Generator[None, None, None]:
        del call
        if current_scope().phase == name:
            yield
            return
        with _in_next_step(), phase(name, role=role):
            yield

    return tell


def set_up(call: Call) -> Generator[None, None, None]:
    """A worker makes its models, and says which of the roles it has: ``actor_rollout_ref``."""
    open_now, role = session(), getattr(call.args[0], "role", None)
    if open_now is not None and isinstance(role, str):
        open_now.learn(role=role)
    with phase("init_model"):
        yield


def inside(name: str) -> Tell:
    """A Tell for a part of a phase, which stays that phase.

    Args:
        name: What the part is called.
    """

    def tell(call: Call) -> Generator[None, None, None]:
        del call
        with scope("watch", name):
            yield

    return tell


def log_prob(call: Call) -> Generator[None, None, None]:
    """The actor's log-probabilities; with its adapter switched off it stands for the reference."""
    is_reference = _is_set(call.argument("data"), "no_lora_adapter")
    name, role = ("ref", "ref") if is_reference else ("old_log_prob", "actor")
    yield from _generator(within(name, role=role)(call))


def update_weights(call: Call) -> Generator[None, None, None]:
    """Weights go to the rollout, which ends a step. Its argument is the only place where a worker learns of steps."""
    with in_step(), phase("update_weights", role="actor"):
        yield
    end_step()
    step = call.argument("global_steps")
    COUNTS.next_step = None if step is None else int(step) + 1


def mini_batches(call: Call) -> Generator[None, None, None]:
    """A batch is trained on in mini-batches; a worker that nobody holds is the critic."""
    COUNTS.mini_batch = -1
    try:
        yield from _generator(_own_phase(call, "update_critic", "train_mini_batch"))
    finally:
        COUNTS.mini_batch = None


def train_batch(call: Call) -> Generator[None, None, None]:
    """One mini-batch, or the whole batch of a step."""
    if COUNTS.mini_batch is not None:
        COUNTS.mini_batch += 1
    elif COUNTS.supervised is not None and current_scope().phase is None:
        _begin_supervised_step(call)
    yield from _generator(_own_phase(call, "update_critic", "train_batch"))


def infer_batch(call: Call) -> Generator[None, None, None]:
    """Log-probabilities or values; whose, the outer method has said."""
    yield from _generator(_own_phase(call, "values", "infer_batch"))


def moved(call: Call) -> Generator[None, None, None]:
    """Parameters, gradients or the optimizer's state go to a device or leave it."""
    with scope("watch", f"to {call.argument('device')}"):
        yield


# ------------------------------------------------------------------------------------------------------ supervised


def resumed(call: Call) -> None:
    """The SFT trainer has looked for a checkpoint: the step to go on from, 0 where it begins anew."""
    COUNTS.supervised = int(call.result or 0)


def _begin_supervised_step(call: Call) -> None:
    """Each batch of the SFT trainer is a step, counted as the trainer does; the one before it ends.

    It comes with the lengths of all ranks' rows, rank after rank: the sampler has dealt them without regard to length.
    """
    COUNTS.supervised = (COUNTS.supervised or 0) + 1
    follow_step(COUNTS.supervised)
    engine, lengths = call.args[0].engine, setting(call.argument("data"), "global_token_num", None)
    if not isinstance(lengths, list) or engine.get_data_parallel_rank() != 0:
        return
    ranks = int(engine.get_data_parallel_size())
    each = len(lengths) // ranks
    parts = [range(rank * each, (rank + 1) * each) for rank in range(ranks)]
    tell_dealt(lengths=[int(one) for one in lengths], partitions=parts, source="verl.SFTTrainer")


def ended(call: Call) -> Generator[None, None, None]:
    """The process group goes: the SFT trainer has ended its last step."""
    del call
    if COUNTS.supervised is not None:
        COUNTS.supervised = None
        end_step()
    yield


def _own_phase(call: Call, of_critic: str, name: str) -> Generator[None, None, None]:
    """A method of a worker that others hold: a part of their phase, or one of its own where there is none."""
    if current_scope().phase is not None:
        with scope("watch", name):
            yield
        return
    config = getattr(call.args[0], "config", None)
    is_critic = getattr(config, "model_type", None) == "value_model"
    with _in_next_step(), phase(of_critic if is_critic else name, role="critic" if is_critic else None):
        yield


@contextlib.contextmanager
def _in_next_step() -> Generator[None, None, None]:
    """Something is asked of the worker: it is in the step that its driver is in."""
    COUNTS.call = 0
    step, COUNTS.next_step = COUNTS.next_step, None
    if step is not None:
        follow_step(step)
    with in_step():
        yield


def _is_set(data: Any, key: str) -> bool:
    """Whether the driver has set ``key`` for this call: it comes with a batch's keys, or in the batch itself."""
    extra = getattr(data, "extra_info", None)
    if isinstance(extra, dict):
        return bool(extra.get(key))
    keys = data.keys() if hasattr(data, "keys") else ()
    return key in keys and bool(data[key])


def _generator(told: Any) -> Generator[None, None, None]:
    """A tell that is known to be a generator."""
    made: Generator[None, None, None] = told
    return made
