"""``probe.inspect``: what is in a batch, for a person.

The columns and the memory they share are looked at when the inspection is made; values, token maps and lengths are
read when they are asked for, and only the rows asked for leave a device. The batch is never copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from probe.errors import InputTypeError, MissingKeyError, SessionError
from probe.inspection import rendering as inspection_html
from probe.inspection import token_map as tokens
from probe.inspection import widget as inspector_view
from probe.inspection.contents import Column, Schema, members, rows_of, schema_of
from probe.inspection.plain_text import plain
from probe.inspection.token_map import TokenMap, lengths_of, token_map
from probe.inspection.values import RowText, decoded, row_range, rows_of_column, tensors_of

if TYPE_CHECKING:
    import pandas as pd

#: Rows of the token map where none were asked for.
ROWS: Final = 16


class Inspection:
    """What :func:`inspect` returns: shown by a notebook, printed as text, asked for values.

    It refers to the batch as any variable does, and so keeps it in memory; :meth:`close` lets go of it.

    Args:
        batch: See :func:`inspect`.
        tokenizer: See :func:`inspect`.
        rows: See :func:`inspect`.

    Attributes:
        schema: Columns, bytes and shared memory, as they were when the inspection was made.
        start: The first row that the token map and the texts show.
        stop: The row after the last one that the token map and the texts show.
    """

    def __init__(self, batch: Any, tokenizer: Any = None, rows: Any = None) -> None:
        if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
            raise InputTypeError(f"tokenizer: got {plain(tokenizer)}, expected an object with a decode(ids) method")
        self.schema: Schema = schema_of(batch)
        self.start, self.stop = row_range(rows, self.schema.rows or 0, ROWS)
        self._fields = {_name(field.section, field.key): field.value for field in members(batch).fields}
        self._tensors = tensors_of(members(batch).fields)
        self._tokenizer = tokenizer
        self._view: inspector_view.Shown | None = None
        self.closed = False

    # ------------------------------------------------------------------------------------------------- asking

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the columns, as :meth:`values` takes them."""
        return tuple(_name(column.section, column.key) for column in self.schema.columns)

    @property
    def can_decode(self) -> bool:
        """Whether there is a tokenizer."""
        return self._tokenizer is not None

    def frame(self) -> pd.DataFrame:
        """The columns as a pandas frame: the fields of :class:`~probe.inspection.contents.Column`."""
        import pandas as pd

        frame = pd.DataFrame(list(self.schema.columns), columns=list(Column._fields))
        return frame.astype({"rows": "Int64", "bytes": "Int64"})

    def values(self, key: str, rows: Any = None, positions: Any = None) -> list[Any]:
        """Values of one column: a list with a tensor on the CPU, or an object, for each row.

        Args:
            key: The column, with or without the member of the DataProto before it ("batch.input_ids", "input_ids").
            rows: Which rows, as :func:`inspect` takes them; None means those of the inspection.
            positions: Which entries of each row, likewise; None means all of them.

        Raises:
            MissingKeyError: There is no such column.
            InputError: Rows or positions are outside the batch.
            InputTypeError: Rows or positions are of the wrong type.
            SessionError: The inspection is closed.
        """
        value = self._column(key)
        count = rows_of(value) if rows_of(value) is not None else self.schema.rows or 1
        start, stop = self._range(rows, count or 0)
        cut = None if positions is None else slice(*row_range(positions, _longest(value)))
        return rows_of_column(value, start, stop, cut)

    def token_map(self, rows: Any = None) -> TokenMap:
        """What each position is: padding, prompt, response. Codes into ``probe.inspection.token_map.KINDS``.

        Raises:
            InputError: Rows are outside the batch.
            InputTypeError: Rows are of the wrong type.
            SessionError: The inspection is closed.
        """
        self._check_open()
        return token_map(self._tensors, *self._range(rows, self.schema.rows or 0))

    def lengths(self) -> dict[str, list[int]]:
        """Tokens of every row of the batch, and of its response where its place is known. Of a batch on a device
        one number a row travels.

        Raises:
            SessionError: The inspection is closed.
        """
        self._check_open()
        return lengths_of(self._tensors)

    def texts(self, rows: Any = None) -> list[RowText]:
        """Decoded prompt and response of some rows, special tokens included, padding left out.

        Raises:
            MissingKeyError: There is no tokenizer, or no column of token ids.
            InputError: Rows are outside the batch.
            InputTypeError: Rows are of the wrong type.
            SessionError: The inspection is closed.
        """
        if self._tokenizer is None:
            raise MissingKeyError("tokenizer: none was given; pass it: probe.inspect(batch, tokenizer)")
        self._check_open()
        start, stop = self._range(rows, self.schema.rows or 0)
        if "input_ids" not in self._tensors:
            return self._apart(start, stop)
        found = self.token_map((start, stop))
        ids = self.values("input_ids", (start, stop))
        return [self._text(start + at, row, found, at) for at, row in enumerate(ids)]

    def close(self) -> None:
        """Let go of the batch. What a notebook shows stays, without values on demand. Safe to call twice."""
        self.closed = True
        self._fields, self._tensors = {}, {}
        if self._view is not None:
            self._view.close()

    # ------------------------------------------------------------------------------------------------ showing

    def __repr__(self) -> str:
        return inspection_html.text(self)

    def _repr_html_(self) -> str:
        return inspection_html.document(self)

    def _ipython_display_(self) -> None:
        """In a notebook, a widget that gives values on demand; elsewhere the plain forms."""
        shown = inspector_view.show(self)
        if shown is None:
            raise NotImplementedError  # IPython's word for: ask the other representations
        if self._view is not None:
            self._view.close()
        self._view = shown

    # ------------------------------------------------------------------------------------------------- inside

    def _check_open(self) -> None:
        if self.closed:
            raise SessionError("this inspection is closed and no longer holds a batch; call probe.inspect again")

    def _range(self, rows: Any, count: int) -> tuple[int, int]:
        return row_range((self.start, self.stop) if rows is None else rows, count)

    def _column(self, key: str) -> Any:
        self._check_open()
        found = [name for name in self._fields if name == key] or [
            name for name, column in zip(self.keys, self.schema.columns, strict=True) if column.key == key
        ]
        if not found:
            raise MissingKeyError(f"key: no column {key!r}; the batch has {', '.join(self._fields) or 'none'}")
        return self._fields[found[0]]

    def _text(self, row: int, ids: Any, found: TokenMap, at: int) -> RowText:
        if at >= len(found.rows) or len(found.rows[at]) != len(ids):
            return RowText(row, "", "", decoded(self._tokenizer, ids.tolist()))
        codes = found.rows[at]
        parts = {name: decoded(self._tokenizer, ids.numpy()[_among(codes, name)]) for name in ("prompt", "response")}
        whole = ids.numpy()[codes == tokens.VALID]
        return RowText(row, **parts, whole=decoded(self._tokenizer, whole) if len(whole) else "")

    def _apart(self, start: int, stop: int) -> list[RowText]:
        """Without ``input_ids``: ``prompts`` and ``responses`` by themselves, padding included."""
        columns = {name: self._tensors[name] for name in ("prompts", "responses") if name in self._tensors}
        if not columns:
            have = ", ".join(self._fields) or "none"
            raise MissingKeyError(f"batch: got the columns {have}, expected input_ids, prompts or responses")
        said: dict[str, list[str]] = {"prompts": [""] * (stop - start), "responses": [""] * (stop - start)}
        for name, column in columns.items():
            said[name] = [decoded(self._tokenizer, ids.tolist()) for ids in rows_of_column(column, start, stop)]
        pairs = zip(said["prompts"], said["responses"], strict=True)
        return [RowText(start + at, prompt, response, "") for at, (prompt, response) in enumerate(pairs)]


def _name(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _among(codes: Any, part: str) -> Any:
    if part == "prompt":
        return codes == tokens.PROMPT
    return (codes == tokens.RESPONSE) | (codes == tokens.MASKED)


def _longest(value: Any) -> int:
    """Entries of a row, where they are known without reading anything."""
    width = value.shape[1] if getattr(value, "ndim", 0) > 1 else None
    return width if isinstance(width, int) else 1 << 40  # of jagged rows a slice cuts off by itself


def inspect(batch: Any, tokenizer: Any = None, rows: Any = None) -> Inspection:
    """Look into a batch: columns, bytes, shared memory, where tokens and padding stand, lengths, values, texts.

    Args:
        batch: A DataProto, TensorDict, BatchedDataDict or dict of columns. It isn't copied and isn't changed.
        tokenizer: Anything with ``decode(ids)``; then rows can be read as text.
        rows: The rows whose tokens are shown: one row, a range, a slice or a (start, stop) pair; None means the first
            :data:`ROWS`.

    Raises:
        InputTypeError: It is not a batch, the tokenizer isn't one, or rows are of another type.
        InputError: A row isn't there.
    """
    return Inspection(batch, tokenizer, rows)
