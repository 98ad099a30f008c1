"""Replaying steps under other settings: many questions at once beside one at a time.

1,000 steps of 512 sequences over 8 ranks: 20 caps for each of 50 recorded steps, cut by verl 0.9.1's rule with counts
that the ranks agree on, and dealt to the ranks anew. And one step of it in a page, as the view What if cuts it: node
runs the page's own code beside Python's replay. CPU time of one core.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Size, row

CAPS, STEPS = 20, 50

#: Milliseconds of CPU that a page has for one step.
_IN_PAGE = """
import { readFileSync } from "node:fs";
const { answered, cutOf, lengthsOf } = await import(process.argv[1]);
const { phase, asked } = JSON.parse(readFileSync(0, "utf8"));
const lengths = await lengthsOf(phase.lengths);
const answer = () => asked.map((changes) => answered(phase, lengths, cutOf(phase, changes)).after.micro_batches);
answer();
const begin = process.cpuUsage();
const counts = answer();
const { user, system } = process.cpuUsage(begin);
process.stdout.write(JSON.stringify({ counts, seconds: (user + system) / 1e6 / asked.length }));
"""


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """Replays a tenth of the steps that are promised; a full one all of them."""
    from tests.analysis.planted_batches import Planted, planted

    steps, sequences, caps = size.pick((1, 64, 2), (STEPS // 10, 512, CAPS), (STEPS, 512, CAPS))
    with tempfile.TemporaryDirectory() as folder:
        run = planted(Path(folder), Planted(ranks=8, steps=steps, rows=sequences, mini_batches=1, cap=8192))
        asked = [{"cap_tokens": 6144 + 512 * at, "balance": "batch"} for at in range(caps)]
        begin = time.process_time()
        together = run.what_if(asked)
        ours = time.process_time() - begin
        begin = time.process_time()
        apart = [run.what_if(one) for one in asked]
        theirs = time.process_time() - begin
        page = in_page(run, sequences, caps)
        run.close()
    counts = [[one.number("micro_batches")[1] for one in side] for side in (together, apart)]
    if counts[0] != counts[1] or together[0].steps != steps:
        raise AssertionError("both ways must give the same answers")
    name = f"{caps * steps:,} replayed steps of {sequences} sequences over 8 ranks, {caps} caps at once"
    target = size.pick("", "under 2 s", "under 20 s")
    return [row(name, ours, theirs, target, "the alternative replays one cap at a time; CPU time of one core"), *page]


def in_page(run: Any, sequences: int, caps: int) -> list[dict[str, Any]]:
    """One step of the run as a page cuts it, beside Python's replay of the same caps; nothing without node."""
    from probe.analysis.what_if.answering import Replayer
    from probe.analysis.what_if.settings import Settings
    from probe.views.panel import assets
    from probe.views.panel.what_if import kept

    node, packet = shutil.which("node"), kept(run)
    if node is None or packet is None:
        return []
    asked = [{"cap_tokens": 6144 + 512 * at} for at in range(caps)]
    module = Path(assets.__file__).parent / "static" / "src" / "what_if_numbers.js"
    told = subprocess.run(
        [node, "--input-type=module", "-e", _IN_PAGE, module.as_uri()],
        input=json.dumps({"phase": packet["phases"][0], "asked": asked}),
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(told.stdout)
    replayer = Replayer(run, [packet["step"]], models=False)
    begin = time.process_time()
    counts = [replayer.after(0, Settings.of(one)).values["micro_batches"] for one in asked]
    python_s = (time.process_time() - begin) / len(asked)
    if counts != found["counts"]:
        raise AssertionError("a page must give the answers of the replay")
    name = f"a step of {sequences} sequences over 8 ranks cut again in a page / in Python"
    return [row(name, found["seconds"], python_s, "100 ms per step", f"mean of {caps} caps; node's CPU time, warm")]


if __name__ == "__main__":
    print(rows(Size.FULL))
