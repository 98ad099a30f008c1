"""Methods of a DataProto that give some of its rows, each several times, or in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch

from probe.core.data_proto import picking
from probe.core.data_proto.checks import Array
from probe.core.data_proto.members import Members
from probe.core.data_proto.naming import method_group
from probe.hooks import observed


@method_group
class RowMethods(Members):
    """Rows picked, repeated and reordered."""

    @observed("data_proto.select_idxs", "rows are picked")
    def select_idxs(self, idxs: Any) -> Self:
        """The rows that ``idxs`` (integers or booleans, in a list, array or tensor) picks, copied.

        Raises: as ``data[idxs]``; a single integer is an InputTypeError.

        >>> DataProto.from_dict({"a": torch.arange(3)}).select_idxs([2, 2]).batch["a"].tolist()
        [2, 2]
        """
        return picking.rows_of(self, idxs)

    @observed("data_proto.slice", "a range of rows is taken")
    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> Self:
        """Rows ``start`` to ``end``; views, if ``step`` is 1 or None.

        Args:
            start: The first row; None means the beginning.
            end: The row after the last one; None means the end.
            step: Take each so-many-th row; None means 1.

        >>> DataProto.from_dict({"a": torch.arange(5)}).slice(1, 4, 2).batch["a"].tolist()
        [1, 3]
        """
        return picking.stretch(self, slice(start, end, step))

    @observed("data_proto.repeat", "every row is repeated")
    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> Self:
        """Every row ``repeat_times`` times: side by side (a a b b) or, without ``interleave``, in turns (a b
        a b).

        Args:
            repeat_times: How often each row is there in the result.
            interleave: Whether copies of a row stand side by side rather than in turns.

        Raises:
            InputError: ``repeat_times`` is below 0.

        >>> data = DataProto.from_dict({"a": torch.tensor([1, 2])})
        >>> data.repeat(2).batch["a"].tolist(), data.repeat(2, interleave=False).batch["a"].tolist()
        ([1, 1, 2, 2], [1, 2, 1, 2])
        """
        return picking.repeat(self, repeat_times, interleave)

    @observed("data_proto.sample_level_repeat", "each row is repeated its own number of times")
    def sample_level_repeat(self, repeat_times: Sequence[int] | torch.Tensor | Array) -> Self:
        """Row ``i`` ``repeat_times[i]`` times, side by side; 0 leaves it out.

        Raises:
            ShapeError: There isn't one number for each row.
            InputError: A number is negative.
            InputTypeError: They are not integers.

        >>> data = DataProto.from_dict({"a": torch.tensor([7, 8, 9])})
        >>> data.sample_level_repeat([2, 0, 1]).batch["a"].tolist()
        [7, 7, 9]
        """
        return picking.sample_level_repeat(self, repeat_times)

    @observed("data_proto.reorder", "rows are reordered")
    def reorder(self, indices: Any) -> None:
        """Put the rows in the order of ``indices`` (list, array or tensor), in place.

        Raises: as ``data[indices]``; nothing has changed then.

        >>> data = DataProto.from_dict({"a": torch.tensor([7, 8, 9])})
        >>> data.reorder([2, 0, 1])
        >>> data.batch["a"].tolist()
        [9, 7, 8]
        """
        picking.reorder(self, indices)
