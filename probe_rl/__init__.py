"""The door through which others load probe: entry points, the start file of ``probe run``, the command ``probe-rl``.

It has a name of this distribution's own. Others on the package index bring a package ``probe`` and a command ``probe``
as well; pip lets what is installed later overwrite the earlier, and frameworks swallow what their plugins raise. So
whoever loads probe by name names this package: it looks whose ``probe`` there is, before that is imported, and says so
where it isn't ours. Standard library only.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own would bring typing, which takes ten times as long as all of this
if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import Distribution
    from types import TracebackType
    from typing import Any, Final

#: Ours, as pip knows it; our ``probe`` says it in ``__distribution__``.
DISTRIBUTION: Final = "probe-rl"

_PACKAGE: Final = "probe"
_MARK: Final = f'__distribution__ = "{DISTRIBUTION}"'


class NotOursError(ImportError):
    """``import probe`` would give, or has given, another package than ours."""


def load(module: str) -> Any:
    """Import a module of our ``probe``; of another package of that name nothing is imported.

    Args:
        module: Its full name, such as ``probe.adapters.attachment``.

    Returns:
        The module.

    Raises:
        NotOursError: There is no such package, or it is somebody else's. The message says whose, and what to do.
    """
    why = whose()
    if why:
        raise NotOursError(why, name=_PACKAGE)
    from importlib import import_module

    return import_module(module)


def whose() -> str:
    """Whose package ``probe`` is, and what to do, where it isn't ours; "" where it is."""
    there = sys.modules.get(_PACKAGE)
    if there is not None:
        place = getattr(there, "__file__", None)
        ours = getattr(there, "__distribution__", None) == DISTRIBUTION
    else:
        from importlib.util import find_spec

        spec = find_spec(_PACKAGE)  # which imports nothing
        if spec is None:
            return f"there is no package {_PACKAGE!r}: install {DISTRIBUTION} again"
        place = spec.origin
        source = getattr(spec.loader, "get_source", None)
        ours = source is not None and _MARK in (source(_PACKAGE) or "")
    if ours:
        return ""
    said = f"the package {_PACKAGE!r} that is imported here, {place or 'a folder without __init__.py'}, is "
    names = list(others(place))
    if names:
        return f"{said}of {' and '.join(names)}: {DISTRIBUTION} needs an environment without it"
    return f"{said}not of {DISTRIBUTION}: rename it, or take its folder off the path"


def others(place: str | None = None) -> Iterator[str]:
    """Names and versions of the distributions that bring a package ``probe`` too.

    Args:
        place: The file of the package; of None all distributions that have one are told.
    """
    from importlib import metadata

    for one in metadata.distributions():
        if _brings(one, place) and one.metadata["Name"] != DISTRIBUTION:
            yield f"{one.metadata['Name']} {one.version}"


def _brings(one: Distribution, place: str | None) -> bool:
    name = f"{_PACKAGE}/__init__.py"
    if f"\n{name}," not in f"\n{one.read_text('RECORD') or ''}":
        return False
    return place is None or os.path.realpath(str(one.locate_file(name))) == os.path.realpath(place)


class harmless:  # reads as an adjective at the point of use: `with harmless():`
    """A block of ours in somebody else's program, which goes on whatever is raised in it: that is said.

    With ``PROBE_STRICT=1`` in the environment, as in probe's own tests, it is said and raised. What is no ``Exception``
    goes on as it is.

    Args:
        failed: What is said before the reason; None says that probe can't observe this process, "" says nothing.
    """

    def __init__(self, failed: str | None = None) -> None:
        self._failed = failed

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        import os  # the class is sent by value to processes without this module: see probe_rl.ray
        import sys

        if not isinstance(error, Exception):
            return False
        failed = f"probe can't observe process {os.getpid()}" if self._failed is None else self._failed
        if failed and sys.stderr is not None:
            why = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
            sys.stderr.write(f"{failed}: {why}\n")
        return os.environ.get("PROBE_STRICT") != "1"


def main() -> int:
    """The command ``probe-rl``: the same as ``probe``, which another distribution may have too.

    Returns:
        The exit code.
    """
    try:
        cli = load("probe.cli")
    except NotOursError as error:
        sys.stderr.write(f"{DISTRIBUTION}: {error}\n")
        return 1
    code: int = cli.main()
    return code
