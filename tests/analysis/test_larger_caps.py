"""A larger cap never gives more micro-batches; where a packer's own rule breaks that, it is shown here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.analysis.what_if.cutting import cut_ranks
from probe.core.balancing.replay import PACKERS, Cut, replay_pieces
from probe.errors import InputError

#: That have no cap.
UNCAPPED: Final = {name for name in PACKERS if name.endswith(("fixed_rows", "equal_size", "steps_per_generation"))}

#: Whose number of micro-batches never grows with the cap.
NEVER_MORE: Final = (
    "seqlen_balancing.rearrange_micro_batches",
    "verl.rearrange_micro_batches",
    "nemo_rl.dynamic_batching",
    "packing.concatenative",
    "trl.packed.wrapped",
)

#: That put each row where it fits first or best: lengths, a cap, a larger one, and the micro-batches under both.
SOMETIMES_MORE: Final = {
    "packing.first_fit_decreasing": ([9, 11, 14, 17, 17, 17, 17, 27, 27, 39], 65, 66, 3, 4),
    "packing.modified_first_fit_decreasing": ([9, 11, 14, 16, 25, 30], 53, 54, 2, 3),
    "prime_rl.first_fit": ([9, 11, 14, 17, 17, 17, 17, 27, 27, 39], 65, 66, 3, 4),
    "slime.dynamic_batch_size": ([27, 13, 29, 4, 26, 10, 8], 39, 40, 3, 4),
    "trl.packed.bfd": ([12, 12, 13, 18, 40, 40, 53, 54, 76], 106, 107, 3, 4),
    "trl.packed.bfd_split": ([12, 12, 13, 18, 40, 40, 53, 54, 76], 106, 107, 3, 4),
}

few = st.lists(st.integers(1, 60), min_size=1, max_size=3)


@st.composite
def batches(draw: st.DrawFn, multiple: int = 2, ranks: int = 8, rows: int = 12) -> list[list[int]]:
    """As many rows of each rank, an even number; in every other batch only a few lengths, so that there are ties."""
    length = st.sampled_from(draw(few)) if draw(st.booleans()) else st.integers(1, 60)
    count = multiple * draw(st.integers(1, rows))
    return draw(st.lists(st.lists(length, min_size=count, max_size=count), min_size=1, max_size=ranks))


def counted(ranks: Sequence[list[int]], cut: Cut) -> float:
    """Micro-batches of the rank with the most; endless where the packer refuses: no such number of them is enough."""
    try:
        return max(len(own) for own in cut_ranks(ranks, cut))
    except InputError:
        return math.inf


def test_proof_each_packer_with_a_cap_keeps_to_it_or_is_shown_not_to() -> None:
    assert {*NEVER_MORE, *SOMETIMES_MORE} == PACKERS.keys() - UNCAPPED


@pytest.mark.parametrize("packer", NEVER_MORE)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_proof_a_larger_cap_never_gives_more_micro_batches(packer: str, data: Any) -> None:
    ranks, cap, more = data.draw(batches()), data.draw(st.integers(60, 200)), data.draw(st.integers(0, 200))
    own: dict[str, Any] = {}
    if packer.endswith("rearrange_micro_batches"):
        own = {
            "strict": data.draw(st.booleans()),
            "divisor": data.draw(st.sampled_from([None, 2, 3])),
            "minimum_count": data.draw(st.sampled_from([None, 3])),
            "group_size": data.draw(st.sampled_from([1, 2])),
            "counts_agreed": data.draw(st.booleans()),
        }
    if packer.startswith("seqlen_balancing."):
        own["balance"] = data.draw(st.sampled_from(["workload", "tokens"]))
    if packer.startswith(("nemo_rl.", "packing.")):
        own["pad_multiple"] = data.draw(st.sampled_from([1, 8]))
    if packer.startswith("trl."):
        cap = data.draw(st.integers(10, 200))  # rows above it are cut in two
    cut = Cut(packer=packer, lengths=[], cap_tokens=cap, **own)
    assert counted(ranks, replace(cut, cap_tokens=cap + more)) <= counted(ranks, cut)


@settings(deadline=None, max_examples=30)
@given(st.data(), st.integers(20, 60), st.integers(1, 12), st.sampled_from(["workload", "tokens"]))
def test_proof_nor_does_the_own_packer_where_the_bound_it_begins_at_is_far_too_low(data, cap, more, balance):
    """Rows of just over a third of the cap: two fit, three never do, and the sum says that three might."""
    lengths = data.draw(st.lists(st.integers(cap // 3 + 1, cap // 2), min_size=30, max_size=80))
    cut = Cut(packer="seqlen_balancing.rearrange_micro_batches", lengths=[], cap_tokens=cap, balance=balance)
    assert counted([lengths], replace(cut, cap_tokens=cap + more)) <= counted([lengths], cut)


@pytest.mark.parametrize("packer", SOMETIMES_MORE)
def test_proof_where_a_packers_own_rule_gives_more_it_is_told(packer: str) -> None:
    lengths, cap, larger, before, after = SOMETIMES_MORE[packer]
    cut = Cut(packer=packer, lengths=lengths, cap_tokens=cap)
    assert after > before
    assert (counted([lengths], cut), counted([lengths], replace(cut, cap_tokens=larger))) == (before, after)
    for one in (cut, replace(cut, cap_tokens=larger)):  # all rows are there, whole
        assert sorted(tokens for part in replay_pieces(one) for _, tokens in part) == sorted(lengths)


@pytest.mark.parametrize("packer", SOMETIMES_MORE)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_proof_twice_the_cap_never_gives_more(packer: str, data: Any) -> None:
    """Any two micro-batches together are above the cap, or one would hold both: so they are more than half full."""
    ranks, cap = data.draw(batches()), data.draw(st.integers(60, 200))
    cut = Cut(packer=packer, lengths=[], cap_tokens=cap, counts_agreed=packer.startswith("slime."))
    assert counted(ranks, replace(cut, cap_tokens=2 * cap)) <= counted(ranks, cut)
