"""Sequences into bins of limited capacity, as few bins as a fast algorithm finds.

Bin packing is NP-hard; the algorithms here come with proofs of how far from the fewest bins (OPT) they can end:

* first fit decreasing: at most 11/9 · OPT + 6/9 (Dósa 2007);
* modified first fit decreasing (Johnson and Garey 1985): at most 71/60 · OPT + 1 (Yue and Zhang 1995). It is not
  better on every input: only its worst case is;
* first fit in any order (``first_fit_shuffle``): at most 1.7 · OPT (Dósa and Sgall 2013);
* concatenative, which never goes back to an earlier bin: below 2 · OPT.

The algorithms themselves are in :mod:`probe.core.packing.bins`.
"""

from __future__ import annotations

import contextlib
import enum
import math
import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from probe._check import whole_number
from probe.core.packing.bins import (
    Bins,
    concatenative,
    first_fit,
    first_fit_decreasing,
    modified_first_fit_decreasing,
    split_to,
)
from probe.errors import CapacityError, InputError, InputTypeError, UnknownNameError
from probe.hooks import emit, point

Array = npt.NDArray[Any]
Tokens = TypeVar("Tokens", int, Array)
_Algorithm = Callable[[Array, int], Bins]

#: Told for every packing, whoever asked for it.
PACKED = point(
    "packing.packed",
    "sequences were packed into bins; carries lengths, padded_lengths (after rounding), bins (indices of each), "
    "capacity_tokens, algorithm, metrics (PackingMetrics), source; for a batch also batch, width_tokens (of its "
    "rows, None for jagged ones) and first_row",
)


class PackingAlgorithm(enum.StrEnum):
    """The algorithms that :func:`get_packer` knows."""

    CONCATENATIVE = "concatenative"
    FIRST_FIT_DECREASING = "first_fit_decreasing"
    FIRST_FIT_SHUFFLE = "first_fit_shuffle"
    MODIFIED_FIRST_FIT_DECREASING = "modified_first_fit_decreasing"


_ALGORITHMS: Final[dict[PackingAlgorithm, _Algorithm]] = {
    PackingAlgorithm.CONCATENATIVE: concatenative,
    PackingAlgorithm.FIRST_FIT_DECREASING: first_fit_decreasing,
    PackingAlgorithm.MODIFIED_FIRST_FIT_DECREASING: modified_first_fit_decreasing,
}


@dataclass(frozen=True)
class PackingMetrics:
    """How well sequences fill their bins. Tokens are real ones: what rounding adds counts as waste.

    Attributes:
        total_sequence_length: Tokens of all sequences.
        total_bin_capacity: Tokens that all bins could hold: num_bins × capacity.
        total_waste: The difference of the two, in tokens.
        waste_ratio: ``total_waste / total_bin_capacity``.
        average_utilization: Mean over bins of tokens / capacity.
        bin_balance: 1 − standard deviation / mean of the bins' utilisation; 1 is even.
        theoretical_min_bins: Fewest bins that could hold the rounded lengths by their sum; none may exist.
        bin_efficiency: ``theoretical_min_bins / num_bins``.

    Ratios of nothing are NaN.
    """

    num_sequences: int
    num_bins: int
    total_sequence_length: int
    total_bin_capacity: int
    total_waste: int
    average_utilization: float
    waste_ratio: float
    bin_balance: float
    theoretical_min_bins: int
    bin_efficiency: float

    @classmethod
    def from_bins(
        cls, lengths: Sequence[int], padded: Sequence[int], bins: Sequence[Sequence[int]], capacity: int
    ) -> PackingMetrics:
        """Metrics of ``bins``, which hold indices of ``lengths`` (real) and ``padded`` (rounded).

        Args:
            lengths: Tokens of each sequence.
            padded: The same, each rounded up.
            bins: Numbers of the sequences in each bin.
            capacity: Tokens that a bin can hold.

        >>> PackingMetrics.from_bins([6, 3, 7], [6, 3, 7], [[0, 1], [2]], 10).average_utilization
        0.8
        """
        total, room = sum(lengths), len(bins) * capacity
        tokens = [sum(map(lengths.__getitem__, one)) for one in bins]
        filled = [one / capacity for one in tokens]
        placed = sum(tokens)
        # Whole numbers up to the root: the variance of equal bins is 0 exactly, and no fraction costs time.
        spread = math.sqrt(len(tokens) * sum(one * one for one in tokens) - placed * placed)
        needed = -(-sum(padded) // capacity)
        return cls(
            num_sequences=len(lengths),
            num_bins=len(bins),
            total_sequence_length=total,
            total_bin_capacity=room,
            total_waste=room - total,
            average_utilization=math.fsum(filled) / len(filled) if filled else math.nan,
            waste_ratio=(room - total) / room if room else math.nan,
            bin_balance=1 - spread / placed if placed else math.nan,
            theoretical_min_bins=needed,
            bin_efficiency=needed / len(bins) if bins else math.nan,
        )


class Packer:
    """Packs lists of lengths with one algorithm; see :func:`get_packer`.

    Args:
        algorithm: Puts the sequences into bins.
        bin_capacity: Tokens that a bin can hold.
        min_bin_count: The least number of bins; None means as many as are needed.
        bin_count_multiple: The number of bins is made a multiple of it; None means one.
        sequence_length_pad_multiple: Every sequence takes a multiple of it.
        seed: Seed of the order of ``first_fit_shuffle``.
    """

    def __init__(
        self,
        algorithm: PackingAlgorithm,
        bin_capacity: int,
        min_bin_count: int | None = None,
        bin_count_multiple: int | None = None,
        sequence_length_pad_multiple: int = 1,
        seed: int = 0,
    ) -> None:
        self.algorithm = algorithm
        self.bin_capacity = whole_number("bin_capacity", bin_capacity, 1)
        self.min_bin_count = whole_number("min_bin_count", 0 if min_bin_count is None else min_bin_count, 0)
        multiple = 1 if bin_count_multiple is None else bin_count_multiple
        self.bin_count_multiple = whole_number("bin_count_multiple", multiple, 1)
        self.pad_multiple = whole_number("sequence_length_pad_multiple", sequence_length_pad_multiple, 1)
        self._metrics: PackingMetrics | Callable[[], PackingMetrics] | None = None
        self._random = random.Random(seed)  # noqa: S311  (an order of sequences, not a secret)

    @property
    def metrics(self) -> PackingMetrics | None:
        """The metrics of the last packing, None before the first. Worked out when they are asked for."""
        if callable(self._metrics):
            self._metrics = self._metrics()
        return self._metrics

    def pack(self, sequence_lengths: Sequence[int], **about: Any) -> Bins:
        """Indices of ``sequence_lengths`` in bins: every one once, none empty, ascending inside a bin.

        As many bins as the algorithm needs, none for no sequence; where there have to be more of them, the fullest bins
        are halved.

        Args:
            sequence_lengths: Tokens of each sequence, a list or 1-d array.
            **about: Further values for listeners of :data:`PACKED`.

        Raises:
            CapacityError: A sequence is longer than a bin; the message names it.
            InputError: A length is negative, or there are fewer sequences than bins are asked for.
            InputTypeError: The lengths aren't whole numbers.
        """
        lengths, padded, bins = self._packed(sequence_lengths)
        kept = list(map(list.copy, bins))  # the caller may change theirs
        self._metrics = partial(_metrics, lengths, padded, kept, self.bin_capacity)
        if PACKED.listeners:
            told: dict[str, Any] = {"source": PACKED.name} | about
            emit(
                PACKED,
                lengths=lengths.tolist(),
                padded_lengths=padded.tolist(),
                bins=kept,
                capacity_tokens=self.bin_capacity,
                algorithm=str(self.algorithm),
                metrics=self.metrics,
                **told,
            )
        return bins

    def replay(self, sequence_lengths: Sequence[int]) -> Bins:
        """:meth:`pack` of which nobody hears, and which leaves the metrics alone.

        Args:
            sequence_lengths: Tokens of each sequence, a list or 1-d array.
        """
        return self._packed(sequence_lengths)[2]

    def _packed(self, sequence_lengths: Sequence[int]) -> tuple[Array, Array, Bins]:
        """Lengths, rounded lengths, bins."""
        lengths = _lengths(sequence_lengths)
        padded = rounded_up(lengths, self.pad_multiple) if self.pad_multiple > 1 else lengths
        if lengths.size and (lengths.min() < 0 or padded.max() > self.bin_capacity):
            self._refuse(lengths)
        bins = self._bins(padded)
        found = len(bins)
        wanted = rounded_up(max(found, self.min_bin_count), self.bin_count_multiple)
        if wanted > found:
            self._split(bins, padded.tolist(), wanted)
        if wanted > found or self.algorithm is not PackingAlgorithm.CONCATENATIVE:  # whose bins are ascending
            for one in bins:
                one.sort()
        return lengths, padded, bins

    def padded_tokens(self, lengths: Sequence[int], rows: Iterable[int]) -> int:
        """What the sequences ``rows`` take in a bin: each length rounded up.

        Args:
            lengths: Tokens of each sequence.
            rows: Numbers of the sequences in the bin.
        """
        return sum(rounded_up(lengths[row], self.pad_multiple) for row in rows)

    def _refuse(self, lengths: Array) -> None:
        """Raise for the first sequence of a length that can't be."""
        for row, length in enumerate(lengths.tolist()):
            if length < 0:
                raise InputError(f"sequence_lengths: sequence {row} has length {length}, expected at least 0")
            taken = rounded_up(length, self.pad_multiple)
            if taken > self.bin_capacity:
                more = "" if taken == length else f", {taken} when rounded to a multiple of {self.pad_multiple}"
                raise CapacityError(
                    f"sequence_lengths: sequence {row} has {length} tokens{more}; a bin holds {self.bin_capacity}"
                )

    def _bins(self, padded: Array) -> Bins:
        if self.algorithm is PackingAlgorithm.FIRST_FIT_SHUFFLE:
            order = list(range(len(padded)))
            self._random.shuffle(order)
            return first_fit(padded, order, self.bin_capacity)
        return _ALGORITHMS[self.algorithm](padded, self.bin_capacity)

    def _split(self, bins: Bins, padded: Sequence[int], wanted: int) -> None:
        if wanted > len(padded):
            raise InputError(
                f"min_bin_count, bin_count_multiple: {wanted} bins are needed for {len(padded)} sequences, "
                "but none may be empty"
            )
        split_to(bins, padded, wanted)


def get_packer(
    algorithm: str,
    bin_capacity: int,
    min_bin_count: int | None = None,
    bin_count_multiple: int | None = None,
    *,
    sequence_length_pad_multiple: int = 1,
    seed: int = 0,
) -> Packer:
    """A packer for bins of ``bin_capacity`` tokens. Its metrics are known of every packing and told to listeners.

    Args:
        algorithm: One of ``"concatenative"``, ``"first_fit_decreasing"``, ``"first_fit_shuffle"`` and
            ``"modified_first_fit_decreasing"``; upper case works too.
        bin_capacity: Tokens that a bin can hold.
        min_bin_count: The least number of bins; None means as many as are needed.
        bin_count_multiple: The number of bins is made a multiple of it; None means one.
        sequence_length_pad_multiple: Every sequence takes a multiple of it.
        seed: Seed of the order of ``first_fit_shuffle``.

    Raises:
        UnknownNameError: There is no such algorithm.
        InputError: A number is too small.
        InputTypeError: A number isn't a whole one.

    >>> get_packer("first_fit_decreasing", 10).pack([6, 3, 7, 4])
    [[1, 2], [0, 3]]
    """
    choices = [str(one) for one in PackingAlgorithm]
    name = str(algorithm).lower()
    if name not in choices:
        raise UnknownNameError.of("algorithm", algorithm, choices)
    return Packer(
        PackingAlgorithm(name), bin_capacity, min_bin_count, bin_count_multiple, sequence_length_pad_multiple, seed
    )


def rounded_up(length: Tokens, multiple: int) -> Tokens:
    """The smallest multiple of ``multiple`` that is at least ``length``.

    Args:
        length: A number of tokens, or an array of them.
        multiple: A positive whole number.

    >>> rounded_up(9, 8), rounded_up(8, 8), rounded_up(0, 8)
    (16, 8, 0)
    """
    return -(-length // multiple) * multiple


def _lengths(given: Any) -> Array:
    """A copy of the lengths as a 1-D array of integers."""
    if type(given) is list and given and type(given[0]) is int:
        with contextlib.suppress(TypeError, OverflowError):  # two thirds of NumPy's time, which knows what is wrong
            return np.frombuffer(array("q", given), np.int64)
    found = np.array(given)
    if found.ndim != 1:
        raise InputError(f"sequence_lengths: got shape {found.shape}, expected one dimension")
    if not found.size:
        return np.zeros(0, np.int64)
    if found.dtype.kind not in "iu":
        raise InputTypeError(f"sequence_lengths: got {found.dtype}, expected whole numbers")
    return found if found.dtype == np.uint64 and found.max() > np.iinfo(np.int64).max else found.astype(np.int64)


def _metrics(lengths: Array, padded: Array, bins: Bins, capacity: int) -> PackingMetrics:
    return PackingMetrics.from_bins(lengths.tolist(), padded.tolist(), bins, capacity)
