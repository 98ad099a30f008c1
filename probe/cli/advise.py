"""Say which settings to change, and to which values. Each change was tried on the run's own batches.

With --config FILE the change is printed as a patch of that file, for `patch -p1` or `git apply`, and the reasons go to
standard error, with the settings that have no place in the file. probe never applies it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from probe.cli.output import add_json, print_json, remark
from probe.cli.runs import add_attempt, add_run, find_run
from probe.errors import InputError
from probe.text import visible

if TYPE_CHECKING:
    from probe.analysis.advice import Patched

ABOUT: Final = "say which settings to change, and to which values"

EXAMPLE: Final = """\
probe advise runs/grpo
probe advise runs/grpo --config ppo_trainer.yaml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe advise``."""
    add_run(parser)
    add_attempt(parser)
    about = "a YAML file, a Python file or a script with Hydra overrides: print the change as a patch of it"
    parser.add_argument("--config", metavar="FILE", help=about)
    about = "share of runs of 1,000 steps that may run out of memory (0.02)"
    parser.add_argument("--risk", type=float, default=0.02, metavar="SHARE", help=about)
    about = "name of the rule that cuts batches, if the run has none on record, as under probe.micro_batch(cap=…)"
    parser.add_argument("--packer", metavar="NAME", help=about)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the suggestions, the largest gain first."""
    place = find_run(arguments.run_path)
    from probe.analysis.advice import advise, patched
    from probe.runs.reader import Run

    path = arguments.config
    text = None if path is None else _read(path)
    with Run(place, arguments.attempt) as opened:
        found = advise(opened, risk=arguments.risk, packer=arguments.packer)
    if arguments.json:
        told = found.to_dict()
        try:
            print_json(told if text is None else told | _told(patched(path, text, found.together)))
        except InputError:  # of the file: that hides no advice
            print_json(told)
            raise
        return 0
    print(visible(repr(found)), file=sys.stdout if text is None else sys.stderr)
    if text is not None:
        _print_patch(path, patched(path, text, found.together))
    return 0


def _told(made: Patched) -> dict[str, Any]:
    return {"patch": made.patch, "by_hand": [one._asdict() for one in made.by_hand]}


def _print_patch(path: str, made: Patched) -> None:
    """The patch, and beside it what it lacks."""
    if made.by_hand:
        lines = "".join(f"\n  {one.setting}  ({one.why})" for one in made.by_hand)
        remark("advise", f"these settings aren't in the patch; set them in {path} by hand:{lines}")
    elif not made.patch:
        remark("advise", "nothing changes in the file")
    _write(made.patch)


def _read(path: str) -> str:
    """What is in the file, its line ends as they are: a patch has to have the same."""
    try:
        return Path(path).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"config: {path} can't be read: {error}") from error


def _write(patch: str) -> None:
    """Print a patch as the bytes that it has to be: a terminal's encoding and line ends are none of the file's."""
    sys.stdout.flush()
    if hasattr(sys.stdout, "buffer"):
        sys.stdout.buffer.write(patch.encode())
        sys.stdout.buffer.flush()
    else:  # a notebook's
        sys.stdout.write(patch)
