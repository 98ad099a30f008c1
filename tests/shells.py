"""An IPython shell in the process of the tests, which leaves nothing behind."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


@contextmanager
def ipython_shell() -> Iterator[InteractiveShell]:
    """Yields the shell, without its history, whose database and thread aren't ours to test.

    A shell says that people type here, in `builtins` and by the prompts of `sys`, and leaves that there for whoever
    asks later, as probe does at the end of a process.
    """
    config = Config()
    config.HistoryManager.enabled = False
    try:
        yield InteractiveShell.instance(config=config)
    finally:
        InteractiveShell.clear_instance()
        for where, name in ((builtins, "__IPYTHON__"), (sys, "ps1"), (sys, "ps2"), (sys, "ps3")):
            vars(where).pop(name, None)
