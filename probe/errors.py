"""What goes wrong in probe, and which built-in exception each kind also is.

::

    ProbeError                       everything raised on purpose by probe
    ├── InputError (ValueError, AssertionError)
    │   │                            an argument has a value that can't be used
    │   ├── InputTypeError (TypeError)
    │   │                            an argument has a type that can't be used
    │   ├── ShapeError               tensors or arrays that don't fit each other
    │   ├── ConflictError            two batches disagree on a key (the documented contract of ``union``)
    │   ├── CapacityError            a sequence is longer than what may hold it
    │   │   └── TruncationError (NotImplementedError)
    │   │                            a sequence is too long, and the caller asked for an error rather than a cut
    │   ├── UnknownNameError         a name outside a fixed list of choices
    │   ├── SerializationError (TypeError)
    │   │                            a value that can't be written, or bytes that can't be read
    │   ├── RowIndexError (IndexError)
    │   │                            a row that isn't there
    │   └── NonFiniteNormError (RuntimeError)
    │                                the gradients' norm is NaN or infinite
    ├── MissingKeyError (KeyError, AssertionError)
    │                                a key that isn't there
    ├── CopyError (OSError)          a copy failed, or isn't equal to its source
    │   ├── SourceMissingError (FileNotFoundError)
    │   ├── TargetExistsError (FileExistsError)
    │   └── NoRoomError              the disk or the shared memory is too small
    ├── RunError                     a run directory can't be used
    │   ├── RunNotFoundError (FileNotFoundError)
    │   └── SchemaVersionError       the run was written by a newer probe
    ├── BackendError (RuntimeError)  a tracking backend can't be set up
    ├── PeerError (RuntimeError)     another rank failed, so this one stops too
    ├── SessionError (RuntimeError)  a session is used in a state that doesn't allow it
    └── MissingDependencyError (ImportError)
                                     an optional package isn't installed

Messages name the argument, what was given and what was expected.

verl and NeMo-RL check many of their callers' mistakes with ``assert``, here a ValueError or TypeError there. So that an
``except`` written for them works on, what is wrong with an argument is an :class:`AssertionError` too, whatever else it
is; and a type that can't be used is also the ValueError that verl's ``Metric`` makes of it.
"""

from __future__ import annotations

from collections.abc import Iterable


class ProbeError(Exception):
    """Everything that probe raises on purpose."""


class InputError(ProbeError, ValueError, AssertionError):
    """An argument has a value that can't be used."""


class InputTypeError(InputError, TypeError):
    """An argument has a type that can't be used."""


class ShapeError(InputError):
    """Tensors or arrays whose shapes don't fit each other."""


class ConflictError(InputError):
    """Two batches hold different values under one key."""


class CapacityError(InputError):
    """A sequence is longer than the micro-batch or buffer that must hold it."""


class TruncationError(CapacityError, NotImplementedError):
    """A sequence is longer than its place, and ``truncation="error"`` was asked for."""


class UnknownNameError(InputError):
    """A name that isn't one of the choices."""

    @classmethod
    def of(cls, argument: str, given: object, choices: Iterable[str]) -> UnknownNameError:
        """The error for ``argument`` that was ``given`` something outside ``choices``.

        Args:
            argument: The name of the argument.
            given: What was given.
            choices: The names that would have been right.
        """
        return cls(f"{argument}: got {given!r}, expected one of {', '.join(sorted(choices))}")


class SerializationError(InputError, TypeError):
    """A value that can't be written, or bytes that can't be read back."""


class RowIndexError(InputError, IndexError):
    """A row outside the batch; an :class:`IndexError` as well, which is what ends iteration and what callers
    expect."""


class NonFiniteNormError(InputError, RuntimeError):
    """The norm of the gradients is NaN or infinite, and the caller asked to be told. Raised on all ranks together."""


class MissingKeyError(ProbeError, KeyError, AssertionError):
    """A key that isn't there; the message lists what is."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which buries a readable sentence in quotes.
        return str(self.args[0]) if self.args else ""


class CopyError(ProbeError, OSError):
    """A copy failed, or isn't equal to its source. Nothing half copied is left."""


class SourceMissingError(CopyError, FileNotFoundError):
    """There is nothing at the path or URL that should be copied."""


class TargetExistsError(CopyError, FileExistsError):
    """There is something where a directory should be copied to."""


class NoRoomError(CopyError):
    """The disk or the shared memory is too small for the copy."""


class RunError(ProbeError):
    """A run directory can't be used."""


class RunNotFoundError(RunError, FileNotFoundError):
    """There is no run at that path."""


class SchemaVersionError(RunError):
    """The run was written with a newer row schema than this probe can read."""


class BackendError(ProbeError, RuntimeError):
    """A tracking backend can't be set up."""


class PeerError(ProbeError, RuntimeError):
    """Another rank reported an error, so that this rank stops with the same message."""


class SessionError(ProbeError, RuntimeError):
    """A session is used in a state that doesn't allow it."""


class MissingDependencyError(ProbeError, ImportError):
    """An optional package isn't installed; the message names the extra that brings it."""

    @classmethod
    def of(cls, what: str, package: str, extra: str) -> MissingDependencyError:
        """The error for a feature ``what`` that needs ``package`` from ``probe-rl[extra]``.

        Args:
            what: The feature.
            package: The package that it needs.
            extra: The extra of probe's that brings the package.
        """
        return cls(f"{what} needs the package {package!r}; install it with: pip install 'probe-rl[{extra}]'")
