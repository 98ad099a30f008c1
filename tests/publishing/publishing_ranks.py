"""One rank of a small training: ``python publishing_ranks.py RANK RANKS DIRECTORY BACKENDS STEPS``.

Prints, as JSON, where rank 0's backends keep their data, what the losses were, and which packages the process has
loaded that only views need. ``BACKENDS`` is a list joined by commas; ``PUBLISH`` in the environment is given to
``start`` as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from probe import session as sessions
from probe.core.metric import reduce_metrics
from probe.core.protocol import DataProto
from probe.core.seqlen_balancing import micro_batches
from probe.hooks import phase, watch
from probe.publishing import publisher
from probe.session import Session, start

#: What no file of a run and of its backends may hold.
SECRET = "s3cr3t-value-of-a-key"
CONFIG: dict[str, Any] = {"lr": 0.01, "model": {"width": 8, "hf_token": SECRET}}


def batch(rank: int, step: int, rows: int = 12, width: int = 24) -> DataProto:
    """Rank 1 has longer sequences."""
    drawing = torch.Generator().manual_seed(100 * rank + step)
    lengths = torch.randint(4 + 6 * rank, width + 1, (rows,), generator=drawing)
    mask = (torch.arange(width)[None] < lengths[:, None]).long()
    ids = torch.randint(0, 9, (rows, width), generator=drawing)
    return DataProto.from_dict({"input_ids": ids, "attention_mask": mask})


def train(rank: int, steps: int, session: Session | None) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and weights."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []

    @watch(role="actor", phase="update")
    def update(data: DataProto) -> None:
        for part in micro_batches(data, max_token_len=64):
            mask = part.batch["attention_mask"]
            loss = (model(part.batch["input_ids"]).squeeze(-1) * mask).pow(2).mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()

    for step in range(steps):
        if session is None:
            update(batch(rank, step))
            continue
        with session.step(step):
            with phase("generate", role="rollout"):
                data = batch(rank, step)
            update(data)
            metrics = reduce_metrics({"loss": losses[-2:], "loss_max": losses[-2:]})
        session.log(metrics, step)
    return losses, [one.detach().clone() for one in model.parameters()]


def main(rank: int, ranks: int, directory: Path, backends: str, steps: int) -> None:
    """Trains, and says what came of it."""
    warnings.simplefilter("ignore")  # of the backends' own packages
    torch.set_num_threads(1)
    publisher.FINAL_S = sessions.patience.END_S = 600.0  # type: ignore[misc]  # on a loaded machine the last edition takes its time
    track = backends.split(",") if backends and rank == 0 else None
    options: dict[str, Any] = {"rank": rank, "world_size": ranks, "config": CONFIG}
    publish = json.loads(os.environ.get("PUBLISH", "null")) if rank == 0 else None
    with start("published", "ranks", run_dir=directory, track=track, publish=publish, **options) as session:
        losses, weights = train(rank, steps, session)
        located = {} if session.tracking is None else session.tracking.locations
        run_id = getattr((session.tracking.logger if session.tracking else {}).get("mlflow"), "run_id", None)
    if session.publisher is not None:
        session.publisher.wait(600.0)  # the tests look at what the last edition has brought
    loaded = sorted({"pandas", "plotly", "ipywidgets"} & set(sys.modules))
    if os.environ.get("WEIGHTS"):
        torch.save(weights, os.environ["WEIGHTS"])
    sys.stdout.write(json.dumps({"locations": located, "losses": losses, "loaded": loaded, "run_id": run_id}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
