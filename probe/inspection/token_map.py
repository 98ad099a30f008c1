"""Which positions of a batch are padding, prompt and response, row by row, and how long the rows are.

Where the tokens stand is told by ``attention_mask``, by ``input_lengths`` (right-padded, as NeMo-RL has it) or by the
lengths of jagged ``input_ids``. What of them is response is told by the width of ``responses`` or ``prompts``, by
their lengths where they are jagged, and by a mask of trained tokens (``response_mask``, ``loss_mask``, ``token_mask``).
What isn't told isn't guessed: those tokens are "valid".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeGuard

import numpy as np
import torch

from probe.core.columns.jagged import is_jagged, jagged_lengths
from probe.inspection.values import rows_of_column

#: What a position can be, in the order of the codes.
KINDS: Final = ("pad", "prompt", "response", "masked", "valid")
PAD, PROMPT, RESPONSE, MASKED, VALID = range(5)

#: What each kind means, for a person.
MEANINGS: Final[Mapping[str, str]] = {
    "pad": "padding",
    "prompt": "prompt",
    "response": "response",
    "masked": "in the response, but not trained on (a tool's answer, or cut off)",
    "valid": "a token; what of is not told",
}

#: Masks of trained tokens, first one there.
TRAINED: Final = ("response_mask", "loss_mask", "token_mask")

#: Elements of a mask that are summed at once, which bounds the memory that counting takes.
_BLOCK: Final = 1 << 20

Codes = np.ndarray[Any, np.dtype[np.uint8]]


class TokenMap(NamedTuple):
    """Rows ``start`` to ``start + len(rows)``.

    Attributes:
        rows: For each row the kind of each position, a code into :data:`KINDS`; uint8. Jagged rows have no padding.
        source: The columns it was made from.
        problem: Why there is nothing, or why kinds are missing; else "".
    """

    start: int
    rows: list[Codes]
    source: str
    problem: str

    @property
    def width(self) -> int:
        """Positions of the longest row."""
        return max((len(row) for row in self.rows), default=0)

    def counts(self, row: int | None = None) -> dict[str, int]:
        """Positions of each kind that occurs: in one row (counted from ``start``), or in all."""
        chosen = self.rows if row is None else [self.rows[row]]
        totals = np.zeros(len(KINDS), dtype=np.int64)
        for one in chosen:
            totals += np.bincount(one, minlength=len(KINDS))
        return {kind: int(total) for kind, total in zip(KINDS, totals, strict=True) if total}


def token_map(tensors: Mapping[str, Any], start: int, stop: int) -> TokenMap:
    """What the positions of rows ``start`` to ``stop`` are; only these rows travel.

    Args:
        tensors: Columns by key, each (B, S), (B, R) or jagged.
        start: The first row.
        stop: The row after the last one.

    >>> mask = torch.tensor([[0, 1, 1, 1, 0]])
    >>> found = token_map({"attention_mask": mask, "responses": torch.zeros(1, 3)}, 0, 1)
    >>> [KINDS[code] for code in found.rows[0]], found.problem
    (['pad', 'prompt', 'response', 'response', 'pad'], '')
    """
    try:
        return _Mapping(tensors, start, stop).make()
    except (RuntimeError, NotImplementedError, ValueError, IndexError) as error:  # no values, or shapes that don't fit
        return TokenMap(start, [], "", f"the token columns can't be read: {error}")


class _Mapping:
    """The columns of one token map, and what they say."""

    def __init__(self, tensors: Mapping[str, Any], start: int, stop: int) -> None:
        self._tensors = tensors
        self._span = (start, stop)
        self._used: list[str] = []
        self._problem = ""

    def make(self) -> TokenMap:
        valid = self._valid()
        if valid is None:
            names = "no attention_mask, no input_lengths beside input_ids, and no jagged input_ids"
            return TokenMap(self._span[0], [], "", names)
        rows = [np.where(row, np.uint8(VALID), np.uint8(PAD)).astype(np.uint8) for row in valid]
        begins = self._begins(rows)
        trained = self._trained(rows, begins)
        for at, row in enumerate(rows):
            mask = None if trained is None else trained[at]
            begin = begins[at] if begins is not None else _first_trained(mask, row)
            if begin is not None:
                _fill(row, begin, mask)
        if begins is None and trained is None and not self._problem:
            self._problem = "nothing tells prompt from response: no responses, prompts or mask of trained tokens"
        return TokenMap(self._span[0], rows, ", ".join(self._used), self._problem)

    # ------------------------------------------------------------------------------------ where tokens stand

    def _valid(self) -> list[Any] | None:
        mask = self._tensors.get("attention_mask")
        if _has_positions(mask):
            self._used.append("attention_mask")
            return [row.numpy() != 0 for row in self._rows(mask)]
        ids, lengths = self._tensors.get("input_ids"), self._tensors.get("input_lengths")
        if _is_padded(ids) and isinstance(lengths, torch.Tensor) and lengths.ndim == 1:
            self._used.append("input_lengths")
            width = np.arange(ids.shape[1])
            return [width < int(length) for length in self._rows(lengths)]
        if is_jagged(ids):
            self._used.append("input_ids")
            return [np.ones(length, bool) for length in self._lengths(ids)]
        if is_jagged(self._tensors.get("prompts")) and is_jagged(self._tensors.get("responses")):
            pairs = zip(*(self._lengths(self._tensors[name]) for name in ("prompts", "responses")), strict=True)
            return [np.ones(sum(pair), bool) for pair in pairs]
        return None

    # ------------------------------------------------------------------------------ where the response begins

    def _begins(self, rows: list[Codes]) -> list[int] | None:
        """Of each row the first position of the response; None where nothing tells."""
        for name, place in (("responses", self._from_right), ("prompts", self._from_left)):
            column = self._tensors.get(name)
            if _has_positions(column):
                begins = place(name, column, rows)
                if begins is not None:
                    self._used.append(name)
                    return begins
        return self._from_mask(rows)

    def _from_right(self, name: str, column: Any, rows: list[Codes]) -> list[int] | None:
        if not _is_padded(column):  # the last tokens of the row, wherever padding stands
            return [_position_from_end(row, size) for row, size in zip(rows, self._lengths(column), strict=True)]
        width, prompts = int(column.shape[1]), self._tensors.get("prompts")
        if not self._all_as_wide(rows, name):
            return None
        full = len(rows[0]) if rows else width
        left = int(prompts.shape[1]) if _is_padded(prompts) else full - width
        if width > full or left + width != full:
            self._problem = f"prompts {left} and responses {width} wide don't make up rows {full} wide"
            return None
        return [full - width] * len(rows)

    def _from_left(self, name: str, column: Any, rows: list[Codes]) -> list[int] | None:
        if not _is_padded(column):
            return [_position(row, size) for row, size in zip(rows, self._lengths(column), strict=True)]
        if not self._all_as_wide(rows, name) or self._problem:
            return None
        width = int(column.shape[1])
        if rows and width > len(rows[0]):
            self._problem = f"prompts are {width} wide, rows {len(rows[0])}"
            return None
        return [width] * len(rows)

    def _from_mask(self, rows: list[Codes]) -> list[int] | None:
        """A mask that is narrower than the row is as wide as the response."""
        mask = self._tensors.get("response_mask")
        if not _is_padded(mask) or self._problem or not rows or mask.shape[1] >= len(rows[0]):
            return None
        return [len(rows[0]) - int(mask.shape[1])] * len(rows) if self._all_as_wide(rows, "response_mask") else None

    def _all_as_wide(self, rows: list[Codes], name: str) -> bool:
        if len({len(row) for row in rows}) > 1:
            self._problem = f"{name} is padded, the rows are not"
            return False
        return True

    # ----------------------------------------------------------------------------------------- what is trained

    def _trained(self, rows: list[Codes], begins: list[int] | None) -> list[Any] | None:
        """Of each row whether its positions are trained on, over the whole row; None where nothing tells."""
        name = next((one for one in TRAINED if _has_positions(self._tensors.get(one))), None)
        if name is None:
            return None
        spread = []
        for at, mask in enumerate(self._rows(self._tensors[name])):
            full, begin = len(rows[at]), None if begins is None else begins[at]
            wide = _spread(mask.numpy() != 0, full, begin)
            if wide is None:
                self._problem = self._problem or f"{name} has {len(mask)} positions, which fit neither row nor response"
                return None
            spread.append(wide)
        self._used.append(name)
        return spread

    def _rows(self, column: Any) -> list[Any]:
        return rows_of_column(column, *self._span)

    def _lengths(self, column: Any) -> list[int]:
        if is_jagged(column):
            found: list[int] = jagged_lengths(column)[self._span[0] : self._span[1]].tolist()
            return found
        return [len(row) for row in self._rows(column)]


def _has_positions(column: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(column, torch.Tensor) and column.ndim == 2


def _is_padded(column: Any) -> TypeGuard[torch.Tensor]:
    return _has_positions(column) and not column.is_nested


def _spread(mask: Any, full: int, begin: int | None) -> Any | None:
    """``mask`` over the whole row: it has an entry for each position, or for each from ``begin`` on."""
    if len(mask) == full:
        return mask
    if begin is None or len(mask) > full - begin:
        return None
    wide = np.zeros(full, bool)
    wide[begin : begin + len(mask)] = mask
    return wide


def _first_trained(mask: Any | None, row: Codes) -> int | None:
    if mask is None:
        return None
    found = np.flatnonzero(mask & (row != PAD))
    return int(found[0]) if len(found) else len(row)


def _position(row: Codes, count: int) -> int:
    """Where the token after the first ``count`` ones stands."""
    tokens = np.flatnonzero(row != PAD)
    return int(tokens[count]) if count < len(tokens) else len(row)


def _position_from_end(row: Codes, count: int) -> int:
    tokens = np.flatnonzero(row != PAD)
    return int(tokens[max(0, len(tokens) - count)]) if count and len(tokens) else len(row)


def _fill(row: Codes, begin: int, trained: Any | None) -> None:
    tokens = row != PAD
    row[:begin][tokens[:begin]] = PROMPT
    row[begin:][tokens[begin:]] = RESPONSE
    if trained is not None:
        row[begin:][tokens[begin:] & ~trained[begin:]] = MASKED


def runs(row: Codes) -> Iterator[tuple[int, int, int]]:
    """(begin, end, code) of stretches of one kind.

    >>> list(runs(np.array([0, 0, 2, 2, 2], dtype=np.uint8)))
    [(0, 2, 0), (2, 5, 2)]
    """
    edges = np.flatnonzero(np.diff(row)) + 1
    for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), len(row)], strict=True):
        if end > begin:
            yield begin, end, int(row[begin])


# ----------------------------------------------------------------------------------------------- how long rows are


def lengths_of(tensors: Mapping[str, Any]) -> dict[str, list[int]]:
    """Tokens of every row of the batch ("tokens"), and of its response where its place is known ("response").

    A mask is summed where it is, some rows at a time: of a batch on a device only one number a row travels.

    >>> lengths_of({"attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]), "responses": torch.zeros(2, 1)})
    {'tokens': [2, 3], 'response': [1, 1]}
    """
    found: dict[str, list[int]] = {}
    for name, ask in (("tokens", _token_lengths), ("response", _response_lengths)):
        lengths = _known(ask, tensors)
        if lengths is not None:
            found[name] = lengths
    return found


def _known(ask: Callable[[Mapping[str, Any]], Any], tensors: Mapping[str, Any]) -> list[int] | None:
    try:
        counted = ask(tensors)
        return None if counted is None else [int(one) for one in counted.tolist()]
    except (RuntimeError, NotImplementedError):  # a tensor without values
        return None


def _token_lengths(tensors: Mapping[str, Any]) -> torch.Tensor | None:
    mask, ids = tensors.get("attention_mask"), tensors.get("input_ids")
    if _has_positions(mask):
        return counted(mask)
    lengths = tensors.get("input_lengths")
    if isinstance(lengths, torch.Tensor) and lengths.ndim == 1 and not lengths.is_nested:
        return lengths
    return jagged_lengths(ids) if is_jagged(ids) else None


def _response_lengths(tensors: Mapping[str, Any]) -> torch.Tensor | None:
    responses, mask = tensors.get("responses"), tensors.get("attention_mask")
    if is_jagged(responses):
        return jagged_lengths(responses)
    if not _is_padded(responses):
        return None
    width = responses.shape[1]
    if _is_padded(mask) and mask.shape[1] >= width:
        return counted(mask[:, mask.shape[1] - width :])
    return None


def counted(mask: Any) -> torch.Tensor:
    """Entries other than zero of each row: int64 (B,), on the CPU. Takes memory for a block of rows, not for all.

    >>> counted(torch.tensor([[0, 2], [1, 1]])).tolist()
    [1, 2]
    """
    if mask.is_nested:
        return torch.tensor([int(row.count_nonzero()) for row in mask.detach().unbind()], dtype=torch.int64)
    rows = max(1, _BLOCK // max(1, mask.shape[1]))
    parts = [part.count_nonzero(dim=1) for part in mask.detach().split(rows)]
    return torch.cat(parts).cpu() if parts else torch.zeros(0, dtype=torch.int64)


class Histogram(NamedTuple):
    """``counts[i]`` rows have from ``edges[i]`` up to, not including, ``edges[i + 1]`` tokens."""

    edges: list[int]
    counts: list[int]


def histogram(lengths: list[int], bins: int = 24) -> Histogram:
    """At most ``bins`` equal bins of whole tokens.

    >>> histogram([1, 2, 2, 9], 3)
    Histogram(edges=[1, 4, 7, 10], counts=[3, 0, 1])
    """
    if not lengths:
        return Histogram([], [])
    first, last = min(lengths), max(lengths)
    step = -(-(last - first + 1) // bins)
    edges = list(range(first, last + 1 + step, step))
    edges = edges if edges[-1] > last else [*edges, edges[-1] + step]
    edges = [edge for at, edge in enumerate(edges) if at == 0 or edges[at - 1] <= last]
    return Histogram(edges, [int(one) for one in np.histogram(lengths, edges)[0]])
