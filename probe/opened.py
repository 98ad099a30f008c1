"""A run as ``probe.open`` gives it: its tables, and what analysis and views answer of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from probe.runs import reader
from probe.runs.finding import find_given

if TYPE_CHECKING:
    from probe.analysis.advice import Advice
    from probe.analysis.audit import Audit
    from probe.analysis.idle import Idle
    from probe.analysis.ledger import Ledger
    from probe.analysis.long_tail import LongTail
    from probe.analysis.mismatch import Mismatch
    from probe.analysis.post_mortem import PostMortem
    from probe.analysis.verdict import Findings


# Each answer is imported when it is asked for: opening a run, and reading its frames, loads none of them.
class Run(reader.Run):
    """A run that is there, being written or finished.

    The tables are pandas frames whose columns are the fields of the row type (see ``probe.records``) and
    ``wall_ns``, the wall-clock time that belongs to ``time_ns`` (``<NA>`` where the process never said).
    Rows of one rank stand in the order in which they were written. :mod:`probe.runs.frames` says what dtypes
    they have, and how NaN and missing differ.

    All tables show one moment, that of the first look, so that numbers of different tables belong together;
    :meth:`refresh` takes a new look. :meth:`tail` and :meth:`new_rows` follow the run instead. Where a compaction has
    taken away the files of that moment, a table or a query that needs them takes a new look by itself; of a run that
    has ended it shows the same.

    A run that was launched more than once has several attempts. What the newest has repeated is shown of the newest
    alone: :mod:`probe.runs.visibility` says which rows these are. :meth:`attempt` shows one attempt as it was.

    What was found in it, what it would have come to and how it ended are asked of it, too; what answers is loaded when
    it is asked.

    Args:
        path: The run directory, or an ``fsspec`` URL of one.
        attempt: The attempt that is shown, alone and whole; None shows each step of the newest that has it.

    Attributes:
        path: Absolute path or URL of the run directory.
        info: What run.json says.
        shown_attempt: The attempt that was asked for, None without one.
        by_step: What was worked out of its steps, which whoever looks at it again and again keeps
            (:mod:`probe.analysis.by_step`); None keeps nothing.

    Raises:
        RunNotFoundError: There is nothing.
        RunError: It isn't a run.
        SchemaVersionError: A newer probe wrote it.
        InputError: ``attempt`` isn't one of the run's.
    """

    def findings(self) -> Findings:
        """What was found in this run, the worst first. See :func:`probe.findings`."""
        from probe.analysis.verdict import findings

        return findings(self)

    def ledger(self, **options: Any) -> Ledger | None:
        """Where the tokens went: what became of each sampled one, and what was computed beside them. See
        :func:`probe.analysis.ledger.ledger`, which has the options.
        """
        from probe.analysis.ledger import ledger

        return ledger(self, **options)

    def mismatch(self, **options: Any) -> Mismatch | None:
        """Whether rollout and training agree about the sampled tokens, and why they don't. See
        :func:`probe.analysis.mismatch.mismatch`, which has the options.
        """
        from probe.analysis.mismatch import mismatch

        return mismatch(self, **options)

    def long_tail(self, **options: Any) -> LongTail | None:
        """How long the last answers of a step let all others wait, and how old their weights were. See
        :func:`probe.analysis.long_tail.long_tail`, which has the options.
        """
        from probe.analysis.long_tail import long_tail

        return long_tail(self, **options)

    def idle(self, **options: Any) -> Idle | None:
        """What the time of the trainer and of each replica went for, and how long each side waits for the other. See
        :func:`probe.analysis.idle.idle`, which has the options.
        """
        from probe.analysis.idle import idle

        return idle(self, **options)

    def advise(self, **options: Any) -> Advice:
        """Changes to the configuration, each tried on this run's batches. See
        :func:`probe.analysis.advice.advice.advise`, which has the options.
        """
        from probe.analysis.advice import advise

        return advise(self, **options)

    def what_if(self, changes: Any = None, **options: Any) -> Any:
        """What this run's batches would have come to under other settings, ``run.what_if(cap_tokens=16384)``.

        Args:
            changes: Settings by name, or several such mappings.
            **options: Settings, and the options of :func:`probe.analysis.what_if.answering.what_if`.
        """
        from probe.analysis.what_if import what_if

        return what_if(self, changes, **options)

    def audit(self, step: int | None = None) -> Audit:
        """Each logged number beside its token-weighted and sequence-weighted mean, with the trap that it fell into. See
        :func:`probe.analysis.audit.auditing.audit`.

        Args:
            step: Look at this step alone; None takes the worst step of each metric, else the last.
        """
        from probe.analysis.audit import audit

        return audit(self, step)

    def post_mortem(self) -> PostMortem:
        """What ended this run, in which order, and what each process held and did then. See
        :func:`probe.analysis.post_mortem.post_mortem`.
        """
        from probe.analysis.post_mortem import post_mortem

        return post_mortem(self)

    def panel(self, **options: Any) -> Any:
        """The live panel of this run, for a notebook: a :class:`probe.views.panel.panel.Panel`, which has the options.
        ``where="tab"`` asks JupyterLab for it beside the notebook, see :class:`probe.views.panel.tab.Tab`.
        """
        from probe.views.panel.panel import panel

        return panel(self, **options)

    def _ipython_display_(self) -> None:
        self.panel()._ipython_display_()


def open_run(
    path: str | os.PathLike[str], attempt: int | None = None, *, rollouts: str | os.PathLike[str] | None = None
) -> Run:
    """Open a run to read it, while it is being written or when it is over.

    Args:
        path: The run directory, an ``fsspec`` URL of one, or a directory that holds runs, at most three levels down:
            of these the one that began last. The commands take the same. Also what others wrote of a training that
            probe wasn't in: a log of verl's ``file`` logger, a directory with it, or TensorBoard's; as it is now.
        attempt: The attempt that is shown, alone and whole; None shows each step of the newest that has it.
        rollouts: verl's ``trainer.rollout_data_dir``, for what others wrote; None looks for dumps beside the log.

    Returns:
        A :class:`Run`, whose ``path`` says which one it is.

    Raises:
        RunNotFoundError: There is nothing, or no run in it.
        InputTypeError: ``path`` is neither text nor a path.
        InputError: ``path`` is empty or no kind of URL that is known, or ``attempt`` isn't one of the run's.
        RunError: It can't be read.
        SchemaVersionError: A newer probe wrote it.
    """
    return Run(find_given(path, rollouts=rollouts), attempt)
