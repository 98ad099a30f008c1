"""What is told of rollout and training: the judgement, the measures, views by what is known, the worst tokens."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe.analysis.mismatch.confident import Confident, confident, counted
from probe.analysis.mismatch.excluded import Considered, considered
from probe.analysis.mismatch.judgement import CAUSES, Judgement
from probe.analysis.mismatch.judging import FOLLOWS, judge
from probe.analysis.mismatch.lag import Lags, lags
from probe.analysis.mismatch.lines import VIEWS, Line, WorstToken, short
from probe.analysis.mismatch.markup import html_of
from probe.analysis.mismatch.measures import Array, Measures, measured
from probe.analysis.mismatch.missing import undecided, unsplit
from probe.analysis.mismatch.split import Split, split
from probe.analysis.mismatch.tokens import NOT_KNOWN, Tokens
from probe.analysis.withheld import Withheld
from probe.errors import UnknownNameError
from probe.text import UNKNOWN, percent

if TYPE_CHECKING:
    import pandas as pd

    from probe.analysis.change import Change

#: Of these there are many values: they are told in ranges that double.
_RANGES: Final = ("position", "length")
#: Most lines of a view, the newest where there are more.
_MOST_LINES: Final = 200

#: Tokens that are told as the worst.
WORST: Final = 20

_WIDTH: Final = 100


class Mismatch:
    """Whether rollout and training agree about the tokens of some answers, and why they don't.

    Args:
        tokens: Of these answers.
        missing: What wasn't recorded, where there are no such answers.
        sync: How to have answers of the trainer's own weights, by the settings of the run's framework.

    Attributes:
        tokens: The same.
        judgement: Why, how sure, and what else it could be.
        measures: Of all tokens, estimated from those that are kept: each counts for as many as it stands for, so that
            answers that were kept for how bad they are move no mean.
        confident: The tokens on which both are sure of opposite things, likewise.
        split: What the engine and what stale weights make of k2; None where that can't be told apart.
        withheld: What can't be judged, with what is missing.
    """

    def __init__(self, tokens: Tokens, *, missing: Withheld | None = None, sync: Change | None = None) -> None:
        self.tokens = tokens
        self.judgement: Judgement = judge(tokens)
        self._lags: Lags = lags(tokens)
        self._confident = confident(tokens)
        self.measures: Measures = self._measured(tokens.held)
        self.confident: Confident = counted(tokens, self._lags.behind)
        cause = self.judgement.cause
        judged = missing is None and cause != "unknown"
        lacks = unsplit(tokens, self._lags, sync) if judged else missing or undecided(tokens, self.judgement)
        self.split: Split | None = split(tokens, self._lags) if judged and lacks is None else None
        #: Where they agree there is nothing to split, and where other tokens are trained, weights aren't the question.
        asked = not judged or cause not in (FOLLOWS | {"agree"})
        self.withheld: tuple[Withheld, ...] = () if lacks is None or not asked else (lacks,)

    @property
    def steps(self) -> tuple[int, int] | None:
        """The first and the last step; None where the steps of none are known."""
        known = self.tokens.known("step")
        known = known[known != NOT_KNOWN]
        return (int(known.min()), int(known.max())) if len(known) else None

    @property
    def sentence(self) -> str:
        """What is the case, in one or two sentences."""
        if self.judgement.cause == "unknown":
            return self.withheld[0].sentence
        return f"{_said(self.judgement)}{self._sizes()}"

    @property
    def split_sentence(self) -> str:
        """What stale weights add to what the engine makes; "" where no answer is of older weights, or both agree."""
        told = self.split
        return "" if told is None or not told.stale_answers or self.judgement.cause == "agree" else told.sentence

    def _sizes(self) -> str:
        told = self.measures
        if told.k3 is None or told.effective_ratio is None:
            return ""
        return f" k3 is {told.k3:.2g}; the effective sample is {percent(told.effective_ratio)} of the tokens."

    @cached_property
    def causes(self) -> list[Considered]:
        """All causes that were looked for, the one that was found first, and why the others are excluded; [] where
        there was too little to judge by.
        """
        return considered(self.tokens, self.judgement)

    def by(self, what: str) -> pd.DataFrame:
        """The measures by what is known of tokens.

        Args:
            what: One of :data:`~probe.analysis.mismatch.lines.VIEWS`.

        Returns:
            A frame with a row for each value, or range of values, in rising order: its label, tokens, k1, k2, k3,
            effective_ratio, ratio_mean, below_ratio, above_ratio, difference_mean, difference_largest,
            confident_tokens. Empty where it isn't known. Tokens of unknown lag are the last row of ``"lag"``.

        Raises:
            UnknownNameError: There is no such view.
        """
        import pandas as pd

        rows = [{what: one.label, **_flat(one.measures)} for one in self.lines(what)]
        return pd.DataFrame(rows, columns=[what, *_flat(Measures(0))])

    def lines(self, what: str) -> list[Line]:
        """The same as :meth:`by` as a list."""
        if what not in VIEWS:
            raise UnknownNameError.of("what", what, VIEWS)
        values = self._values(what)
        if values is None:
            return []
        values = values[self.tokens.held]
        if what in _RANGES:
            values = np.where(values >= 0, 2 ** np.floor(np.log2(np.maximum(values, 1))).astype(int), values)
        known = [one for one in np.unique(values).tolist() if one >= 0][-_MOST_LINES:]
        held = np.flatnonzero(self.tokens.held)
        found = [Line(self._label(what, one), self._measured(held[values == one])) for one in known]
        untold = values < 0
        if what == "lag" and found and untold.any():
            found.append(Line("unknown", self._measured(held[untold])))
        return found

    def _measured(self, which: Array) -> Measures:
        """Of some of the tokens that count in means."""
        return measured(self.tokens.log_ratio[which], self._confident[which], self.tokens.weight[which])

    def _values(self, what: str) -> Array | None:
        tokens = self.tokens
        if what == "turn":
            return tokens.turn
        if what == "position":
            return tokens.position
        if what == "length":
            return tokens.lengths[tokens.row]
        if what == "lag":
            return self._lags.behind[tokens.row]
        if what == "replica":
            names = tokens.named("replica")
            self._names = sorted({one for one in names if one})
            return np.array([self._names.index(one) if one else -1 for one in names], np.int64)[tokens.row]
        return tokens.known("weight_version" if what == "version" else what)[tokens.row]

    def _label(self, what: str, value: int) -> str:
        if what == "replica":
            return self._names[value]
        if what not in _RANGES or value < 2:
            return f"0 to {value}" if what == "position" and value == 1 else str(value)
        return f"{value} to {2 * value - 1}"

    def worst(self, many: int = WORST) -> list[WorstToken]:
        """The tokens about which they disagree most, the worst first.

        Args:
            many: At most.
        """
        tokens = self.tokens
        held = np.flatnonzero(tokens.compared)
        order = held[np.argsort(-np.abs(tokens.log_ratio[held]), kind="stable")][:many]
        return [self._worst(int(at)) for at in order]

    def _worst(self, at: int) -> WorstToken:
        tokens = self.tokens
        row = int(tokens.row[at])
        known = {name: tokens.known(name)[row] for name in ("step", "rank", "batch_id", "row")}
        whole: dict[str, Any] = {name: None if value == NOT_KNOWN else int(value) for name, value in known.items()}
        return WorstToken(
            **whole,
            process=tokens.named("process")[row],
            position=int(tokens.position[at]),
            turn=int(tokens.turn[at]) if tokens.turn[at] >= 0 else None,
            rollout_log_prob=float(tokens.rollout[at]),
            log_prob=float(tokens.train[at]),
            log_ratio=float(tokens.log_ratio[at]),
            lag=None if (lag := int(self._lags.behind[row])) < 0 else lag,
            confident=bool(self._confident[at]),
        )

    def worst_frame(self) -> pd.DataFrame:
        """:meth:`worst` as a frame."""
        import pandas as pd

        return pd.DataFrame([asdict(one) for one in self.worst()])

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        steps = self.steps
        told = asdict(self.judgement)
        del told["affected"]
        return {
            "sentence": self.sentence,
            **told,
            "causes": [one._asdict() for one in self.causes],
            "first_step": None if steps is None else steps[0],
            "last_step": None if steps is None else steps[1],
            "answers": len(self.tokens.answers),
            "measures": self.measures.to_dict(),
            "split": None if self.split is None else asdict(self.split),
            "confident": asdict(self.confident),
            "withheld": [one.to_dict() for one in self.withheld],
            "by": {what: [{what: one.label, **_flat(one.measures)} for one in self.lines(what)] for what in VIEWS},
            "worst": [asdict(one) for one in self.worst()],
        }

    def __repr__(self) -> str:
        judged = self.judgement
        known = judged.cause != "unknown"
        lines = [self.sentence, judged.why, self.confidence, self.split_sentence] if known else []
        told = [textwrap.fill(one, _WIDTH, subsequent_indent="  ") for one in lines if one]
        told += [str(one) for one in self.withheld]
        for what in ("lag", "version", "rank", "turn", "position"):
            found = self.lines(what)
            if len(found) > 1:
                told += [
                    "",
                    f"{VIEWS[what]:24}{'tokens':>8}{'k1':>10}{'k2':>10}{'k3':>10}{'ESS':>8}",
                    *map(_line, found[-12:]),
                ]
        return "\n".join(told)

    @property
    def confidence(self) -> str:
        """How sure it is, and what else it could be, in a sentence."""
        judged = self.judgement
        others = [CAUSES[one] for one in judged.alternatives]
        also = f" It could also be: {'; '.join(others)}." if others else ""
        return f"Confidence: {judged.confidence}.{also}"

    def _repr_html_(self) -> str:
        return html_of(self)


def _line(one: Line) -> str:
    told = one.measures
    effective = UNKNOWN if told.effective_ratio is None else percent(told.effective_ratio)
    return f"  {one.label:22}{told.tokens:>8}{short(told.k1):>10}{short(told.k2):>10}{short(told.k3):>10}{effective:>8}"


def _flat(told: Measures) -> dict[str, Any]:
    return {name: value for name, value in asdict(told).items() if name != "ratio_quantiles"}


def _said(judged: Judgement) -> str:
    text = _text(judged)
    if judged.since is None or judged.cause in ("agree", "temperature"):
        return text[0].upper() + text[1:]
    return f"Since step {judged.since} {text}"


def _text(judged: Judgement) -> str:
    match judged.cause:
        case "agree":
            return "rollout and training agree within noise."
        case "temperature":
            return f"the rollout's log-probabilities are at {judged.temperature:g} times training's temperature."
        case "shift" | "untrained" | "retokenised":
            return _of_tokens(judged)
        case "stale" | "unsynced":
            return _of_weights(judged)
        case "rank" | "rows":
            of = (
                f"the answers of rank {judged.rank}"
                if judged.cause == "rank"
                else f"{percent(judged.share)} of the answers"
            )
            return f"rollout and training disagree about {of}, and about no others."
        case _:
            return _of_all(judged)


def _of_all(judged: Judgement) -> str:
    """Where all tokens differ, of whatever answers."""
    if judged.cause == "one_sided":
        other = "training" if judged.higher == "rollout" else "rollout"
        return f"{judged.higher} gives nearly all tokens a higher log-probability than {other} does."
    return "rollout and training differ by noise of both signs, larger than bfloat16 rounding."


def _of_tokens(judged: Judgement) -> str:
    """Where other tokens are trained than were sampled."""
    every = judged.share is not None and judged.share > 0.99
    of = "in all answers" if every else f"in {percent(judged.share)} of the answers"
    if judged.cause == "shift":
        return _shifted(judged.by, of)
    if judged.cause == "untrained":
        return f"the loss counts tokens that were never sampled, {of}."
    return f"training uses other tokens than were sampled, {of}, from about token {judged.position} on."


def _of_weights(judged: Judgement) -> str:
    """Where the rollout samples with other weights than training has."""
    if judged.cause == "unsynced":
        return "the rollout samples with other weights than those of the version it reports."
    if judged.version is None:
        return "the rollout samples with other weights than training has, perhaps old ones."
    old = f"{judged.lag} version{'' if judged.lag == 1 else 's'} old"
    return f"the rollout samples with weights up to {old}: the oldest is version {judged.version}."


def _shifted(by: int | None, of: str) -> str:
    if not by:
        return f"the loss mask does not match the sampled tokens, {of}."
    many = f"{abs(by)} token{'s' if abs(by) > 1 else ''} {'later' if by > 0 else 'earlier'}"
    return f"the rollout's log-probabilities stand {many} than training's, {of}."
