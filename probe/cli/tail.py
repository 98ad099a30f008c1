"""Follow a run in the terminal: its steps, memory, tokens and padding, with the numbers of the panel.

In a terminal it draws a picture and keeps it up to date, with the worst finding first. Elsewhere it prints a line for
each step that is over, each incident and each alarm; --new leaves out the alarms that are there already.
The command ends when the run ends, with exit code 0. Ctrl-C ends it earlier. The exit code is 1 if the run's processes
are gone without having ended it; only their own machine can tell that.

With --json each line is one object. What isn't known is null:
  {"type": "run", "path", "project", "experiment", "started_at", "state", "world_size", "ranks", "last_step",
   "not_waited_for", "duration_s", "steps_per_second", "dropped_rows", "bad_lines",
   "damaged_files"}  first, and again at the end; state
   is "recording", "finished", "failed" (an exception has ended it), "killed", "interrupted" (by
   Ctrl-C), "exited" (sys.exit with another code than 0), "quiet" (no rows lately) or "gone" (its
   processes are gone and haven't ended it)
  {"type": "step", "step", "step_time_s", "tokens_per_second", "peak_memory_bytes", "peak_memory_capacity_bytes",
   "rank_imbalance_ratio", "padding_tax_ratio", "reward", "own_cost_ratio",
   "alerts", "phases": [{"phase", "time_s", "peak_memory_bytes", "tokens"}, ...]}
  {"type": "incident", "t_s", "step", "rank", "process", "kind", "where", "message", "count", "switched_off"}
  {"type": "finding", "kind": "alarm", "name", "sentence", ...}  as in `probe findings --json`
With --tables it prints one line for each row instead. With --json rows are exactly as the run directory has them.
"""

from __future__ import annotations

import argparse
import json as plain_json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from probe.cli.output import remark
from probe.cli.runs import add_attempt, add_run, find_run
from probe.text import plain

if TYPE_CHECKING:
    from probe.views.terminal.following import Following, News
    from probe.views.terminal.verdict import Verdict

ABOUT: Final = "follow a run in the terminal"

EXAMPLE: Final = """\
probe tail runs/arithmetic/grpo-small
probe tail runs/arithmetic/grpo-small --json | jq 'select(.type == "step") | .padding_tax_ratio'
probe tail runs/arithmetic/grpo-small --tables incidents,scalars --new"""

#: Seconds between two looks, here and in another store.
LOOK_S: Final = 0.5
REMOTE_S: Final = 1.0

#: A look may take this share of the time.
BUSY_SHARE: Final = 0.2

#: Rows of each live table that are kept to tell steps by: several times what a picture needs.
KEPT_ROWS: Final = 200_000

#: Whose code the lines of a run that has ended are from.
_PARTS: Final = (
    *("analysis", "cli/tail.py", "core/balancing", "dashboards", "live", "runs", "text.py"),
    *("views/panel/static_bundle.py", "views/terminal"),
)

#: What is done with each look: the run, what is new, and why it couldn't be read.
Show = Callable[["Following", "News", str], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe tail``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter  # the objects of --json stand in columns
    add_run(parser)
    add_attempt(parser)
    add = parser.add_argument
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--from-start", action="store_true", help="begin with what is there already (the default)")
    begin.add_argument("--new", action="store_true", help="only what comes from now on")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--once", action="store_true", help="show what is there now, and end")
    end.add_argument("--follow", action="store_true", help="go on after the run has ended: it may be resumed")
    add("--tables", type=_tables, metavar="NAMES", help="rows of these tables, joined by commas, instead of steps")
    add("--json", action="store_true", help="one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    """Show until the run has ended, or nobody is left to end it."""
    location = find_run(arguments.run_path)
    if sys.stdout.encoding.lower().replace("-", "") != "utf8" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without these characters shows a question mark
    if arguments.tables:
        gone = _rows(location, arguments)
    elif sys.stdout.isatty() and not arguments.json:
        gone = _picture(location, arguments)
    else:
        gone = _lines(location, arguments)
    return 1 if gone else 0


# -------------------------------------------------------------------------------------------- the picture


def _picture(location: str, arguments: argparse.Namespace) -> bool:
    """Whether it ended because the run's processes are gone; so say the next ones."""
    from rich.console import Console
    from rich.live import Live

    from probe.live.opening import is_large
    from probe.views.terminal.following import Following
    from probe.views.terminal.glance import glance
    from probe.views.terminal.verdict import Verdict
    from probe.views.terminal.view import view

    console, run = Console(), Following(location, attempt=arguments.attempt)
    verdict = Verdict(location, arguments.attempt)
    if arguments.once:
        _look_once(run)
        verdict.look()
        console.print(view(run, verdict=verdict))
        return False

    def show(run: Following, _: News, problem: str) -> None:
        live.update(view(run, problem, verdict), refresh=True)
        verdict.start()  # the first picture doesn't wait for it

    try:
        with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            if is_large(run.feed.files):
                live.update(glance(run), refresh=True)
            _look_once(run)
            _follow(run, arguments, show)
        verdict.finish()
    finally:
        verdict.stop()
        if run.feed.opened:
            console.print(view(run, verdict=verdict))  # the screen of before is back: what was seen last stays on it
    return run.gone


# ----------------------------------------------------------------------------------------------- lines


def _lines(location: str, arguments: argparse.Namespace) -> bool:
    if arguments.once:
        for beside, text in once(location, json=arguments.json, new=arguments.new, attempt=arguments.attempt):
            _say_or_remark(text, beside=beside)
        return False
    from probe.views.terminal.following import Following
    from probe.views.terminal.verdict import Verdict

    run = Following(location, rows=KEPT_ROWS, from_start=not arguments.new, attempt=arguments.attempt)
    verdict = Verdict(location, arguments.attempt, skips=arguments.new)
    show = _Lines(verdict, json=arguments.json)
    try:
        _follow(run, arguments, show)
        show.end(run)
    finally:
        verdict.stop()
    return run.gone


def once(location: str, *, json: bool = False, new: bool = False, attempt: int | None = None) -> list[tuple[bool, str]]:
    """A run as it stands, in lines: of a large run that has ended as they were kept.

    Args:
        location: A run directory or its URL.
        json: Whether each line is an object.
        new: Whether steps and incidents that are there already are left out.
        attempt: As :class:`probe.runs.reader.Run`.

    Returns:
        Whether a line is a remark beside the others, and its text.

    Raises:
        RunError: It can't be read.
        SchemaVersionError: A newer probe wrote it.
    """
    run: Following | None = None

    def made() -> str:
        nonlocal run
        from probe.views.terminal.following import Following
        from probe.views.terminal.verdict import Verdict

        told: list[tuple[bool, str]] = []
        verdict = Verdict(location, attempt, skips=new)
        run = Following(location, rows=KEPT_ROWS, from_start=not new, attempt=attempt)
        _Lines(verdict, json=json, say=lambda text, beside=False: told.append((beside, text))).now(run)
        return plain_json.dumps(told)

    if not _may_be_kept(location):
        text = made()
    else:
        from probe.analysis.kept_text import text_of
        from probe.dashboards import digest
        from probe.runs.reader import Run

        what = f"the lines of {location}, json {json}, new {new}, by {digest()}"
        with Run(location, attempt) as whole:
            text = text_of(whole, what, made, *_PARTS, lasts=lambda: run is not None and run.over)
    return [(bool(beside), str(line)) for beside, line in plain_json.loads(text)]


def _may_be_kept(location: str) -> bool:
    """Whether it's a large run that has only complete files: to read any other one twice takes long."""
    from probe.runs import answers
    from probe.runs.layout import PARTS_NAME

    if "://" in location:
        return False
    try:
        if any(one.stat().st_size for one in Path(location).glob("*.jsonl")):
            return False
        total = 0
        for one in (Path(location) / PARTS_NAME).glob("*.parquet"):
            total += one.stat().st_size
            if total >= answers.LEAST_BYTES:
                return True
    except OSError:
        pass
    return False


class _Lines:
    """Prints what is new, line by line."""

    def __init__(self, verdict: Verdict, *, json: bool, say: Callable[..., None] | None = None) -> None:
        self._verdict = verdict
        self._json = json
        self._say = say or _say_or_remark
        self._problem = ""
        self._begun = False

    def __call__(self, run: Following, news: News, problem: str) -> None:
        self._trouble(problem)
        if problem:
            return
        self._begin(run)
        if not run.over:
            self._verdict.start()
        self._alarms()
        self._incidents(news)
        for step in news.steps:
            self._step(run, step)

    def now(self, run: Following) -> None:
        """The run as it stands: its newest step that is over, and all incidents."""
        news = _look_once(run)
        self._begin(run, alone=True)
        self._incidents(news)
        newest = run.step if run.step is not None else run.feed.step
        if newest is not None:
            self._step(run, newest)
        if not self._json:
            self._end(run)

    def end(self, run: Following) -> None:
        """What is said last."""
        if run.feed.opened:
            self._verdict.finish()
            self._alarms()
            self._end(run)

    def _end(self, run: Following) -> None:
        from probe.views.terminal import lines

        self._say(lines.json_line(lines.run_object(run)) if self._json else lines.end_line(run))

    def _begin(self, run: Following, *, alone: bool = False) -> None:
        from probe.views.terminal import lines

        if self._begun:
            return
        self._begun = True
        if not self._json and lines.damage_line(run):
            self._say(lines.damage_line(run))
        if run.left_out:
            text = f"{run.left_out:,} rows of this large run are left out, and with them some of its older steps"
            self._say(f"{text}; probe sql and probe export have them all", beside=True)
        self._say(lines.json_line(lines.run_object(run)) if self._json else lines.start_line(run))
        if alone or run.over:  # all that there is is there: what is wrong stands before the steps
            self._verdict.look()
            self._first(run)

    def _first(self, run: Following) -> None:
        from probe.views.terminal.verdict import verdict_lines

        if self._json:
            self._alarms()
            return
        verdict = self._verdict
        verdict.news()  # the worst of them stands here, and how many more there are
        known = {"whole": verdict.whole, "begun": run.step is not None, "over": run.over or run.gone}
        for text, _ in verdict_lines(verdict.found, run.feed.path, **known):
            self._say(text)

    def _alarms(self) -> None:
        from probe.views.terminal import lines
        from probe.views.terminal.verdict import finding_line

        for one in self._verdict.news():
            self._say(lines.json_line(plain({"type": "finding", **one.to_dict()})) if self._json else finding_line(one))

    def _step(self, run: Following, step: int) -> None:
        from probe.views.terminal import lines

        self._say(lines.json_line(lines.step_object(run, step)) if self._json else lines.step_line(run, step))

    def _incidents(self, news: News) -> None:
        from probe.views.terminal import lines

        said = lines.incident_lines(news.incidents)
        for line in map(lines.json_line, map(lines.incident_object, news.incidents)) if self._json else said:
            self._say(line)

    def _trouble(self, problem: str) -> None:
        if problem and problem != self._problem:
            self._say(f"{problem}; trying again", beside=True)
        self._problem = problem


def _look_once(run: Following) -> News:
    """What is there; the second look tells which steps have settled."""
    news = run.look()
    if run.step is None:
        run.look()
    return news


def _follow(run: Following, arguments: argparse.Namespace, show: Show) -> None:
    """Look again and again until the run has ended or its processes are gone. A store that doesn't answer is asked
    again.
    """
    from probe.errors import RunError, SchemaVersionError
    from probe.views.terminal.following import News

    pause = LOOK_S if run.feed.local else REMOTE_S
    while True:
        begin, news, problem = time.monotonic(), News(), ""
        try:
            news = run.look()
        except SchemaVersionError:
            raise
        except RunError as error:
            problem = str(error)
        show(run, news, problem)
        sys.stdout.flush()
        if (run.over or run.gone) and not arguments.follow:
            return
        time.sleep(max(pause, (time.monotonic() - begin) / BUSY_SHARE))


# ------------------------------------------------------------------------------------------------- rows


def _rows(location: str, arguments: argparse.Namespace) -> bool:
    from probe.live.feed import Feed
    from probe.runs.lines import encode
    from probe.runs.reader import Run
    from probe.text import visible_json
    from probe.views.terminal import lines
    from probe.views.terminal.following import Ending

    ending = Ending(Feed(location))
    gone = False

    def stop() -> bool:
        nonlocal gone
        sys.stdout.flush()
        if arguments.once or (not arguments.follow and ending.reached()):
            return True
        gone = not arguments.follow and ending.gone()
        return gone

    with Run(location, arguments.attempt) as run:
        for row in run.tail(arguments.tables, poll_s=LOOK_S, stop=stop, from_start=not arguments.new):
            _say(visible_json(encode(row).decode().rstrip("\n")) if arguments.json else lines.row_line(row))
    return gone


def _tables(text: str) -> list[str]:
    from probe.runs.reader import NAMES

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not set(names) <= set(NAMES):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected one or more of {', '.join(sorted(NAMES))}")
    return names


def _say(line: str) -> None:
    print(line)


def _say_or_remark(text: str, *, beside: bool = False) -> None:
    remark("tail", text) if beside else _say(text)
