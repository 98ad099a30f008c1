"""The settings of one phase that a person can turn to see what comes of it, by the names of their own configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from probe.analysis.advice.asking import WIDEST
from probe.analysis.advice.keys import framework, is_count, key_of, rows_of_key, switches_beside, value_of
from probe.analysis.what_if.cutting import Dealing, parallel_of, recorded_cut
from probe.core.balancing.replay import Cut

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Caps and rows to choose from, at most: a slider is no longer than a hand can use.
MOST_CHOICES: Final = 128
#: Caps are multiples of it where they are large.
_ROUND: Final = 256

_PARALLEL_SIZE: Final = "ulysses_sequence_parallel_size"
_ACTOR: Final = ("actor_rollout_ref.actor", "fsdp_config")
_CRITIC: Final = ("critic", "fsdp")
#: Where verl has the size of sequence parallelism, by phase: the part of the configuration, and its engine's in it. Old
#: log-probs are worked out by the actor.
_PARALLEL: Final = {
    "update_actor": _ACTOR,
    "old_log_prob": _ACTOR,
    "ref": ("actor_rollout_ref.ref", "fsdp_config"),
    "update_critic": _CRITIC,
    "values": _CRITIC,
}


@dataclass(frozen=True)
class Adjustable:
    """A setting of one phase.

    Attributes:
        name: Of :class:`probe.analysis.what_if.settings.Settings`.
        key: Dotted, of the user's configuration.
        value: What it was; where the phase was cut the other way (fixed or dynamic), what the configuration has or a
            value to begin with.
        choices: Values that can be chosen, ascending; ``value`` is among them.
        free: Whether any other whole number from 1 on can be asked for as well.
        known: Whether ``value`` is what the run was configured with.
        rows: Rows of a micro-batch that one of the key's value stands for.
        product: Another key, and what the two come to when multiplied: it goes down as this one goes up.
        beside: Other keys that have to be turned with this one, and say what it says.
    """

    name: str
    key: str
    value: int | bool
    choices: tuple[int | bool, ...]
    free: bool = False
    known: bool = True
    rows: int = 1
    product: tuple[str, int] | None = None
    beside: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "name": self.name,
            "key": self.key,
            "value": self.value,
            "choices": list(self.choices),
            "free": self.free,
            "known": self.known,
            "rows": self.rows,
            "product": None if self.product is None else list(self.product),
            "beside": list(self.beside),
        }


def adjustable(run: Run, dealing: Dealing) -> tuple[Adjustable, ...]:
    """What can be turned of the batch of one step, role and phase.

    Args:
        run: The run, for its configuration.
        dealing: Of the batch.

    Returns:
        Nothing where it isn't known who cut the batch, or the framework has no key for it.
    """
    batch = dealing.batch
    cut = recorded_cut(batch.rounds[0].calls[0])
    if cut is None:
        return ()
    found = [_cap(run, dealing, cut), _rows(run, dealing, cut), _dynamic(run, dealing, cut)]
    found += [_parallel(run, dealing), _balance(run, dealing)]
    return tuple(one for one in found if one is not None)


def _cap(run: Run, dealing: Dealing, cut: Cut) -> Adjustable | None:
    batch = dealing.batch
    key = key_of(run, "cap_tokens", batch.phase)
    if key is None or (cut.cap_tokens is None and not _switches(run, dealing, cut)):
        return None
    parallel = parallel_of(batch.rounds[0])
    calls = [call for one in batch.rounds for call in one.data_ranks]
    longest = max((max(call.lengths, default=1) for call in calls), default=1)
    whole = max(sum(call.lengths) for call in calls)
    if cut.cap_tokens is not None:
        value = cut.cap_tokens // parallel
    else:
        configured = value_of(run, key)
        fullest = max(sum(call.lengths[row] for row in part) for call in calls for part in call.parts)
        value = configured if is_count(configured) and configured * parallel >= longest else -(-fullest // parallel)
    low, high = -(-longest // parallel), max(value, min(WIDEST * value, -(-whole // parallel)))
    step = _ROUND if value > 16 * _ROUND else max(1, value // 64)
    while (high - low) / step > MOST_CHOICES - 2:
        step *= 2
    grid = range(-(-low // step) * step, -(-high // step) * step + 1, step)
    choices = tuple(sorted({value, *grid} - {0}))
    return Adjustable("cap_tokens", key, value, choices, free=True, known=cut.cap_tokens is not None)


def _rows(run: Run, dealing: Dealing, cut: Cut) -> Adjustable | None:
    batch = dealing.batch
    key = key_of(run, "rows_each", batch.phase)
    fixed = cut.packer.endswith("fixed_rows")
    if key is None or not (fixed or _switches(run, dealing, cut)):
        return None
    calls = [call for one in batch.rounds for call in one.data_ranks]
    units = math.gcd(*(len(call.lengths) // cut.group_size for call in calls))
    now = cut.rows_each if fixed else value_of(run, key)
    if not is_count(now) or units % now:
        if fixed:
            return None
        mean = max(1, units * len(calls) // max(1, sum(len(call.parts) for call in calls)))
        now = max(one for one in _divisors(units) if one <= mean)
    each, product = rows_of_key(run, key, now)
    values = {one // each for one in _divisors(units) if one % each == 0}
    if product is not None:
        values = {one for one in values if product[1] % one == 0}
    choices = tuple(sorted({*values, now // each}))[:MOST_CHOICES]
    return Adjustable("rows_each", key, now // each, choices, known=fixed, rows=each, product=product)


def _dynamic(run: Run, dealing: Dealing, cut: Cut) -> Adjustable | None:
    key = key_of(run, "dynamic", dealing.batch.phase)
    if key is None or not _switches(run, dealing, cut):
        return None
    now = not cut.packer.endswith("fixed_rows")
    beside = tuple(switches_beside(run, {key: not now}))
    return Adjustable("dynamic", key, now, (False, True), beside=beside)


def _switches(run: Run, dealing: Dealing, cut: Cut) -> bool:
    """Whether a key turns tokens under a cap into fixed rows and back: verl's does."""
    known = key_of(run, "dynamic", dealing.batch.phase) is not None
    return known and framework(run) == "verl" and cut.packer.startswith("verl.")


def _parallel(run: Run, dealing: Dealing) -> Adjustable | None:
    first = dealing.batch.rounds[0]
    key = parallel_key(run, dealing.batch.phase) if framework(run) == "verl" else None
    now = parallel_of(first)
    choices = tuple(_divisors(len(first.data_ranks) * now))
    if key is None or len(choices) < 2 or now not in choices:
        return None
    return Adjustable("sp_size", key, now, choices)


def parallel_key(run: Run, phase: str | None) -> str | None:
    """verl's key for the ranks that share a sequence: the engine's, where the configuration has it.

    The one beside the engine is deprecated in verl 0.9. Above 1 it still overrides the engine's, but not a critic's.

    Args:
        run: Of verl.
        phase: Of it.

    Returns:
        A dotted key; None for a phase that has none.
    """
    part, engine = _PARALLEL.get(phase or "", ("", ""))
    if not part:
        return None
    old, new = f"{part}.{_PARALLEL_SIZE}", f"{part}.{engine}.{_PARALLEL_SIZE}"
    told = value_of(run, old)
    overrides = part != "critic" and is_count(told) and told > 1
    return old if overrides or value_of(run, new) is None else new


def _balance(run: Run, dealing: Dealing) -> Adjustable | None:
    key = key_of(run, "balance", dealing.batch.phase)
    if key is None or len(dealing.batch.rounds[0].data_ranks) < 2:
        return None
    return Adjustable("balance", key, dealing.batch.dealt is not None, (False, True))


def _divisors(number: int) -> list[int]:
    small = [one for one in range(1, math.isqrt(max(number, 1)) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})
