"""Where DuckDB's databases are opened. A forked child frees none of them.

DuckDB has threads, and a child that was forked has none of its parent's: a database that is freed there waits for them
and takes the child down, such as a worker of a data loader in the notebook that has looked at a run.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import duckdb

#: Of this process, as long as anybody holds them.
_open: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
#: Of its parents.
_kept: Final[list[Any]] = []


def database(**settings: str) -> duckdb.DuckDBPyConnection:
    """A new database in memory, that takes no variable of Python's for a table.

    Args:
        **settings: DuckDB's.
    """
    import duckdb

    made = duckdb.connect(":memory:", config={"python_enable_replacements": False, **settings})
    _open.add(made)
    return made


def _keep_in_child() -> None:
    _kept.extend(_open)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_in_child)
