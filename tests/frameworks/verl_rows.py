"""Batches as verl's workers get them, and the partitions that a session has of them."""

from __future__ import annotations

import json
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData

from probe.session import Session

LENGTHS = [90, 31, 7, 64, 55, 12, 80, 3, 41, 28, 9, 66]


def jagged(lengths: list[int]) -> torch.Tensor:
    rows = [torch.arange(length) for length in lengths]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def batch(lengths: list[int], **settings: Any) -> TensorDict:
    """A batch as verl's workers get it: jagged, with how it wants to be treated. A third of each row is trained on."""
    mask = torch.nested.as_nested_tensor(
        [(torch.arange(length) % 3 == 0).long() for length in lengths], layout=torch.jagged
    )
    columns = {"input_ids": jagged(lengths), "position_ids": jagged(lengths), "loss_mask": mask}
    made = TensorDict(columns, batch_size=len(lengths))
    for key, value in settings.items():
        made[key] = NonTensorData(value)
    return made


def partitions(session: Session) -> list[dict[str, Any]]:
    session.flush()
    found = session.run.table("partitions").to_dict("records")
    return [row | {"arguments": json.loads(row["arguments"])} for row in found]
