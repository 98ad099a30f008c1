"""What a what-if changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from probe._check import whole_number
from probe.core.balancing.capped import Balance
from probe.core.balancing.replay import PACKERS, Cut
from probe.errors import InputError, InputTypeError, UnknownNameError

#: How rows come to ranks: "batch" deals those of a whole batch, as verl's ``balance_batch``; "mini_batch" those of each
#: mini-batch; "none" gives each rank a stretch of them.
Deal = Literal["batch", "mini_batch", "none"]
DEALS: Final = ("batch", "mini_batch", "none")

#: Order of a rank's micro-batches: as its packer has it by work, as the partition came, or by tokens.
Order = Literal["by_work", "as_packed", "largest_first", "smallest_first"]
ORDERS: Final = ("by_work", "as_packed", "largest_first", "smallest_first")

#: What micro-batches are made even in.
EVENED: Final = ("workload", "tokens")

#: Packers under which ranks can agree on the number of micro-batches; under the others they never do.
_AGREEING: Final = (
    "verl.rearrange_micro_batches",
    "seqlen_balancing.rearrange_micro_batches",
    "slime.dynamic_batch_size",
)

#: Rules that share rows equally among ranks; micro-batches aren't cut by them.
_DEALING: Final = ("verl.equal_size", "seqlen_balancing.equal_size")

_WHOLE: Final = ("cap_tokens", "rows_each", "dp_size", "sp_size", "round_to", "group_size", "minimum_count", "divisor")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is to be other than it was; None leaves it.

    Attributes:
        cap_tokens: Most tokens of a micro-batch on one GPU; ranks of sequence parallelism hold it together.
        packer: One of :data:`probe.core.balancing.replay.PACKERS` that cuts micro-batches; those named ``equal_size``
            deal rows to ranks.
        dynamic: True cuts by tokens under ``cap_tokens``, False into fixed rows, ``rows_each`` of them.
        rows_each: Rows of a micro-batch, where it has a fixed number of them.
        balance: How rows come to ranks, see :data:`Deal`.
        dp_size: Number of data-parallel ranks.
        sp_size: Ranks that share a sequence; where ``dp_size`` isn't given, all ranks together stay as many.
        round_to: What is computed on is a multiple of so many tokens: of the width of padded rows, of the sum of packed
            ones.
        order: Of the micro-batches of a rank.
        group_size: So many neighbouring rows stay together.
        evened: What micro-batches under a cap are made even in, "workload" or "tokens": the argument ``balance`` of
            probe's own packer. verl's has no choice.
        strict: Whether the cap holds.
        minimum_count: At least so many micro-batches.
        divisor: The number of micro-batches is a multiple of it.
    """

    cap_tokens: int | None = None
    packer: str | None = None
    dynamic: bool | None = None
    rows_each: int | None = None
    balance: Deal | None = None
    dp_size: int | None = None
    sp_size: int | None = None
    round_to: int | None = None
    order: Order | None = None
    group_size: int | None = None
    evened: Balance | None = None
    strict: bool | None = None
    minimum_count: int | None = None
    divisor: int | None = None

    @classmethod
    def of(cls, changes: Mapping[str, Any]) -> Settings:
        """From names and values.

        Args:
            changes: By the names above.

        Raises:
            UnknownNameError: There is no such setting, packer, balance or order.
            InputError: A number is too small.
            InputTypeError: A number isn't whole; ``dynamic`` or ``strict`` is neither True nor False.
        """
        known = [one.name for one in fields(cls)]
        for name in changes:
            if name not in known:
                raise UnknownNameError.of("what_if", name, known)
        made = cls(**changes)
        for name in _WHOLE:
            if getattr(made, name) is not None:
                whole_number(name, getattr(made, name), 1)
        for name in ("dynamic", "strict"):
            value = getattr(made, name)
            if value is not None and not isinstance(value, bool):
                raise InputTypeError(f"{name}: got {value!r}, expected True or False")
        for name, choices in (
            ("packer", sorted(set(PACKERS) - set(_DEALING))),
            ("balance", DEALS),
            ("order", ORDERS),
            ("evened", EVENED),
        ):
            value = getattr(made, name)
            if value is not None and value not in choices:
                raise UnknownNameError.of(name, value, choices)
        return made

    def told(self) -> dict[str, Any]:
        """What is changed, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}

    @property
    def deals(self) -> bool:
        """Whether other rows come to the ranks than before."""
        return self.balance is not None or self.dp_size is not None or self.sp_size is not None

    def applied(self, cut: Cut | None, *, before: int, parallel: int, ranks: int) -> Cut:
        """What the packer would have been given.

        Args:
            cut: What it was given; None where that isn't known.
            before: Ranks that shared a sequence.
            parallel: Ranks that share one now.
            ranks: Data-parallel ones that cut at the same time.

        Raises:
            InputError: The packer isn't known, or a setting is missing that it needs.
        """
        made = cut
        if self.packer is not None:
            base = cut or Cut(packer=self.packer, lengths=[])
            made = replace(base, packer=self.packer, counts_agreed=self._agreed(cut, self.packer, ranks))
        if self.dynamic is not None:
            made = self._kind(made, ranks)
        if made is None:
            names = ", ".join(sorted(PACKERS))
            raise InputError(
                f"packer: got None and the run recorded none; expected the one that it uses, one of {names}"
            )
        width = made.width_tokens if made.packer.startswith("nemo_rl.") else None  # whose rectangles are no wider
        changes: dict[str, Any] = {"width_tokens": width, "count": made.count if "steps" in made.packer else None}
        if self.cap_tokens is not None:
            changes["cap_tokens"] = self.cap_tokens * parallel
        elif made.cap_tokens is not None:
            changes["cap_tokens"] = made.cap_tokens // before * parallel
        for name in ("rows_each", "group_size", "strict", "minimum_count", "divisor"):
            if getattr(self, name) is not None:
                changes[name] = getattr(self, name)
        if self.evened is not None:
            if not made.packer.startswith("seqlen_balancing."):
                names = ", ".join(name for name in sorted(PACKERS) if name.startswith("seqlen_balancing."))
                raise InputError(f"evened: the packer {made.packer} doesn't take it, expected one of {names}")
            changes["balance"] = self.evened
        if self.order is not None:
            changes["ordered"] = self.order == "by_work"
        if self.round_to is not None:
            changes["pad_multiple"] = self.round_to
        return replace(made, **changes)

    @staticmethod
    def _agreed(cut: Cut | None, packer: str, ranks: int) -> bool:
        """Whether ranks agree on a count: as they did where they could, else wherever they can now."""
        if packer not in _AGREEING:  # nor where one call cuts the rows of all ranks
            return False
        known = cut is not None and cut.packer in _AGREEING and not packer.startswith("slime")
        return cut.counts_agreed if known and cut is not None else ranks > 1

    def _kind(self, cut: Cut | None, ranks: int) -> Cut:
        if cut is None:
            raise InputError(f"dynamic: got {self.dynamic!r}, but the run recorded no packer; give packer= as well")
        fixed = cut.packer.endswith("fixed_rows")
        if self.dynamic and fixed:
            return replace(cut, packer="verl.rearrange_micro_batches", counts_agreed=ranks > 1)
        if not self.dynamic and not fixed:
            return replace(cut, packer="verl.fixed_rows", counts_agreed=False)
        return cut
