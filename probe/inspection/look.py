"""The look that batches have in a notebook: one style sheet and a table, light and dark, nothing from outside."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, Final

from probe._check import is_whole
from probe.inspection.plain_text import cut

_DARK: Final = (
    "color-scheme:dark;--ink:#e6edf3;--soft:#9aa5b1;--line:#2a313b;--back:#14181f;--accent:#6cb2f5;"
    "--pad:#2a313b;--prompt:#4f9bdc;--response:#ef8a3c;--masked:#8a5a35;--valid:#2fbf93"
)
_LIGHT: Final = (
    "color-scheme:light;--ink:#1c2128;--soft:#57606a;--line:#d8dee4;--back:#ffffff;--accent:#1f6db3;"
    "--pad:#e4e8ec;--prompt:#2f7ec2;--response:#d2620f;--masked:#f0bf97;--valid:#0c9b76"
)
#: Hosts that say dark, hosts that say light; the system's wish counts where the host says nothing.
_SAYS_DARK: Final = (
    'body[data-jp-theme-light="false"],body.vscode-dark,body.vscode-high-contrast,html[theme="dark"],html.dark'
)
_SAYS_LIGHT: Final = 'body[data-jp-theme-light="true"],body.vscode-light,html[theme="light"]'


def _within(hosts: str) -> str:
    return ",".join(f"{host} .probe-batch" for host in hosts.split(","))


_RULES: Final = """
.probe-batch{color:var(--ink);background:var(--back);font:13px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,
sans-serif;padding:10px 12px;border:1px solid var(--line);border-radius:8px;max-width:100%;box-sizing:border-box;
overflow-wrap:anywhere}
.probe-batch .scroll{overflow-x:auto;max-width:100%}
.probe-batch table{border-collapse:collapse;margin:4px 0;font-size:12.5px;color:inherit;background:none;border:0}
.probe-batch caption,.probe-batch h4{text-align:left;font-weight:650;font-size:13.5px;padding:2px 0 4px;
margin:10px 0 0;color:var(--ink)}
.probe-batch table tr{background:none!important}
.probe-batch th,.probe-batch td{text-align:left!important;vertical-align:top;padding:3px 10px 3px 0;border:0;
border-bottom:1px solid var(--line);overflow-wrap:break-word;max-width:72ch;color:inherit}
.probe-batch thead th{color:var(--soft);font-weight:600}
.probe-batch td.number{text-align:right!important;font-variant-numeric:tabular-nums;white-space:nowrap}
.probe-batch code,.probe-batch pre{font:12px/1.45 ui-monospace,SFMono-Regular,Menlo,monospace;background:none;
color:inherit}
.probe-batch pre{white-space:pre-wrap;margin:2px 0 8px;padding:6px 8px;border-left:3px solid var(--line)}
.probe-batch pre.prompt{border-color:var(--prompt)}.probe-batch pre.response{border-color:var(--response)}
.probe-batch p{margin:4px 0}.probe-batch .soft{color:var(--soft)}
.probe-batch summary{cursor:pointer;color:var(--accent)}
.probe-batch svg{display:block;width:100%;height:auto;max-width:900px;margin:4px 0}
.probe-batch svg.histogram{max-width:460px}
.probe-batch svg text{fill:var(--soft);font:10px system-ui,sans-serif}
.probe-batch .key{display:inline-block;width:10px;height:10px;border-radius:2px;margin:0 5px 0 12px}
.probe-batch .legend .key:first-child{margin-left:0}
"""

#: A style element for everything of class ``probe-batch``. Harmless when it stands in a page several times.
STYLE: Final = (
    f"<style>{_RULES}.probe-batch{{{_LIGHT}}}"
    f"@media (prefers-color-scheme:dark){{.probe-batch{{{_DARK}}}}}"
    f"{_within(_SAYS_LIGHT)}{{{_LIGHT}}}{_within(_SAYS_DARK)}{{{_DARK}}}</style>"
)


def escaped(text: Any, limit: int = 4000) -> str:
    """``text`` for HTML, attributes included; what no file can hold is replaced.

    >>> escaped("<b>&")
    '&lt;b&gt;&amp;'
    """
    return html.escape(cut(str(text), limit), quote=True)


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]], *, caption: str = "") -> str:
    """A table whose texts are escaped; numbers stand at the right.

    >>> '<td>&lt;i&gt;</td>' in table(["key"], [["<i>"]])
    True
    """
    head = "".join(f'<th scope="col">{escaped(title)}</th>' for title in titles)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    title = f"<caption>{escaped(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    if is_whole(value):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escaped(value)}</td>"
