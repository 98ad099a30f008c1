"""The job: one process for each rank, all of which end when one dies."""

from __future__ import annotations

import gc
import logging
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing.spawn import ProcessException, spawn

from probe.demo.data import read_problems, write_problems
from probe.demo.settings import Settings
from probe.demo.trainer import Metrics, Trainer
from probe.errors import PeerError
from probe.session import start

#: How long a rank waits for the others before it gives up, seconds.
PATIENCE_S = 120


def launch(
    settings: Settings,
    directory: Path,
    *,
    ranks: int,
    track: list[str],
    on_step: Callable[[int, Metrics], None],
) -> dict[str, str]:
    """Train on ``ranks`` processes and record to the run ``directory``; go on from its latest checkpoint.

    Args:
        settings: What is trained, and how.
        directory: The run directory.
        ranks: Number of processes.
        track: Tracking backends by name.
        on_step: Is called in this process with what :meth:`Trainer.train` yields.

    Returns:
        Where each backend has put its data.

    Raises:
        PeerError: A rank failed or was killed; the others have been ended, too.
    """
    problems = directory / "problems.parquet"
    if not problems.exists():
        write_problems(problems, rows=settings.problems, seed=settings.seed)
    news = mp.get_context("spawn").SimpleQueue()
    locations: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="probe-demo-") as place:
        meeting = Path(place) / "meeting"
        job = spawn(work, (ranks, settings, problems, meeting, track, news), nprocs=ranks, join=False)
        try:
            while not job.join(timeout=0.1):
                listen(news, locations, on_step)
            listen(news, locations, on_step)
        except ProcessException as error:
            raise PeerError(f"rank {error.error_index} of {ranks} failed, so the demo ends: {error}") from error
        finally:
            for process in job.processes:
                process.kill()
                process.join()
            news.close()
    return locations


def listen(news: Any, locations: dict[str, str], on_step: Callable[[int, Metrics], None]) -> None:
    """Hear what rank 0 has told so far."""
    while not news.empty():
        kind, *what = news.get()
        if kind == "step":
            on_step(*what)
        else:
            locations.update(*what)


def work(rank: int, ranks: int, settings: Settings, problems: Path, meeting: Path, track: list[str], news: Any) -> None:
    """What one rank does, from joining the others to leaving them."""
    torch.set_num_threads(1)
    # FSDP asks torch something that it warns of once a process, into the middle of the progress bar.
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    distributed: Any = dist  # FileStore is public, but not in its __all__
    dist.init_process_group(
        "gloo",
        store=distributed.FileStore(str(meeting), ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=PATIENCE_S),
    )
    try:
        train(rank, settings, problems, track, news)
    finally:
        gc.collect()  # FSDP holds the group in a cycle, and a group that outlives the interpreter aborts the process
        dist.destroy_process_group()


def train(rank: int, settings: Settings, problems: Path, track: list[str], news: Any) -> None:
    """Record and train; rank 0 tells of each step."""
    with start("demo", run_dir=problems.parent, track=track, config=asdict(settings)) as session:
        if session.tracking is not None:
            news.put(("locations", session.tracking.locations))
        dataset = read_problems(problems, settings)
        trainer = Trainer(settings, dataset, session, checkpoints=problems.with_name("checkpoints"))
        for step, metrics in trainer.train():
            if rank == 0:
                news.put(("step", step, metrics))
