"""Micro-batches under a cap on tokens, from lengths alone: what ``rearrange_micro_batches`` does between its batch and
its ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from probe._check import whole_number
from probe.core.balancing.partition import Array, Ints, calculate_workload, ceildiv, karmarkar_karp, pack, pack_into
from probe.errors import CapacityError, InputError, UnknownNameError

Balance = Literal["tokens", "workload"]


@dataclass(frozen=True)
class Options:
    """What the caller of ``rearrange_micro_batches`` asked for, see there."""

    max_token_len: int
    dp_group: Any = None
    num_batches_divided_by: int | None = None
    same_micro_num_in_dp: bool = True
    min_num_micro_batch: int | None = None
    balance: Balance = "workload"
    strict: bool = True
    use_dynamic_bsz_balance: bool = True
    force_group_size: int = 1
    packed: bool = False

    def check(self) -> None:
        """Raise where a value can't be used."""
        for name, least in (("max_token_len", 1), ("force_group_size", 1)):
            whole_number(name, getattr(self, name), least)
        for name in ("num_batches_divided_by", "min_num_micro_batch"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)
        if self.balance not in ("tokens", "workload"):
            raise UnknownNameError.of("balance", self.balance, ("tokens", "workload"))

    def told(self) -> dict[str, Any]:
        """All that decides the cut, by name: with the lengths and the number of parts it can be made again."""
        found = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "dp_group"}
        agreed = self.dp_group is not None and self.same_micro_num_in_dp
        size = getattr(self.dp_group, "size", None)
        ranks = {"dp_size": int(size())} if agreed and callable(size) else {}
        return found | {"counts_agreed": agreed} | ranks


@dataclass
class Units:
    """What is packed: rows, or groups of neighbouring rows."""

    lengths: list[int]
    width: int | None
    size: int
    tokens: Ints
    weights: Array
    workload: list[int]

    @classmethod
    def of(cls, lengths: list[int], width: int | None, options: Options) -> Units:
        """Of rows of ``lengths``; raises :class:`InputError` where they can't be grouped."""
        size = options.force_group_size
        if len(lengths) % size:
            raise InputError(
                f"force_group_size: got {size} for {len(lengths)} rows, expected a divisor of {len(lengths)}"
            )
        rows = np.array(lengths, dtype=np.int64)
        tokens = rows.reshape(-1, size).sum(axis=1)
        workload = calculate_workload(rows)
        weights = tokens if options.balance == "tokens" else workload.reshape(-1, size).sum(axis=1)
        return cls(lengths, width, size, tokens, weights, workload.tolist())

    def rows(self, unit: int) -> range:
        """Rows of a unit."""
        return range(unit * self.size, (unit + 1) * self.size)

    def check_fit(self, cap: int) -> None:
        """Raise :class:`CapacityError` where a unit is above the cap."""
        if not len(self.tokens) or (largest := int(self.tokens.argmax())) < 0 or self.tokens[largest] <= cap:
            return
        rows = self.rows(largest)
        what = f"row {rows[0]}" if self.size == 1 else f"the group of rows {rows[0]} to {rows[-1]}"
        raise CapacityError(
            f"max_token_len: {what} has {self.tokens[largest]} tokens, above the cap of {cap}; "
            "raise the cap, shorten the sequence, or pass strict=False"
        )


def fitting_parts(units: Units, options: Options) -> list[list[int]]:
    """As few parts of units as the cap allows."""
    n, cap = len(units.tokens), options.max_token_len
    if not n:
        return []
    if not options.strict:
        count = min(n, max(1, ceildiv(int(units.tokens.sum()), cap), min(n, options.min_num_micro_batch or 1)))
        return karmarkar_karp(units.weights, count, equal_size=False)
    units.check_fit(cap)
    return pack(units.tokens, units.weights, cap, at_least=min(n, options.min_num_micro_batch or 1))


def filled_parts(units: Units, fitting: list[list[int]], count: int, options: Options) -> list[list[int]]:
    """``count`` lists of rows: the units balanced again over more parts, and empty ones where there are too few."""
    n = len(units.tokens)
    filled = min(count, n)
    parts = fitting
    if filled > len(fitting):
        if options.strict:
            parts = pack_into(units.tokens, units.weights, options.max_token_len, filled, fitting)
        else:
            parts = karmarkar_karp(units.weights, filled, equal_size=False)
    if options.use_dynamic_bsz_balance:
        parts = sorted(parts, key=lambda part: (-units.weights[part].sum().item(), min(part)))
    else:
        parts = sorted(parts, key=min)
    if units.size == 1:
        rows = [sorted(part) for part in parts]
    else:
        rows = [sorted(row for unit in part for row in units.rows(unit)) for part in parts]
    return rows + [[] for _ in range(count - len(rows))]
