"""Arrow tables as pandas frames in which missing is missing and NaN is NaN.

==================  ==============================  ==========================================
field               column                          a missing value (None in the row)
==================  ==============================  ==========================================
``int``             ``int64``                       can't be
``int | None``      ``Int64``                       ``<NA>``
``float``           ``float64``                     can't be; NaN is a number that was written
``float | None``    ``Float64``                     ``<NA>``; ``isna()`` is False for NaN
``bool``            ``bool``                        can't be
``str``             ``object`` of str               can't be
``str | None``      ``object`` of str and None      ``None``
``list[...]``       ``object`` of list              can't be
==================  ==============================  ==========================================

A ``Float64`` column as plain floats, with both kinds as NaN: ``column.to_numpy(float, na_value=math.nan)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probe.runs.columns import Column

if TYPE_CHECKING:
    import pandas
    import pyarrow


def table_frame(found: pyarrow.Table, columns: tuple[Column, ...]) -> pandas.DataFrame:
    """``found`` with exactly ``columns``, each of the one dtype that its field always has."""
    import pandas as pd

    series = {one.name: _series(_filled(found[one.name], one), one.optional) for one in columns}
    return pd.DataFrame(series, columns=[one.name for one in columns])


def query_frame(found: pyarrow.Table) -> pandas.DataFrame:
    """``found`` with the dtypes above; a column of a query is optional where it has a missing value."""
    import pandas as pd

    series = [_series(narrowed(column), column.null_count > 0) for column in found.columns]
    frame = pd.concat(series, axis=1) if series else pd.DataFrame()
    frame.columns = pd.Index(found.column_names, dtype=object)
    return frame


def _filled(values: Any, column: Column) -> Any:
    """Rows of an older probe lack the fields that were added since: they have the default."""
    import pyarrow as pa

    if column.optional or not values.null_count:
        return values
    found = [column.default if one is None else one for one in values.to_pylist()]
    return pa.chunked_array([pa.array(found, values.type)])


def narrowed(values: Any) -> Any:
    """Sums of integers come as decimals of 38 digits: integers again where they fit, else floats."""
    import pyarrow as pa

    if not pa.types.is_decimal(values.type):
        return values
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        return values.cast(pa.float64())


def _series(values: Any, optional: bool) -> Any:
    import pandas as pd
    import pyarrow as pa

    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return pd.Series(_numbers(values, optional))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_list(kind):
        return pd.Series(_objects(values), dtype=object)
    return values.to_pandas()


def _numbers(values: Any, optional: bool) -> Any:
    import numpy as np
    import pandas as pd
    import pyarrow.compute as pc

    if not optional:
        return values.to_numpy()
    missing = pc.is_null(values).to_numpy().astype(bool)
    numbers = np.array(pc.fill_null(values, 0).to_numpy())
    array = pd.arrays.FloatingArray if numbers.dtype.kind == "f" else pd.arrays.IntegerArray
    return array(numbers, missing)


def _objects(values: Any) -> Any:
    """As Python objects, with one object for all equal texts of a chunk."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_list(values.type):
        return values.to_pylist()
    found = np.empty(len(values), dtype=object)
    begin = 0
    for chunk in values.dictionary_encode().chunks:
        texts = np.array([*chunk.dictionary.to_pylist(), None], dtype=object)
        indices = chunk.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)
        found[begin : begin + len(chunk)] = texts[indices]
        begin += len(chunk)
    return found
