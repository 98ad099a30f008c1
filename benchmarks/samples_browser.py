"""What a step of scrolling costs the browser in the view Samples: 10,000 answers, 8,000 tokens, in a real trace.

A real Chromium runs the panel's real code with a stub model; the answers are made up. Each step scrolls the list, or
the tokens of one answer, by most of a view, and the longest task of the main thread is read from Chromium's own trace,
as CPU time where it tells that. The alternative writes all lines of the list, and a node for each token, into the page
once: its longest task is that.
"""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Size
from tests.views import stub_host as host

ANSWERS = 10_000
TOKENS = 8_000
GROUP = 8
LIMIT_MS = 16.0

_VIEWS = [{"id": "samples", "title": "Samples", "about": "Answers.", "panels": []}]

#: Answers questions about samples in the page, after the pause that a kernel takes: what is measured is the view.
_KERNEL = """([rows, tokens]) => {
  const answer = ({ of, from = 0, count = 0 }) => (of === "tokens" ? tokens
    : { ...rows, from, lines: rows.lines.slice(from, from + count) });
  const { push } = Array.prototype;
  __host.sent.push = function (one) {
    const told = () => __host.emit("msg:custom", { v: 1, t: "b", q: one.q, answer: answer(one) }, []);
    if (one.ask === "samples") setTimeout(told, 5);
    return push.call(this, one);
  };
}"""

_SCROLL = """async ([place, steps]) => {
  const view = document.querySelector(place);
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  for (let at = 0; at < steps; at += 1) {
    view.scrollTop += 0.8 * view.clientHeight;
    await frame();
    await frame();
  }
  return view.scrollTop;
}"""

_WHOLE = """([rows, tokens]) => {
  const list = document.body.appendChild(document.createElement("div"));
  list.innerHTML = rows.lines.map((one) => `<div>${"<span>1</span>".repeat(6)}</div>`).join("")
    + "<i>1</i>".repeat(tokens.tokens);
  return list.offsetHeight;
}"""


def made_up() -> tuple[dict[str, Any], dict[str, Any]]:
    """The lines of 10,000 answers in groups, and the tokens of one."""
    rng = np.random.default_rng(0)
    lines: list[dict[str, Any]] = []
    for row in range(ANSWERS):
        of = row // GROUP
        if row % GROUP == 0:
            means = {"answers": GROUP, "reward": 0.5, "tokens": 800.0, "difference_largest": -0.4, "equal": False}
            lines.append({"kind": "group", "of": of, "group": f"p{of}", "truncated": 0, "dropped": 0, **means})
        one = {"kind": "answer", "of": of, "group": f"p{of}", "key": ["rank-00000", 0, row], "uid": "", "row": row}
        one |= {"reward": float(row % 2), "advantage_mean": 0.5, "response_tokens": TOKENS, "nan_count": 0}
        one |= {"difference_largest": float(rng.normal()), "difference_at": 3, "ended": "stop", "dropped": ""}
        lines.append(one | {"truncated": False, "micro_batches": [row // 32], "passes": 1, "block": row == 0})
    rows = {"step": 4, "total": len(lines), "answers": ANSWERS, "kept": ANSWERS, "sampled": ANSWERS, "note": ""}
    arrays = {
        name: rng.normal(-1, 0.3, TOKENS) for name in ("log_probs", "rollout_log_probs", "entropies", "advantages")
    }
    arrays["mask"] = np.ones(TOKENS)
    packed = {name: base64.b64encode(values.astype("<f4").tobytes()).decode() for name, values in arrays.items()}
    tokens = {"step": 4, "answer": lines[1], "tokens": TOKENS, "arrays": packed, "ids": [], "prompt": None}
    return {**rows, "lines": lines}, {**tokens, "text": None, "cut": 0}


def longest_task_ms(trace: Path) -> float:
    """The longest task of any renderer's main thread in a trace: its CPU time, else its time.

    What the debugger does in a task, to begin the script that scrolls, isn't counted: nobody has one open.
    """
    events = json.loads(trace.read_text())["traceEvents"]
    mains = {
        (one["pid"], one["tid"])
        for one in events
        if one.get("name") == "thread_name" and one["args"].get("name") == "CrRendererMain"
    }
    ran = [one for one in events if one.get("ph") == "X" and (one["pid"], one["tid"]) in mains]
    tasks = [one for one in ran if one["name"].endswith("RunTask")]
    interrupts = [one for one in ran if one["name"] == "V8.InvokeApiInterruptCallbacks"]
    if not tasks:
        raise RuntimeError("the trace has no task of a main thread")
    return max(_took(one) - sum(_took(inner) for inner in interrupts if _within(inner, one)) for one in tasks) / 1000


def _took(event: dict[str, Any]) -> float:
    return float(event.get("tdur", event["dur"]))


def _within(inner: dict[str, Any], task: dict[str, Any]) -> bool:
    place = (task["pid"], task["tid"])
    return (inner["pid"], inner["tid"]) == place and task["ts"] <= inner["ts"] <= task["ts"] + task["dur"]


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """The longest task of a step of scrolling, in each of the two scrollers; a full one scrolls farther."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise FileNotFoundError("this benchmark needs a Chromium (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    data = made_up()
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=chromium, headless=True, args=host.FLAGS)
        page = browser.new_context(viewport={"width": 1040, "height": 1000}).new_page()
        page.goto(host.PAGE.as_uri())
        page.evaluate(_KERNEL, list(data))
        host.opened(page, "bench", views=_VIEWS)
        encoder, run = host.Encoder(), host.Run()
        host.send(page, *(encoder.delta(tables, complete_step=4) for tables in run.steps(1, 4)))
        page.locator(".pp-answer:not([hidden])").wait_for()
        made = []
        whole = _whole(browser, data, Path(folder) / "whole.json")
        for name, place in (("answers", ".pp-samples-list"), ("tokens", ".pp-token-map")):
            page.evaluate(_SCROLL, [place, 3])  # what is made once isn't part of a step
            trace = Path(folder) / f"{name}.json"
            browser.start_tracing(page=page, path=trace, screenshots=False)
            reached = page.evaluate(_SCROLL, [place, size.pick(2, 40, 200)])
            browser.stop_tracing()
            if not reached:
                raise RuntimeError(f"{place} didn't scroll")
            nodes = page.locator(".pp-samples *").count()
            ours = longest_task_ms(trace)
            note = f"{nodes} nodes in the view; {ANSWERS:,} answers, {TOKENS:,} tokens"
            row = {"name": f"scrolling {name} / a page with all of them", "ours_s": round(ours, 2)}
            row |= {"theirs_s": round(whole, 1), "ratio": ours / whole, "unit": "ms", "note": note}
            made.append(row | {"target": f"{LIMIT_MS:g} ms per step, 200 nodes"})
        browser.close()
    return made


def _whole(browser: Any, data: Any, trace: Path) -> float:
    page = browser.new_page()
    page.goto("about:blank")
    browser.start_tracing(page=page, path=trace, screenshots=False)
    page.evaluate(_WHOLE, list(data))
    browser.stop_tracing()
    page.close()
    return longest_task_ms(trace)


if __name__ == "__main__":
    for one in rows():
        print(one)
