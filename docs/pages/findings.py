"""The page of the findings: what is looked for, and from which number on it counts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pages.comments import comments
from pages.markdown import plain
from probe.analysis.verdict import verdict

HEAD: Final = """# Findings

`run.findings()` (and `probe.findings(run)`) says in words what was found, alarms first; the report begins with it, and
`probe demo` ends with it. An alarm is a fault of the training, or a number that isn't what it says. Tuning is a setting
that is worth a change. What is in order is said, too.

What was looked at and couldn't be judged is *withheld*: `run.findings().withheld` says of each such question what is
missing and how to record it, such as too few steps, log-probabilities that the engine didn't give, or a metric that
nobody logs. It is no finding: it isn't counted, and stands behind them ("not judged") in a notebook, the report,
`probe findings`, the summaries in tracking backends, and under *What was checked* in the panel. What isn't asked of a
run, as of tokens where nothing is sampled, isn't withheld.

A finding is data: `kind` (`alarm`, `tuning` or `fine`; of what is withheld `withheld`), `name` (the same in every run),
`sentence`, `where` (attempt, step, role, phase, micro-batch, rank, process), `since` (step and wall-clock time), `cost`
(seconds of a step, bytes, tokens, share, steps that are wrong; where a run has ended or hangs seconds since its last
step and the steps since its last checkpoint, as far as they are known), `explained` (the share of the excess that the
cause explains), `why`, `evidence_sql` (the rows of that place that show it, for `run.sql`; `last_seen` in it is where
processes are, or were seen last), `change` (advice, and where they can be told the setting by the name that the run's
framework uses, its value now and the value to set), `confidence`, `alternatives`, `missing` (what wasn't recorded that
would say more, and how to record it), and `folded` (what follows from it). `run.findings().to_frame()` is a pandas
frame. `probe findings RUN --json` prints a list of these objects, what is withheld last, and its exit code is 1 where
there is an alarm.

The worst finding stands first on every screen: the panel and `probe open`, the report, `probe tail`, the end of the
demo, TensorBoard's text, MLflow's description and tags (`probe.verdict`, `probe.finding`, `probe.sentence`), and W&B's
and Trackio's. `probe doctor RUN` begins with the alarms, each an error. `probe tail` prints an alarm as soon as it is
found; `probe.start(alarms=True)` logs it and hands it to W&B's and Trackio's alerts, a URL or a command as `alarms`
gets it as JSON, and `session.on_alarm(callable)` calls you: see [alarms](../guides/alarms.md). All of them look in a
hundredth of a core, in no process that trains.

What to do about a fault is in the [runbooks](../runbooks/index.md); how often planted faults are found, and how often
an alarm is false, is counted in [the zoo](../design/zoo.md). This page is made from `probe/analysis/verdict/`.

## What is looked for

"""


def page() -> str:
    """The text of the page."""
    made = [HEAD]
    for look in verdict.LOOKS:
        made.append(f"* **{title(look)}**: {plain(' '.join((look.__doc__ or '').split()))}\n")
    made += ["\n## From which number on\n\n| limit | value | |\n|---|---|---|\n"]
    modules = dict.fromkeys(inspect.getmodule(look) for look in verdict.LOOKS)
    for module in modules:
        for name, said in comments(Path(str(getattr(module, "__file__", "")))).items():
            value = getattr(module, name, None)
            if name.isupper() and isinstance(value, int | float | tuple) and not callable(_first(value)):
                short = str(getattr(module, "__name__", "")).rpartition(".")[2]
                made.append(f"| `{short}.{name}` | `{value!r}` | {plain(said)} |\n")
    return "".join(made)


def title(look: Callable[..., object]) -> str:
    """What a look is called on the page: its module and its name."""
    return f"{look.__module__.rpartition('.')[2]}: {look.__name__}".replace("_", " ")


def _first(value: object) -> object:
    return value[0] if isinstance(value, tuple) and value else value
