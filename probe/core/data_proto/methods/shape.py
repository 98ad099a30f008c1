"""Methods of a DataProto that group rows, ungroup them, and cut columns into rows of their own."""

from __future__ import annotations

from typing import Self

from probe.core.data_proto import reshaping
from probe.core.data_proto.checks import Keys
from probe.core.data_proto.members import Members
from probe.core.data_proto.naming import method_group
from probe.hooks import observed


@method_group
class ShapeMethods(Members):
    """The batch dimension made of several, or made several."""

    @observed("data_proto.unfold_column_chunks", "columns are cut along dimension 1 into separate rows")
    def unfold_column_chunks(self, n_split: int, split_keys: Keys = None) -> Self:
        """Each row becomes ``n_split`` rows: the columns ``split_keys`` are cut along dimension 1, the
        others repeated.

        Args:
            n_split: How many rows each row becomes.
            split_keys: Columns (B, n_split · k, ...), which become (B · n_split, k, ...). None cuts none. A column of
                objects (B,) that are lists of n_split · k entries each becomes objects (B · n_split, k).

        Raises:
            InputError: ``n_split`` is below 1.
            MissingKeyError: There is no such column.
            ShapeError: A column can't be cut so.

        >>> data = DataProto.from_dict({"pair": torch.tensor([[1, 2], [3, 4]]), "id": torch.tensor([7, 8])})
        >>> both = data.unfold_column_chunks(2, ["pair"]).batch
        >>> both["pair"].tolist(), both["id"].tolist()
        ([[1], [2], [3], [4]], [7, 7, 8, 8])
        """
        return reshaping.unfold_column_chunks(self, n_split, split_keys)

    @observed("data_proto.fold_batch_dim", "rows are grouped")
    def fold_batch_dim(self, new_batch_size: int) -> Self:
        """Columns (B, ...) as (b, B / b, ...), with ``b = new_batch_size`` rows. This batch stays as it is.

        Raises:
            InputError: ``new_batch_size`` doesn't divide the rows.
            ShapeError: A column is jagged.

        >>> DataProto.from_dict({"a": torch.zeros(6, 5)}).fold_batch_dim(2)
        DataProto(2 rows; batch: a float32(2, 3, 5))
        """
        return reshaping.fold_batch_dim(self, new_batch_size)

    @observed("data_proto.unfold_batch_dim", "groups become rows again")
    def unfold_batch_dim(self, batch_dims: int = 2) -> Self:
        """The first ``batch_dims`` dimensions of all columns as one. This batch stays as it is.

        Raises:
            InputError: ``batch_dims`` is below 1.
            ShapeError: A column has fewer dimensions, or others than its neighbours, or is jagged.

        >>> DataProto.from_dict({"a": torch.zeros(2, 3, 5)}).unfold_batch_dim()
        DataProto(6 rows; batch: a float32(6, 5))
        """
        return reshaping.unfold_batch_dim(self, batch_dims)
