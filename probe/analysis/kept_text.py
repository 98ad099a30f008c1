"""Texts worked out from a large run that has ended, kept beside its rows; see :mod:`probe.runs.answers`.

What an analysis makes of ten million rows is the same each time: as long as the files are the same, and the code that
makes it. Both stand in the question.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from probe.runs.reader import Run

_PACKAGE: Final = Path(__file__).parent.parent
#: What decides on a text, by the ends of names.
_CODE: Final = frozenset({".json", ".py", ".sql"})


def text_of(run: Run, what: str, make: Callable[[], str], *parts: str, lasts: Callable[[], bool] = lambda: True) -> str:
    """A text about a run: as it was kept, or else made and kept where that can be done.

    Args:
        run: The run.
        what: Which text.
        make: Makes it, of nothing but the run and the code of these parts.
        *parts: Folders and files of the package whose code it is from, as paths in it.
        lasts: Whether what was made stays right as long as the files are the same; asked after it was made.
    """
    answers = run.answers
    if answers is None:
        return make()
    question = f"{what} of attempt {run.shown_attempt} by {code(*parts)}"
    told = answers.find(question)
    if told is not None:
        return str(json.loads(told["text"][0].as_py()))
    import pyarrow as pa

    text = make()
    if lasts():
        answers.keep(question, pa.table({"text": [json.dumps(text)]}))  # a lone surrogate has no UTF-8
    return text


@functools.cache
def code(*parts: str) -> str:
    """A digest of code.

    Args:
        *parts: Folders and files of the package, as paths in it.
    """
    told = hashlib.blake2b(digest_size=16)
    for part in parts:
        place = _PACKAGE / part
        inside = sorted(path for path in place.rglob("*") if path.suffix in _CODE) if place.is_dir() else [place]
        for path in inside:
            told.update(path.read_bytes())
    return told.hexdigest()
