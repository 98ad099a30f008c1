"""Say which settings to change, and to which values. Each change was tried on the run's own batches.

With --config FILE the change is printed as a patch of that file, for `patch -p1` or `git apply`, and the reasons go to
standard error. probe never applies it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from probe.cli.output import add_json, print_json, remark
from probe.cli.runs import add_attempt, add_run, find_run
from probe.errors import InputError
from probe.text import visible

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
    from probe.analysis.advice import advise, patch
    from probe.runs.reader import Run

    text = None if arguments.config is None else _read(arguments.config)
    with Run(place, arguments.attempt) as opened:
        found = advise(opened, risk=arguments.risk, packer=arguments.packer)
    made = None if text is None else patch(arguments.config, text, found.values)
    if arguments.json:
        print_json(found.to_dict() | ({} if made is None else {"patch": made}))
    elif made is None:
        print(visible(repr(found)))
    else:
        print(visible(repr(found)), file=sys.stderr)
        if not made:
            remark("advise", "nothing changes in the file")
        sys.stdout.write(made)
    return 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"config: {path} can't be read: {error}") from error
