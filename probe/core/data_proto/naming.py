"""The names of DataProto's methods, which lie in several files: each keeps the name of the class that users know."""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

Group = TypeVar("Group", bound=type)


def method_group(group: Group) -> Group:
    """Name the methods of a base class of DataProto as DataProto's own.

    Pickle finds a method by its module and its qualified name, and the rows of calls and tracebacks of other tools show
    them: none of them shall depend on the file that a method lies in.

    Args:
        group: The base class, whose methods are renamed in place.

    Returns:
        ``group``.
    """
    for name, member in vars(group).items():
        method = member
        while isinstance(method, FunctionType | classmethod | staticmethod):
            method.__module__, method.__qualname__ = "probe.core.protocol", f"DataProto.{name}"
            method = getattr(method, "__wrapped__", None)  # what it is a classmethod of, or what is observed
    return group
