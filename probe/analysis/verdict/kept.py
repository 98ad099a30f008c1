"""What was found in a large run that has ended, kept beside its rows; see :mod:`probe.runs.answers`.

Looking through ten million rows takes half a minute, and what is found is the same each time: as long as the files are
the same, no process is left that could change its mind, and what looks is the same. All three stand in the question.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from probe.analysis.change import Change
from probe.analysis.kept_text import code
from probe.analysis.verdict.finding import Cost, Finding, Findings, Since, Where

if TYPE_CHECKING:
    from probe.runs.reader import Run

_PARTS = {"where": Where, "since": Since, "cost": Cost, "change": Change}


def find(run: Run) -> Findings | None:
    """What was found in a run; None where it isn't kept.

    Args:
        run: The run.
    """
    answers = run.answers
    told = None if answers is None else answers.find(_question(run))
    if told is None:
        return None
    return Findings(_finding(one) for one in json.loads(told["findings"][0].as_py()))


def keep(run: Run, found: Findings) -> None:
    """Keep what was found, where that can be done.

    Args:
        run: The run.
        found: All of it, of looks none of which failed.
    """
    answers = run.answers
    if answers is None:
        return
    text = json.dumps([asdict(one) for one in found.everything], default=_plain)
    if [_finding(one) for one in json.loads(text)] != list(found.everything):
        return  # a value that JSON doesn't give back as it was
    import pyarrow as pa

    answers.keep(_question(run), pa.table({"findings": [text]}))


def _question(run: Run) -> str:
    """All that findings depend on beside the files."""
    return f"findings of attempt {run.shown_attempt} by {code('analysis')}"


def _finding(told: dict[str, Any]) -> Finding:
    made: dict[str, Any] = dict(told)
    for name, kind in _PARTS.items():
        made[name] = None if told[name] is None else kind(**told[name])
    for name in ("alternatives", "missing"):
        made[name] = tuple(told[name])
    made["folded"] = tuple(_finding(one) for one in told["folded"])
    return Finding(**made)


def _plain(value: Any) -> Any:
    """Numpy's scalars as Python's."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"finding: got a {type(value).__name__} in it, expected what JSON can hold, or a numpy scalar")
