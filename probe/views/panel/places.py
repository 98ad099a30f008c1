"""Where findings lead among the samples: to one token of one answer, and to all answers that they are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from probe.analysis.found_samples import OF_SAMPLES
from probe.analysis.step_samples import ONLY, Key, StepSamples, Wish, key_of

if TYPE_CHECKING:
    from probe.analysis.verdict.finding import Finding, Findings
    from probe.runs.reader import Run


def places(run: Run, found: Findings, disagreement: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Of the findings about disagreement, by name.

    Args:
        run: The run.
        found: What was found.
        disagreement: What :func:`probe.views.panel.disagree.told` says.

    Returns:
        ``step``; ``answers``, how many of its answers the list has that the finding is of, null where it isn't known
        which those are; ``key`` and ``token``, an answer of that step and a token of it. None of a finding of which no
        answer can be looked at token by token.
    """
    made: dict[str, dict[str, Any] | None] = {}
    changed, mismatch = found.named("not_sampled"), found.named("mismatch")
    if changed is not None:
        made["not_sampled"] = _not_sampled(run, changed, disagreement)
    if mismatch is not None:
        made["mismatch"] = _shown(run, disagreement, "mismatch")
    return {name: place for name, place in made.items() if place is not None}


def _not_sampled(run: Run, finding: Finding, disagreement: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The first token that wasn't sampled, in the step in which that began; where that can't be looked at, an answer
    whose log-probabilities show it.
    """
    step, token = finding.since.step, finding.where.token
    if step is None or not run.has("samples"):
        return None
    here = StepSamples.read(run, step)
    first = next((one for one in here.answers if one["changed_at"] is not None and one["changed_at"] == token), None)
    if first is None or token is None:
        return _shown(run, disagreement, "not_sampled")
    return _place(here, "not_sampled", key_of(first), token)


def _shown(run: Run, disagreement: Mapping[str, Any] | None, name: str) -> dict[str, Any] | None:
    """The answer that shows it best, of those that a finding is of."""
    strips = [] if disagreement is None else disagreement["strips"]
    best = next((one for one in strips if one["concerned"] and one["key"] is not None), None)
    if best is None or not run.has("samples"):
        return None
    here = StepSamples.read(run, best["step"])
    ours = (one for at, one in enumerate(here.answers) if ONLY[OF_SAMPLES[name]](here, at))
    key = tuple(best["key"])
    return _place(here, name, key, best["token"]) if key in map(key_of, ours) else None


def _place(here: StepSamples, name: str, key: Key, token: int) -> dict[str, Any]:
    listed = here.arranged(Wish(only=OF_SAMPLES[name])).answers
    known = name != "not_sampled" or here.changed.named > 0
    return {"step": here.step, "answers": listed if known else None, "key": list(key), "token": token}
