"""A training in a process of its own: ``python -m tests.views.panel_writer ROOT STEPS``.

It waits for a line on its input before the second half of its steps, and for one before it ends.
"""

from __future__ import annotations

import sys

from probe.hooks import phase
from probe.session import start

if __name__ == "__main__":
    with start("written", "elsewhere", root=sys.argv[1]) as session:
        half = int(sys.argv[2]) // 2
        for steps in (range(half), range(half, 2 * half)):
            for step in steps:
                with session.step(step), phase("update"):
                    pass
                session.log({"reward/mean": step / 10}, step)
            session.flush()
            sys.stdout.write("written\n")
            sys.stdout.flush()
            sys.stdin.readline()
