"""One page of all figures of a run, for a backend whose viewer can't load a file beside the one that it shows.

The page holds plotly.js once, and everything in it is packed, so that it stays small; and since all of it is sent anew
for each change, it isn't sent often.
"""

from __future__ import annotations

import base64
import bisect
import functools
import gzip
import html
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from probe.tracking.media import Figure, plotly_script

#: The page isn't sent more often than that, seconds; a figure's JSON always is.
PAGE_S: Final = 30.0

#: Most bytes of all figures' JSON, and of the figures in the page: with plotly.js that is less than 8 MB together.
JSON_BYTES: Final = 4_500_000
PACKED_BYTES: Final = 1_300_000

_SCRIPT: Final = """
(async () => {
  const read = async (id) => {
    const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const script = document.createElement("script");
  script.textContent = await read("plotly");
  document.head.append(script);
  for (const [id, spec] of Object.entries(JSON.parse(await read("figures")))) {
    await Plotly.newPlot(id, spec.data, spec.layout, {responsive: true, displaylogo: false});
  }
})().catch((error) => document.body.prepend(`The figures can't be drawn here: ${error.message}`));
"""

_STYLE: Final = (
    "body{margin:0 auto;max-width:1100px;padding:16px;background:#fff;color:#1a1e26;"
    'font:13px/1.5 -apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}'
    "h1{font-size:16px}h2{font-size:14px;margin:28px 0 4px}nav{columns:16em;margin-bottom:8px}nav a{display:block}"
)


@dataclass(frozen=True)
class Shown:
    """The newest state of one figure."""

    title: str
    figure: Figure


class Pages:
    """The figures of a run, the page of them, and whether it is due.

    Args:
        clock: Gives seconds.

    >>> now = [0.0]
    >>> pages = Pages(lambda: now[0])
    >>> pages.queue_figure("a", "a", Figure("{}"))
    >>> pages.due()
    True
    >>> pages.done(); pages.queue_figure("a", "a", Figure('{"data": []}')); pages.due(), pages.due(last=True)
    (False, True)
    >>> now[0] = 31.0; pages.due()
    True
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._figures: dict[str, Shown] = {}
        self._changed = False
        self._sent = -PAGE_S
        self._json: dict[str, int] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._figures

    def queue_figure(self, path: str, title: str, figure: Figure) -> None:
        """Take a figure's newest state."""
        before = self._figures.get(path)
        self._changed = self._changed or before is None or before.figure != figure
        self._figures[path] = Shown(title, figure)

    def has_room(self, path: str, size: int) -> bool:
        """Whether a figure's JSON of so many bytes can be kept beside those of the others."""
        others = sum(one for other, one in self._json.items() if other != path)
        fits = others + size <= JSON_BYTES
        if fits:
            self._json[path] = size
        return fits

    def due(self, last: bool = False) -> bool:
        """Whether the page is to be sent now; ``last`` asks only whether it has changed."""
        return self._changed and (last or self._clock() - self._sent >= PAGE_S)

    def done(self) -> None:
        """It was sent."""
        self._changed = False
        self._sent = self._clock()

    def text(self) -> str:
        """The page: all figures by name, each under its title."""
        ids = {path: f"figure-{number}" for number, path in enumerate(sorted(self._figures))}
        packed, left_out = self._packed(ids)
        links = "".join(f'<a href="#{id}">{_escaped(self._figures[path].title)}</a>' for path, id in ids.items())
        parts = "".join(_section(id, self._figures[path].title, path in left_out) for path, id in ids.items())
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Figures</title><style>{_STYLE}</style>'
            f"<h1>Figures</h1><nav>{links}</nav>{parts}"
            f'<script type="text/plain" id="figures">{packed}</script>'
            f'<script type="text/plain" id="plotly">{_plotly_packed()}</script><script>{_SCRIPT}</script></html>'
        )

    def _packed(self, ids: dict[str, str]) -> tuple[str, set[str]]:
        """The figures as text, and those that are too large to be among them: the largest, as few as can be."""
        largest_first = sorted(ids, key=lambda path: len(self._figures[path].figure.spec), reverse=True)
        fits, packed = 0, self._together(ids, set())
        if len(packed) > PACKED_BYTES:  # packing costs most here, and is done as often as halving the number needs
            without = functools.cache(lambda many: self._together(ids, set(largest_first[:many])))
            sizes = range(1, len(ids) + 1)
            fits = 1 + bisect.bisect_left(sizes[:-1], True, key=lambda many: len(without(many)) <= PACKED_BYTES)
            packed = without(fits)
        return packed, set(largest_first[:fits])

    def _together(self, ids: dict[str, str], left_out: set[str]) -> str:
        kept = [(id, self._figures[path].figure.spec) for path, id in ids.items() if path not in left_out]
        return _pack("{" + ",".join(f"{json.dumps(id)}:{spec}" for id, spec in kept) + "}")


def _section(id: str, title: str, left_out: bool) -> str:
    note = "<p>This figure is too large for the page; its numbers are in the run directory.</p>" if left_out else ""
    return f'<section><h2>{_escaped(title)}</h2>{note}<div id="{id}"></div></section>'


def _pack(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode("ascii")


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)


@functools.lru_cache(maxsize=1)
def _plotly_packed() -> str:
    return _pack(plotly_script())
