"""What several looks couldn't judge: too few steps have ended, or nobody logs a metric. What one look lacks it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from probe.analysis import growth, waiting
from probe.analysis.change import Change
from probe.analysis.framework_settings import framework
from probe.analysis.verdict import facts, learning
from probe.analysis.verdict.finding import Finding, withheld
from probe.runs.foreign import written_by

if TYPE_CHECKING:
    from probe.runs.reader import Run


def unjudged(run: Run) -> list[Finding]:
    """All of it. Of a run that probe has recorded nothing before a step has ended."""
    others = _of_others(run)
    steps = facts.ended(run).steps
    if not len(steps):
        return others
    return [*others, *_few_steps(run, len(steps)), *_gradient(run), *_metrics(run)]


def _of_others(run: Run) -> list[Finding]:
    """What a log of a training without probe can't tell, and what its reader has noted."""
    writer = written_by(run.info.config)
    if writer is None:
        return []
    notes = run.info.config.get("notes") if isinstance(run.info.config, Mapping) else None
    what = "memory, micro-batches, padding, ranks or the tokens of answers"
    text = f"This run was read from {writer}, which doesn't record {what}: these can't be judged."
    found = withheld("not_recorded", text, change=Change("Record the next training by probe to have them judged."))
    return [found.moved(missing=tuple(str(one) for one in notes) if isinstance(notes, list) else ())]


def _few_steps(run: Run, many: int) -> list[Finding]:
    """Which questions take more steps than have ended."""
    needed: dict[str, int] = {}
    if run.has("memory"):
        needed["memory leaks"] = growth.FEWEST
    if learning.logged(run, learning.GRADIENT):
        needed["the gradient jumps"] = learning.BEFORE + 1
    if _ranks(run) > 1:
        needed["a rank is slow"] = waiting.FEWEST
    open_ones = [f"{what} (takes {least})" for what, least in needed.items() if least > many]
    if not open_ones:
        return []
    *most, last = open_ones
    listed = f"{', '.join(most)} or {last}" if most else last
    ended = "One step has" if many == 1 else f"{many} steps have"
    return [withheld("few_steps", f"{ended} ended, too few to say whether {listed}.")]


def _ranks(run: Run) -> int:
    return int(run.processes["rank"].nunique())


def _gradient(run: Run) -> list[Finding]:
    """That nobody logs the norm of the gradient by a name that is known, where something is logged."""
    if not run.has("scalars") or learning.logged(run, learning.GRADIENT):
        return []
    if run.sql("select 1 from scalars where source = 'user' limit 1").empty:
        return []
    text = "Whether the gradient jumps isn't known: its norm wasn't logged by a name that probe knows."
    return [withheld("gradient_spike", text, change=Change(f"Log it by one of these names: {_NORMS}."))]


_NORMS: Final = ", ".join(learning.GRADIENT)


def _metrics(run: Run) -> list[Finding]:
    """That the values of metrics weren't recorded, in a loop of one's own that has several values of a step."""
    if run.has("reductions") or not run.has("micro_batches") or not run.has("scalars") or framework(run):
        return []
    most = run.sql(
        """select count(*) as n from micro_batches where step is not null
        group by step, phase order by n desc limit 1"""
    )["n"]
    if not len(most) or int(most[0]) < 2:
        return []
    text = "Whether metrics are means of unequal means isn't known: what they were reduced from wasn't recorded."
    return [withheld("metrics", text, change=Change("Reduce them by probe.reduce_metrics, on each rank."))]
