"""Methods of a DataProto that say what it holds: sizes, a schema, one line, a table in a notebook."""

from __future__ import annotations

import sys
from typing import Any

from probe.core.data_proto import info as data_info
from probe.core.data_proto.members import Members
from probe.core.data_proto.naming import method_group


@method_group
class LookMethods(Members):
    """What a batch holds, as text and as HTML."""

    def print_size(self, prefix: str = "") -> None:
        """Write the size of tensors and of arrays, in GB (1024³ bytes), to standard output."""
        sys.stdout.write(data_info.size_text(self.batch, self.non_tensor_batch, prefix) + "\n")

    def get_data_info(self) -> str:
        """All keys with their shapes, dtypes and devices, as text.

        >>> print(DataProto.from_dict({"a": torch.zeros(2, 3)}, meta_info={"t": 1.0}).get_data_info())
        rows: 2
        batch:
          a: (2, 3) float32 cpu
        non_tensor_batch:
        meta_info:
          t: float
        """
        return data_info.schema_text(len(self), self.batch, self.non_tensor_batch, self.meta_info)

    def __repr__(self) -> str:
        name = type(self).__name__
        return data_info.one_line(name, len(self), self.batch, self.non_tensor_batch, self.meta_info)

    def _repr_html_(self) -> str:
        name = type(self).__name__
        return data_info.html_table(name, len(self), self.batch, self.non_tensor_batch, self.meta_info)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return data_info.mime_bundle(repr(self), self._repr_html_(), include, exclude)
