"""``python -m probe``: the same as the command ``probe``."""

from __future__ import annotations

import sys

from probe.cli import main

if __name__ == "__main__":
    sys.exit(main())
