"""The process of the page: reads what it is to run, and ends when the process that began it has ended."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from typing import Final

#: Seconds between two looks for that process.
EVERY_S: Final = 0.5


def main(parent: int) -> None:
    """Run what stands in the standard input.

    Args:
        parent: Number of the process that began this one.
    """
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    target, kwargs = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  (of our own parent)
    target(**kwargs)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(EVERY_S)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
