"""How a run has ended, by the files that say where its processes are: one vocabulary for all that shows it.

=============  =========================================================================================
word           when
=============  =========================================================================================
"finished"     each process has ended its recording in order
"failed"       an exception has ended a process, or the recording in it
"killed"       a process is gone from within a step, without having ended its recording
"interrupted"  Ctrl-C has ended a process, or the recording in it
"exited"       ``sys.exit`` with a code that isn't 0 has ended a process out of a step or out of ``with start()``
=============  =========================================================================================

Where processes have ended in unlike ways, the one that went first says how the run has. One that SIGTERM has ended
is taken to have gone after those that nobody told to end: launchers send it to the others when they lose one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from probe.records import who
from probe.runs.now import Now

Word = Literal["finished", "failed", "killed", "interrupted", "exited"]

_SAID: Final = {
    "failed": "failed: an exception has ended {who}",
    "killed": "killed: {who} went without an end of the recording",
    "interrupted": "interrupted: Ctrl-C has ended {who}",
    "exited": "exited with code {code}: sys.exit has ended {who}",
}


class Outcome(NamedTuple):
    """How a run has ended.

    Attributes:
        word: One of those above.
        who: What the processes are shown as that have ended so; of a run that has finished nobody.
        code: That one of them ended with by ``sys.exit``; None of any other end.
    """

    word: Word
    who: tuple[str, ...] = ()
    code: int | None = None

    @property
    def short(self) -> str:
        """The word, with the code.

        >>> Outcome("exited", ("rank 0",), 3).short, Outcome("killed", ("rank 1",)).short
        ('exited with code 3', 'killed')
        """
        return self.word if self.code is None else f"exited with code {self.code}"

    def __str__(self) -> str:
        said = _SAID.get(self.word, self.word)
        return said.format(who=", ".join(self.who), code=self.code)


def outcome(told: Iterable[Now]) -> Outcome | None:
    """How a run has ended.

    Args:
        told: Its processes, as :func:`probe.runs.now.now` gives them.

    Returns:
        None where it goes on, where nobody can tell from here, and of a run that says nothing of its processes.

    >>> gone = Now(process="a", rank=0, attempt=1, alive=False, step=3, scope="step", kind="step")
    >>> outcome([gone]), outcome([Now(process="a", rank=0, attempt=1, alive=True)])
    (Outcome(word='killed', who=('rank 0',), code=None), None)
    """
    ends = [(_at_ns(one), _word(one), one) for one in told]
    others = (one for one in ends if one[1] not in (None, "finished"))
    first = min(others, key=lambda one: (one[2].terminated, one[0]), default=None)
    if first is not None:
        word, code = first[1], first[2].exit_code
        alike = tuple(who(one.rank, one.process) for _, how, one in ends if (how, one.exit_code) == (word, code))
        return None if word is None else Outcome(word, alike, code if word == "exited" else None)
    return Outcome("finished") if ends and all(one[1] == "finished" for one in ends) else None


def _word(one: Now) -> Word | None:
    if one.failed:
        return "failed"
    if one.closed:
        return "interrupted" if one.exit_code in _INTERRUPTED else "exited" if one.exit_code else "finished"
    return "killed" if one.alive is False and one.scope and one.ended_ns is None else None


#: What a shell says of a process that Ctrl-C has ended.
_INTERRUPTED: Final = (130,)


def _at_ns(one: Now) -> int:
    """When a process was heard of last."""
    return max((at for at in (one.ended_ns, one.heartbeat_ns, one.begun_ns, one.left_ns) if at is not None), default=0)
