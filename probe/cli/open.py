"""Show the live panel of a run on a page that this machine serves, while the run is written or after it has ended.

RUN may also be a log of a training without probe: of verl's `file` logger, a directory with one, the output directory
or a checkpoint of Transformers' and TRL's trainers (`trainer_state.json`), or TensorBoard's. What the log doesn't tell
is missing.

The page is the panel of the notebook. It is served on 127.0.0.1 only, under a URL that nobody can guess. To see it from
another machine, forward it: ssh -L 8000:127.0.0.1:8000. Standard output gets the URL and nothing else. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from probe.cli.output import remark
from probe.cli.runs import add_attempt, add_run, find_run

ABOUT: Final = "show the live panel of a run in a page on this machine"

EXAMPLE: Final = """\
probe open runs/arithmetic/grpo-small
probe open logs/gsm8k/grpo.jsonl --rollouts rollouts
probe open outputs/grpo/checkpoint-500
probe open s3://bucket/runs/arithmetic/grpo-small --no-browser --port 8000"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe open``."""
    add_run(parser)
    add_attempt(parser)
    add = parser.add_argument
    add("--port", type=_port, default=0, metavar="N", help="port to listen on (a free one)")
    add("--rollouts", metavar="DIR", help="verl's trainer.rollout_data_dir, if RUN is a log of verl")
    add("--no-browser", action="store_true", help="only print the URL")
    add("--json", action="store_true", help='print {"url": ..., "run": ...} instead of the URL')


def run(arguments: argparse.Namespace) -> int:
    """Serve until somebody ends it."""
    from probe.views.server.server import PageServer

    location = find_run(arguments.run_path, rollouts=arguments.rollouts)
    with _asked_to_end() as ended, PageServer(_source(location, arguments.attempt), port=arguments.port) as server:
        server.start()
        told = json.dumps({"url": server.url, "run": server.panel.path}) if arguments.json else server.url
        print(told, flush=True)
        remark("open", f"{server.panel.title} is shown until Ctrl-C")
        if not arguments.no_browser:
            _show(server.url)
        server.follow()
        while not ended.wait(1.0):  # with a timeout, so that Ctrl-C gets through on every system
            pass
    return 0


def _source(location: str, attempt: int | None) -> Any:
    """What is shown: the run, or one attempt of it."""
    from probe.runs.reader import Run

    return location if attempt is None else Run(location, attempt)


@contextmanager
def _asked_to_end() -> Iterator[threading.Event]:
    """Set by SIGTERM, so that pages hear of an orderly end, too."""
    ended = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield ended
        return
    before = signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        yield ended
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(url: str) -> None:
    """Open the person's browser, where there is one with a window: one in the terminal would take it over."""
    import webbrowser

    told = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if told or sys.platform in ("win32", "darwin"):
        threading.Thread(target=webbrowser.open, args=(url,), name="probe-open-browser", daemon=True).start()


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**16:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected 0 to 65535")
    return int(text)
