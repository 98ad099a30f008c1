"""``python -m probe_rl``: the same as the command ``probe-rl``."""

from __future__ import annotations

import sys

from probe_rl import main

if __name__ == "__main__":
    sys.exit(main())
