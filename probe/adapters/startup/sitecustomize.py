"""The start file of ``probe run``: Python imports it as it starts, before a program's own code. Standard library only.

It waits for the import of a framework and does nothing else: a process that never imports one loads nothing more. The
``sitecustomize`` that Python would have found without this one is run after it, and its errors are its own.
"""

import sys

TYPE_CHECKING = False  # that of `typing`, whose import costs a process more than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

#: Top-level packages whose import brings probe: those of ``probe.adapters.attachment.ADAPTERS``.
PACKAGES = (
    "lightning",
    "nemo_rl",
    "openrlhf",
    "pytorch_lightning",
    "ray",
    "sglang",
    "torchtitan",
    "transformers",
    "trl",
    "verl",
    "vllm",
)


class _Waiting:
    """Stands among the finders and lets every import pass to the others; at the first framework it attaches probe."""

    waits = True

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: object = None) -> "ModuleSpec | None":
        """None; for the first framework what probe's own finder says, which was put on too late to be asked."""
        if not self.waits or name not in PACKAGES:
            return None
        self.waits = False  # and stays where it is: another thread may be going through the finders
        try:
            from probe_rl import harmless, load
        except (ImportError, SyntaxError) as error:  # a Python without probe, or one that is too old for it
            if sys.stderr is not None:
                sys.stderr.write(f"probe can't observe process {__import__('os').getpid()}: {error}\n")
            return None
        with harmless():  # the program's import goes on as it would without probe
            load("probe.adapters.attachment").attach()
            found: ModuleSpec | None = load("probe.adapters.imports").find_spec(name, path, target)
            return found
        return None


def _tidy_the_path() -> None:
    """Ray puts this folder in front of a ``PYTHONPATH`` that may not be there: the empty entry behind it would be the
    working directory, which nobody asked for.
    """
    import os  # which ``site`` has imported

    here = os.path.dirname(__file__)
    if os.environ.get("PYTHONPATH") == here + os.pathsep:
        os.environ["PYTHONPATH"] = here
        at = sys.path.index(here) + 1 if here in sys.path else len(sys.path)
        if sys.path[at : at + 1] == [os.getcwd()]:
            del sys.path[at]


def _run_the_other() -> None:
    """Import the ``sitecustomize`` that stands behind this one on the path; it takes this one's place."""
    here = __file__.rpartition("sitecustomize")[0].rstrip("/\\")
    before = sys.path[:]
    sys.path[:] = [one for one in before if one.rstrip("/\\") != here]
    ours = sys.modules.pop(__name__)
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours
    finally:
        if sys.path == [one for one in before if one.rstrip("/\\") != here]:
            sys.path[:] = before
        else:  # it has changed the path: what it did stays
            sys.path.insert(0, here)


if __name__ == "sitecustomize":  # under its own name it is a module like any other, and does nothing
    sys.meta_path.insert(0, _Waiting())
    _tidy_the_path()
    _run_the_other()
