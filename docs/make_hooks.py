"""Writes docs/hooks.md from the points themselves: ``python docs/make_hooks.py``."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

import probe
from probe import hooks

HEAD = """# Hook points

Every place in probe that can be listened to. A point is an observed function (a listener hears it begin and
end), a scope (likewise) or a moment. Listen with `probe.subscribe`:

```python
class Print(probe.Listener):
    def leave(self, event, state):
        print(event.point.name, (event.end_ns - event.begin_ns) / 1e3, "µs")


with probe.subscribe(Print(), "data_proto.*"):
    ...
```

An event carries `args`, `kwargs` and `result` of the call (`event.argument("name")` finds one), or the `values`
of a moment or scope, besides `scope`, `begin_ns`, `end_ns` and `error`.
It is emptied once the listeners have returned. A listener that
raises never reaches the caller; after three failures it is switched off.

`python docs/make_hooks.py` writes this page; a test compares it with the code.

| point | when it fires, what it carries |
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
