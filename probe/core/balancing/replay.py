"""How a batch was cut into parts, so that it can be cut again: the packer's name, its arguments, and the lengths.

What is recorded of a partition is what a reader needs to try it under other arguments, or to see that it was made as it
says. The same record gives the same parts on every machine, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from packaging.version import InvalidVersion, Version

from probe.core.balancing.capped import Balance, Options, Units, filled_parts, fitting_parts
from probe.core.balancing.other_rules import nemo_rl_dynamic, prime_rl_first_fit, slime_ranks
from probe.core.balancing.partition import calculate_workload, karmarkar_karp, roundup_divisible
from probe.core.balancing.trl_rule import STRATEGIES, Pieces, trl_fixed_rows, trl_packed, trl_steps_per_generation
from probe.core.balancing.verl_rule import VerlCut, verl_fixed_rows, verl_partition, verl_ranks
from probe.core.packing import get_packer
from probe.errors import InputError, UnknownNameError

Parts = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One partition: who made it, of what, with which arguments.

    Attributes:
        packer: One of :data:`PACKERS`.
        lengths: Tokens of each row, in the order of the batch: ties depend on it.
        cap_tokens: Most tokens of a part: the cap of one rank × the size of sequence parallelism. None for packers
            without a cap.
        width_tokens: Padded width of the batch, None for a jagged one.
        minimum_count: At least so many parts; None asks for none.
        divisor: The number of parts is a multiple of it; None means 1.
        group_size: So many neighbouring rows stay together.
        counts_agreed: Whether the ranks agreed on the number of parts. Then ``count`` decides it, since other ranks'
            lengths aren't here.
        count: Parts that were made. Needed where it was given (parts of equal size) or agreed on.
        rows_each: Rows, or groups of them, in each part, for fixed rows.
        ordered: Whether the parts were put into the packer's order by work.
        balance: What is balanced: work, or tokens; verl under a cap always balances work.
        strict: Whether the cap holds: probe's own packer, and verl's since 0.9.1.
        pad_multiple: Each length counts rounded up to it, for bins and for NeMo-RL's rectangles.
        largest_first: Whether bins with the most tokens come first, before they are dealt to ranks.
    """

    packer: str
    lengths: list[int]
    cap_tokens: int | None = None
    width_tokens: int | None = None
    minimum_count: int | None = None
    divisor: int | None = None
    group_size: int = 1
    counts_agreed: bool = False
    count: int | None = None
    rows_each: int | None = None
    ordered: bool = True
    balance: Balance = "workload"
    strict: bool = True
    pad_multiple: int = 1
    largest_first: bool = False

    @classmethod
    def of_micro_batches(cls, packer: str, arguments: Mapping[str, Any], lengths: Sequence[int], parts: int) -> Self:
        """From a recorded row of ``partitions`` and the lengths of its micro-batches.

        Args:
            packer: ``"probe"``, ``"verl"``, ``"trl"``, ``"transformers"`` or ``"torch"`` (its loaders), with or
                without a version behind it; ``"nemo_rl.dynamic_batching"`` or ``"nemo_rl.sequence_packing"``.
            arguments: Of the packer, by its own names, as they were recorded; ``max_token_len`` is the cap of
                all ranks of sequence parallelism together. ``width_tokens`` may be among them.
            lengths: Tokens of each row, in the order of the batch.
            parts: How many micro-batches were made.

        Raises:
            UnknownNameError: There is no rule for that packer.
            InputError: The rows stand in sequences of which it isn't recorded where each begins.
        """
        name, _, version = packer.partition(" ")
        if packer.startswith("nemo_rl."):
            return cls(lengths=list(lengths), **_of_nemo_rl(packer, arguments))
        if name in ("trl", "transformers"):
            return cls(lengths=list(lengths), **_of_trl(arguments, len(lengths)))
        if name == "torch":
            return cls(packer="torch.fixed_rows", lengths=list(lengths), rows_each=arguments.get("rows_each"))
        if name not in ("probe", "verl"):
            raise UnknownNameError.of("packer", packer, ("probe", "verl", "trl", "transformers", "torch"))
        agreed = arguments.get("counts_agreed", arguments.get("same_micro_num_in_dp"))
        shared: dict[str, Any] = {
            "lengths": list(lengths),
            "count": parts,
            "group_size": arguments.get("force_group_size", 1),
            "strict": arguments.get("strict", True) if name == "probe" else keeps_the_cap(version),
        }
        if not arguments.get("use_dynamic_bsz", True):
            return cls(packer="verl.fixed_rows", rows_each=arguments.get("micro_batch_size_per_gpu"), **shared)
        return cls(
            packer="seqlen_balancing.rearrange_micro_batches" if name == "probe" else "verl.rearrange_micro_batches",
            cap_tokens=arguments.get("max_token_len"),
            width_tokens=arguments.get("width_tokens"),
            minimum_count=arguments.get("min_num_micro_batch"),
            divisor=arguments.get("num_batches_divided_by"),
            counts_agreed=bool(agreed),
            ordered=arguments.get("use_dynamic_bsz_balance", True),
            balance=arguments.get("balance", "workload"),
            **shared,
        )

    @classmethod
    def of_data_set(cls, packer: str, arguments: Mapping[str, Any], lengths: Sequence[int]) -> Self:
        """From a recorded row of ``partitions`` of rows of a data set.

        Args:
            packer: ``"trl"``, with or without a version behind it.
            arguments: Of the packer, as they were recorded.
            lengths: Tokens of each row, in the order of the data set.

        Raises:
            UnknownNameError: There is no rule for that packer.
        """
        rule = f"{_PACKED}{arguments.get('strategy')}"
        if packer.partition(" ")[0] != "trl" or rule not in PACKERS:
            raise UnknownNameError.of("packer", f"{packer}, {rule}", sorted(PACKERS))
        return cls(packer=rule, lengths=list(lengths), cap_tokens=arguments.get("seq_length"))

    def needed(self, name: str) -> int:
        """The number in the field ``name``; raises :class:`InputError` where it is None."""
        value: int | None = getattr(self, name)
        if value is None:
            raise InputError(f"{name}: got None, expected a number: {self.packer!r} can't be replayed without it")
        return value

    @property
    def agreed_count(self) -> int | None:
        """The number of parts where the ranks agreed on it."""
        return self.needed("count") if self.counts_agreed else None


def _of_nemo_rl(packer: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a cut by one of NeMo-RL's rules beside its lengths; the rows are those of all ranks."""
    shared: dict[str, Any] = {"cap_tokens": arguments.get("max_tokens_per_microbatch")}
    if packer == "nemo_rl.dynamic_batching":
        rounding = {"pad_multiple": int(arguments.get("sequence_length_round") or 1)}
        return {"packer": packer, "width_tokens": arguments.get("width_tokens"), **rounding, **shared}
    algorithm = str(arguments.get("algorithm") or "modified_first_fit_decreasing").lower()
    rule, ranks = f"packing.{algorithm}", arguments.get("shards")
    if packer != "nemo_rl.sequence_packing" or rule not in PACKERS:
        raise UnknownNameError.of("packer", f"{packer}, {rule}", sorted(PACKERS))
    rounding = {
        "pad_multiple": int(arguments.get("sequence_length_pad_multiple") or 1),
        "largest_first": bool(arguments.get("largest_first")),
    }
    return {"packer": rule, "minimum_count": ranks, "divisor": ranks, **rounding, **shared}


def _of_trl(arguments: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """The fields of a cut of TRL or Transformers beside its lengths."""
    if arguments.get("packing") and arguments.get("packing_strategy") != "wrapped":
        raise InputError("lengths: the rows were packed earlier; the run doesn't record which of them share a sequence")
    steps, generated = arguments.get("steps_per_generation"), arguments.get("generated_rows")
    if steps and generated:
        return {"packer": "trl.steps_per_generation", "count": max(1, rows // max(1, generated // steps))}
    each, sequences = arguments.get("rows_each"), int(arguments.get("sequences_each") or 1)
    return {"packer": "trl.fixed_rows", "rows_each": None if each is None else each * sequences}


def keeps_the_cap(version: str) -> bool:
    """Whether verl of a version keeps its cap: 0.9.1 and later do. An unknown version counts as a later one.

    Args:
        version: Such as ``"0.9.1"``.

    >>> keeps_the_cap("0.9.1"), keeps_the_cap("0.7.1"), keeps_the_cap("0.10.0.dev1"), keeps_the_cap("")
    (True, False, True, True)
    """
    try:
        return Version(version).release >= (0, 9, 1)
    except InvalidVersion:
        return True


def replay(cut: Cut) -> Parts:
    """The rows of each part, worked out again.

    Args:
        cut: What was recorded.

    Raises:
        UnknownNameError: There is no such packer. An order by chance (``first_fit_shuffle``) can't be replayed.
        InputError: An argument is missing that this packer needs, or the packer refuses the arguments.
        CapacityError: A row is above the cap.

    >>> replay(Cut(packer="verl.rearrange_micro_batches", lengths=[5, 9, 5, 1], cap_tokens=10))
    [[1, 3], [0, 2]]
    >>> replay(Cut(packer="verl.fixed_rows", lengths=[5, 9, 5, 1], rows_each=2))
    [[0, 1], [2, 3]]
    """
    return _rule(cut.packer)([cut], cut.agreed_count)[0]


def replay_ranks(cuts: Sequence[Cut]) -> list[Parts]:
    """The parts of ranks that cut at the same time. Where they agree on a number of parts it is worked out from all of
    them, and no recorded number is looked at.

    Args:
        cuts: One for each rank: the same packer and arguments, each with its own lengths.

    Raises:
        InputError: There is none, or what :func:`replay` raises.

    >>> from dataclasses import replace
    >>> cut = Cut(packer="verl.rearrange_micro_batches", lengths=[5, 5], cap_tokens=10, counts_agreed=True)
    >>> replay_ranks([cut, replace(cut, lengths=[9, 9])])
    [[[1], [0]], [[1], [0]]]
    """
    if not cuts:
        raise InputError("cuts: got none, expected one for each rank")
    rule = _rule(cuts[0].packer)
    if cuts[0].counts_agreed:
        return rule(cuts, None)
    return [rule([one], None)[0] for one in cuts]


def replay_pieces(cut: Cut) -> Pieces:
    """Like :func:`replay`, each part as (row, tokens): a packer of data sets cuts rows off or in two.

    Args:
        cut: What was recorded.

    >>> replay_pieces(Cut(packer="trl.packed.wrapped", lengths=[5, 2], cap_tokens=4))
    [[(0, 4)], [(0, 1), (1, 2)]]
    """
    if cut.packer.startswith(_PACKED):
        return trl_packed(cut.lengths, cut.needed("cap_tokens"), cut.packer.removeprefix(_PACKED))
    return [[(row, cut.lengths[row]) for row in part] for part in replay(cut)]


_Rule = Callable[[Sequence[Cut], int | None], list[Parts]]


def _rule(packer: str) -> _Rule:
    if packer not in PACKERS:
        raise UnknownNameError.of("packer", packer, sorted(PACKERS))
    return PACKERS[packer]


def _alone(rule: Callable[[Cut], Parts]) -> _Rule:
    """Of a rule by which each rank cuts for itself."""
    return lambda cuts, _: [rule(one) for one in cuts]


def _probe_capped(cuts: Sequence[Cut], agreed: int | None) -> list[Parts]:
    made: list[tuple[Units, list[list[int]], Options]] = []
    for one in cuts:
        options = Options(
            one.needed("cap_tokens"),
            num_batches_divided_by=one.divisor,
            min_num_micro_batch=one.minimum_count,
            balance=one.balance,
            strict=one.strict,
            use_dynamic_bsz_balance=one.ordered,
            force_group_size=one.group_size,
        )
        options.check()
        units = Units.of(one.lengths, one.width_tokens, options)
        made.append((units, fitting_parts(units, options), options))
    least, divisor = cuts[0].minimum_count or 0, cuts[0].divisor or 1
    together = roundup_divisible(max(least, *(len(fitting) for _, fitting, _ in made)), divisor)
    return [filled_parts(units, fitting, agreed or together, options) for units, fitting, options in made]


def _verl_capped(cuts: Sequence[Cut], agreed: int | None) -> list[Parts]:
    one = cuts[0]
    cut = VerlCut(
        cap_tokens=one.needed("cap_tokens"),
        width_tokens=None if one.width_tokens is None else max(each.width_tokens or 0 for each in cuts),
        divisor=one.divisor,
        minimum_count=one.minimum_count,
        ordered=one.ordered,
        group_size=one.group_size,
        strict=one.strict,
    )
    return verl_ranks([each.lengths for each in cuts], cut, agreed_count=agreed)


def _slime(cuts: Sequence[Cut], agreed: int | None) -> list[Parts]:
    return slime_ranks([one.lengths for one in cuts], cuts[0].needed("cap_tokens"), agreed_count=agreed)


def _nemo_rl_dynamic(cuts: Sequence[Cut], _agreed: int | None) -> list[Parts]:
    """Of ranks that sort and deal together; their rows are numbered anew in each, as they are dealt."""
    if len(cuts) > 1:
        raise InputError(
            f"cuts: got {len(cuts)}, expected one for all ranks: NeMo-RL itself deals the whole batch to them"
        )
    (one,) = cuts
    dealt = nemo_rl_dynamic(
        one.lengths,
        1,
        one.needed("cap_tokens"),
        round_to=one.pad_multiple,
        width_tokens=one.width_tokens,
    )
    return [dealt[0][0]]


def _weights(one: Cut) -> list[int]:
    return one.lengths if one.balance == "tokens" else calculate_workload(one.lengths)


def _bins(one: Cut) -> Parts:
    packer = get_packer(
        one.packer.removeprefix("packing."),
        one.needed("cap_tokens"),
        one.minimum_count,
        one.divisor,
        sequence_length_pad_multiple=one.pad_multiple,
    )
    bins = packer.replay(one.lengths)
    if one.largest_first:
        bins.sort(key=lambda rows: (-packer.padded_tokens(one.lengths, rows), rows[0]))
    return bins


def _packed(one: Cut) -> Parts:
    return [[row for row, _ in part] for part in replay_pieces(one)]


_PACKED: Final = "trl.packed."

#: The packers that can be replayed, by the name under which they are recorded or asked for.
PACKERS: Final[dict[str, _Rule]] = {
    "seqlen_balancing.rearrange_micro_batches": _probe_capped,
    "seqlen_balancing.equal_size": _alone(
        lambda one: karmarkar_karp(_weights(one), one.needed("count"), equal_size=True)
    ),
    "verl.rearrange_micro_batches": _verl_capped,
    "verl.equal_size": _alone(lambda one: verl_partition(_weights(one), one.needed("count"), equal_size=True)),
    "verl.fixed_rows": _alone(lambda one: verl_fixed_rows(len(one.lengths), one.needed("rows_each"), one.group_size)),
    "trl.fixed_rows": _alone(lambda one: trl_fixed_rows(len(one.lengths), one.needed("rows_each"))),
    "torch.fixed_rows": _alone(lambda one: trl_fixed_rows(len(one.lengths), one.needed("rows_each"))),
    "trl.steps_per_generation": _alone(lambda one: trl_steps_per_generation(len(one.lengths), one.needed("count"))),
    **{f"{_PACKED}{strategy}": _alone(_packed) for strategy in STRATEGIES},
    "nemo_rl.dynamic_batching": _nemo_rl_dynamic,
    "packing.concatenative": _alone(_bins),
    "packing.first_fit_decreasing": _alone(_bins),
    "packing.modified_first_fit_decreasing": _alone(_bins),
    "prime_rl.first_fit": _alone(lambda one: prime_rl_first_fit(one.lengths, one.needed("cap_tokens"))),
    "slime.dynamic_batch_size": _slime,
}

#: Those that tests hold beside the installed package, part by part and in order, and probe's own. The bins of
#: ``packing`` are probe's own, too, but where NeMo-RL's of the same names are meant they aren't compared with it.
COMPARED: Final = frozenset(
    name for name in PACKERS if name.startswith(("verl.", "trl.", "torch.", "seqlen_balancing."))
)
