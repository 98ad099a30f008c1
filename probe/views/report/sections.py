"""The report's answers to single questions, each a section: the end, advice, tokens, mismatch, long tail, idle time."""

from __future__ import annotations

from probe.analysis.advice import advise
from probe.analysis.advice.copying import copied
from probe.analysis.audit import audit
from probe.analysis.idle import idle
from probe.analysis.ledger import ledger
from probe.analysis.long_tail import long_tail
from probe.analysis.mismatch import mismatch
from probe.analysis.post_mortem import PostMortem
from probe.errors import InputError
from probe.runs.reader import Run
from probe.views.report.escaping import escaped


def numbers_section(run: Run) -> str:
    """What was logged beside what it should have been; nothing where nothing was logged."""
    found = audit(run)
    if not found:
        return ""
    title = "Are the numbers right?"
    table = f'<div class="scroll" tabindex="0" role="region" aria-label="Numbers">{found._repr_html_()}</div>'
    return f'<section id="numbers"><h2>{title}</h2>{table}</section>'


def end_section(mortem: PostMortem) -> str:
    """What ended the run, or holds it up; nothing where nothing does."""
    if not mortem.happened:
        return ""
    title = "What this run waits for" if mortem.state == "hangs" else "What ended this run"
    return f'<section id="post-mortem"><h2>{title}</h2>{mortem._repr_html_()}</section>'


def advice_section(run: Run) -> str:
    """Which settings to change, each as ``probe advise`` prints it, and as a patch; nothing where none is worth it."""
    try:
        found = advise(run)
    except InputError:  # no micro-batches
        return ""
    if not found.suggestions:
        return ""
    told = "".join(f'<pre tabindex="0">{escaped(one)}</pre>' for one in found.suggestions)
    patch = copied(run, found)
    to_copy = (
        f'<div class="copied"><pre id="advice-patch" tabindex="0">{escaped(patch)}</pre>'
        '<button type="button" data-copy="advice-patch">Copy</button></div>'
        if patch
        else ""
    )
    lead = (
        "Each change was tried on the batches of this run. The patch is of the configuration that the run recorded; "
        "<code>probe advise RUN --config FILE</code> makes one of your own file. Nothing is changed by itself."
    )
    return (
        f'<section id="advice"><h2>Which setting, which value</h2><p class="lead">{lead}</p>{told}{to_copy}</section>'
    )


def tokens_section(run: Run) -> str:
    """Where the tokens went; nothing where no samples were recorded."""
    found = ledger(run)
    if found is None:
        return ""
    lead = "Each sampled token has one fate, and each computed slot one kind: both ledgers sum exactly."
    body = f'<p class="lead">{lead}</p>{found._repr_html_()}'
    return f'<section id="ledger"><h2>Where the tokens went</h2>{body}</section>'


def mismatch_section(run: Run) -> str:
    """Whether rollout and training agree; nothing where either log-probability wasn't recorded."""
    found = mismatch(run)
    if found is None:
        return ""
    return f'<section id="mismatch"><h2>Do rollout and training agree?</h2>{found._repr_html_()}</section>'


def long_tail_section(run: Run) -> str:
    """How long the last answers let all others wait; nothing where sampling times weren't recorded."""
    found = long_tail(run)
    if found is None or found.shown.begin_ns is None:
        return ""
    return f'<section id="long-tail"><h2>The rollout\'s long tail</h2>{found._repr_html_()}</section>'


def idle_section(run: Run) -> str:
    """What the time of the trainer and of the replicas went for, where both work at the same time."""
    found = idle(run)
    if found is None or not found.asynchronous:
        return ""
    return f'<section id="idle"><h2>Who waits: training or sampling</h2>{found._repr_html_()}</section>'
