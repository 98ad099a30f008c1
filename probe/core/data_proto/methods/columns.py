"""Methods of a DataProto that pick, take out and rename columns."""

from __future__ import annotations

from typing import Self

from probe.core.data_proto import column_choice
from probe.core.data_proto.checks import Keys
from probe.core.data_proto.members import Members
from probe.core.data_proto.naming import method_group
from probe.hooks import observed


@method_group
class ColumnMethods(Members):
    """Columns picked, taken out and renamed."""

    @observed("data_proto.select", "columns are picked")
    def select(
        self,
        batch_keys: Keys = None,
        non_tensor_batch_keys: Keys = None,
        meta_info_keys: Keys = None,
        deepcopy: bool = False,
    ) -> Self:
        """A batch of some columns. It shares the tensors and arrays, never the dicts.

        Args:
            batch_keys: Names of columns in ``batch``; None keeps all.
            non_tensor_batch_keys: Names of columns in ``non_tensor_batch``; None keeps all. As in verl a name that
                isn't there is left out, here and in ``meta_info``: not every worker sets every fact.
            meta_info_keys: Names of entries in ``meta_info``; None keeps all.
            deepcopy: Whether tensors, arrays and meta info are copied too.

        Raises:
            MissingKeyError: There is no such column of tensors; the message names what there is.

        >>> data = DataProto.from_dict({"a": torch.zeros(2), "b": torch.ones(2)}, meta_info={"t": 1})
        >>> data.select(["b"])
        DataProto(2 rows; batch: b float32(2,); meta_info: t)
        """
        return column_choice.select(self, batch_keys, non_tensor_batch_keys, meta_info_keys, deepcopy)

    @observed("data_proto.pop", "columns are removed and returned")
    def pop(self, batch_keys: Keys = None, non_tensor_batch_keys: Keys = None, meta_info_keys: Keys = None) -> Self:
        """Take columns out of this batch; all of them or, on an error, none.

        Args:
            batch_keys: Names of columns in ``batch``; None takes none.
            non_tensor_batch_keys: Names of columns in ``non_tensor_batch``; None takes none.
            meta_info_keys: Names of entries in ``meta_info``; None takes none.

        Returns:
            A batch of what was taken out.

        Raises:
            MissingKeyError: A name isn't there, in any member.

        >>> data = DataProto.from_dict({"a": torch.zeros(2), "b": torch.ones(2)})
        >>> data.pop("a"), data
        (DataProto(2 rows; batch: a float32(2,)), DataProto(2 rows; batch: b float32(2,)))
        """
        return column_choice.pop(self, batch_keys, non_tensor_batch_keys, meta_info_keys)

    @observed("data_proto.rename", "tensor columns are renamed")
    def rename(self, old_keys: Keys = None, new_keys: Keys = None) -> Self:
        """Give tensor columns other names, in place; the order of the columns stays.

        Args:
            old_keys: One name or several, as they are now.
            new_keys: Equally many names, as they shall be.

        Returns:
            This batch.

        Raises:
            MissingKeyError: There is no such old name.
            InputError: The two aren't equally many, or a name would be there twice.

        >>> data = DataProto.from_dict({"a": torch.zeros(2), "b": torch.ones(2)})
        >>> data.rename(["a", "b"], ["b", "a"]).batch["a"]
        tensor([1., 1.])
        """
        return column_choice.rename(self, old_keys, new_keys)
