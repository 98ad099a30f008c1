"""How one field of a wire batch becomes what a trainer takes: how wide, why so wide, and whether it follows tokens.

A width comes about in three steps, each of which is a cause of padding of its own: the longest row of the batch, that
rounded up to a multiple, and a width imposed from outside, such as the longest row of the batch on all ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from probe.core.codec.field_packing import check_no_holes, entry_bytes, join_rows, nested_entry_bytes
from probe.core.codec.jagged import Ints, fill_value, is_jagged, pad_rows, values_of, widen
from probe.core.columns.jagged import Shared, build_jagged
from probe.errors import InputError

#: The field whose rows say how long the sequences are.
REFERENCE: Final = "input_ids"
#: Fields that NeMo-RL's trainers write with an entry for each token: these may be wider than the longest row.
TOKEN_FIELDS: Final = frozenset(
    {
        REFERENCE,
        "advantages",
        "generation_logprobs",
        "prev_logprobs",
        "reference_policy_logprobs",
        "routed_experts",
        "sample_mask",
        "token_mask",
    }
)


class PaddedField(NamedTuple):
    """What was done with a field, from lengths and shapes alone.

    Attributes:
        decision: One of "padded", "jagged", "rectangular", "widened" (a rectangle that was made wider) and "object".
        reason: Why it is so wide: "longest_row", "rounding", "fixed_width"; else "layout", "not_token_aligned",
            "objects".
        token_aligned: Whether ``pad_to_seqlen`` meant it.
        rows: The number of rows, N.
        valid_tokens: Valid tokens of all rows; of a rectangle whose lengths aren't known, all of it.
        longest_tokens: Tokens of the longest row.
        rounded_tokens: Tokens of the longest row, rounded up to the multiple that was asked for.
        width_tokens: The width in the end.
        cache: What the jagged tensor said of its longest row: "known", "missing" or "wrong" (by which torch's own
            padding goes wrong, and this one doesn't); "" for what isn't jagged.
        dicts: How many objects arrived without their wrapper.
        lost: How many objects didn't arrive.
    """

    name: str
    decision: str
    reason: str
    token_aligned: bool = False
    rows: int = 0
    valid_tokens: int = 0
    longest_tokens: int = 0
    rounded_tokens: int = 0
    width_tokens: int = 0
    bytes_per_token: int = 0
    cache: str = ""
    dicts: int = 0
    lost: int = 0


class Ragged(NamedTuple):
    """Lengths of a jagged column: what is known of them without waiting for a device."""

    offsets: Tensor
    rows: int
    tokens: int
    shortest: int
    longest: int
    lengths: Ints | None = None  #: of the rows, int64 (N,), where they were read

    def fits(self, other: Ragged) -> bool:
        """The same lengths: exactly on the CPU; on a device, where they can't be read, by rows, sum and bounds."""
        if self.offsets is other.offsets:
            return True
        if self[1:5] != other[1:5] or self.offsets.device != other.offsets.device:
            return False
        return self.offsets.device.type != "cpu" or torch.equal(self.offsets, other.offsets)


def ragged_of(name: str, column: Any, shared: Shared) -> tuple[Ragged, str]:
    """Lengths of a jagged column and the state of its cache; columns with the same offsets get the same Ragged.

    The cached longest row is used only on a device, where to look would be to wait: torch doesn't check it either.

    Raises:
        InputError: Its rows have holes between them.
    """
    check_no_holes(repr(name), column)
    offsets = column._offsets
    cached = (column._maybe_min_seqlen, column._maybe_max_seqlen)
    tokens = int(column._values.shape[column._ragged_idx - 1])
    known = None not in cached
    if known and offsets.device.type != "cpu":
        return shared.get((offsets,), lambda: _believed(offsets, tokens, cached)), "known"
    found: Ragged = shared.get((offsets,), lambda: _read(name, offsets, tokens))
    if not known:
        return found, "missing"
    return found, "known" if not found.rows or int(cached[1]) == found.longest else "wrong"


def _believed(offsets: Tensor, tokens: int, cached: tuple[Any, Any]) -> Ragged:
    return Ragged(offsets, offsets.shape[0] - 1, tokens, int(cached[0]), int(cached[1]))


def _read(name: str, offsets: Tensor, tokens: int) -> Ragged:
    starts = (offsets if offsets.is_cpu else offsets.cpu()).numpy()
    if int(starts[0]) != 0 or int(starts[-1]) != tokens:
        raise InputError(
            f"{name!r}: got a nested tensor with holes (its offsets span {int(starts[0])} to {int(starts[-1])} of "
            f"{tokens} tokens), expected rows side by side"
        )
    lengths = starts[1:] - starts[:-1]
    bounds = (int(lengths.min()), int(lengths.max())) if lengths.size else (0, 0)
    return Ragged(offsets, int(lengths.size), tokens, *bounds, lengths)


class Padder:
    """Pads the columns of one batch: which follow the tokens, and to what width.

    Args:
        columns: The columns of the batch, strided nested tensors already made jagged.
        rows: The number of rows, N.
        names: The fields that follow the tokens; with None their shapes tell, see :meth:`aligned`.
        pad_values: What a field is padded with, by its name; else 0.
        pad_to_seqlen: Least width, in tokens.
        pad_to_multiple: The longest row is rounded up to it.
    """

    def __init__(
        self,
        columns: Mapping[str, Any],
        rows: int,
        *,
        names: Collection[str] | None,
        pad_values: Mapping[str, Any],
        pad_to_seqlen: int,
        pad_to_multiple: int,
    ) -> None:
        self.rows = rows
        self._names = names
        self._pad_values = pad_values
        self._least = pad_to_seqlen
        self._multiple = pad_to_multiple
        shared = Shared()
        self._ragged = {name: ragged_of(name, one, shared) for name, one in columns.items() if is_jagged(one)}
        self._widths = {
            name: int(one.shape[1])
            for name, one in columns.items()
            if isinstance(one, Tensor) and not is_jagged(one) and one.dim() > 1
        }
        self._reference = self._find_reference()

    def _find_reference(self) -> Ragged | int | None:
        """The lengths that the tokens have, or the width of their rectangle; None where nothing tells."""
        ragged = {name: one for name, (one, _) in self._ragged.items() if self._names is None or name in self._names}
        widths = {name: one for name, one in self._widths.items() if self._names is None or name in self._names}
        if REFERENCE in ragged or REFERENCE in widths:
            return ragged.get(REFERENCE) or widths[REFERENCE]
        if ragged:
            return max(ragged.values(), key=lambda one: one.tokens)
        return max(widths.values(), default=None)

    def aligned(self, name: str) -> bool:
        """Whether the field has an entry for each token.

        As ``names`` says; else by the reference, which is ``input_ids``, or without it the jagged field with most
        tokens, or without any the widest rectangle: jagged fields with its lengths and rectangles with its width are
        aligned, and those of :data:`TOKEN_FIELDS` also when they are wider. A jagged field whose rows are all equal
        counts as a rectangle: some wires make every rectangle such a field.
        """
        if self._names is not None:
            return name in self._names
        width = self._widths.get(name)
        if name in self._ragged:
            mine = self._ragged[name][0]
            if self._follows(mine):
                return True
            width = mine.longest if mine.shortest == mine.longest else None
        longest = self._reference.longest if isinstance(self._reference, Ragged) else self._reference
        if width is None or longest is None:
            return False
        return width == longest or (width > longest and name in TOKEN_FIELDS)

    def _follows(self, mine: Ragged) -> bool:
        return isinstance(self._reference, Ragged) and mine.fits(self._reference)

    def _target(self, have: int, tokens: int, aligned: bool) -> dict[str, Any]:
        """Where the width comes from, for a field whose rows have up to ``have`` of all ``tokens``."""
        if not aligned:
            return {
                "reason": "longest_row",
                "valid_tokens": tokens,
                "longest_tokens": have,
                "rounded_tokens": have,
                "width_tokens": have,
            }
        longest = have
        if isinstance(self._reference, Ragged) and tokens == self.rows * have and have >= self._reference.longest:
            # A rectangle around the reference's rows, such as a framework's that rounds widths up.
            longest, tokens = self._reference.longest, self._reference.tokens
        rounded = self._rounded(longest)
        width = max(self._rounded(have), self._least)
        return {
            "reason": "fixed_width" if width > rounded else "rounding" if rounded > longest else "longest_row",
            "token_aligned": True,
            "valid_tokens": tokens,
            "longest_tokens": longest,
            "rounded_tokens": rounded,
            "width_tokens": width,
        }

    def _rounded(self, tokens: int) -> int:
        return -(-tokens // self._multiple) * self._multiple

    def pad(self, name: str, column: Any) -> tuple[Tensor, PaddedField]:
        """A jagged column as a rectangle (N, width, *), its ragged dimension being the one of that width."""
        ragged, cache = self._ragged[name]
        target = self._target(ragged.longest, ragged.tokens, self.aligned(name))
        width = target["width_tokens"]
        values, dim = values_of(column), column._ragged_idx
        fill = fill_value(name, values.dtype, self._pad_values.get(name, 0))
        if dim == 1:
            padded = pad_rows(values, ragged.offsets, width, fill, ragged.lengths)
        else:
            padded = pad_rows(values.movedim(dim - 1, 0), ragged.offsets, width, fill).movedim(1, dim).contiguous()
        size = nested_entry_bytes(values, dim)
        return padded, PaddedField(name, "padded", rows=ragged.rows, bytes_per_token=size, cache=cache, **target)

    def keep(self, name: str, column: Any) -> tuple[Tensor, PaddedField]:
        """A jagged column as it is, with its shortest and longest rows known."""
        ragged, cache = self._ragged[name]
        told = PaddedField(
            name, "jagged", "layout", self.aligned(name), ragged.rows, ragged.tokens, ragged.longest, cache=cache
        )
        if cache == "known":
            return column, told
        dim = column._ragged_idx
        made = build_jagged(values_of(column), ragged.offsets, ragged.shortest, ragged.longest, ragged_dim=dim)
        return made, told

    def widen(self, name: str, column: Tensor) -> tuple[Tensor, PaddedField]:
        """A rectangle: itself, or a wider copy where it follows the tokens and is too narrow."""
        if not self.aligned(name) or name not in self._widths:
            return column, PaddedField(name, "rectangular", "not_token_aligned", rows=self.rows)
        have = self._widths[name]
        target = self._target(have, self.rows * have, aligned=True)
        size = entry_bytes(column, 2)
        if target["width_tokens"] == have:
            return column, PaddedField(name, "rectangular", rows=self.rows, bytes_per_token=size, **target)
        fill = fill_value(name, column.dtype, self._pad_values.get(name, 0))
        made = widen(column, target["width_tokens"], fill)
        return made, PaddedField(name, "widened", rows=self.rows, bytes_per_token=size, **target)


def unstrided(column: Any) -> Tensor:
    """A nested tensor of the strided layout as a jagged one, or as a plain one where its rows are equal.

    Raises:
        ShapeError: Its rows differ in more than one dimension.
    """
    rows = list(column.unbind())
    if not rows:
        return torch.empty((0, 0), dtype=column.dtype, device=column.device)
    if len({row.shape for row in rows}) == 1:
        return torch.stack(rows)
    return join_rows(rows)
