"""Writes docs/hooks.md from the points themselves: ``python docs/make_hooks.py``."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

import probe
from probe import hooks

HEAD = """# Hook points

This page lists every hook point of probe, for anyone who writes a listener or a recorder. A hook point is an
observed function, a scope or a moment. Functions and scopes call a listener at their begin and end. Subscribe a
listener with `probe.subscribe`:

```python
class Print(probe.Listener):
    def leave(self, event, state):
        print(event.point.name, (event.end_ns - event.begin_ns) / 1e3, "µs")


with probe.subscribe(Print(), "data_proto.*"):
    ...
```

An event of a call carries `args`, `kwargs` and `result` (`event.argument("name")` returns one argument). An event of a
moment or scope carries `values`. All carry `scope`, `begin_ns`, `end_ns` and `error`. probe clears the event when the
listeners have returned. An exception in a listener never reaches the caller. After three failures probe switches the
listener off.

`python docs/make_hooks.py` writes this page; a test compares it with the code.

| point | when it fires and what it carries |
|---|---|
"""


def page() -> str:
    """The text of the page."""
    for module in pkgutil.walk_packages(probe.__path__, "probe."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    lines = [
        f"| `{name}` | {' '.join(one.about.split())} |\n"
        for name, one in hooks.points().items()
        if not name.startswith("doctest.")
    ]
    return HEAD + "".join(lines)


def main() -> None:
    """Write it."""
    Path(__file__).with_name("hooks.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
