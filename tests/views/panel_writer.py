"""A training in a process of its own: ``python -m tests.views.panel_writer ROOT STEPS``.

It waits for a line on its input before it ends.
"""

from __future__ import annotations

import sys

from probe.hooks import phase
from probe.session import start

if __name__ == "__main__":
    with start("written", "elsewhere", root=sys.argv[1]) as session:
        for step in range(int(sys.argv[2])):
            with session.step(step), phase("update"):
                pass
            session.log({"reward/mean": step / 10}, step)
        session.flush()
        sys.stdout.write("written\n")
        sys.stdout.flush()
        sys.stdin.readline()
