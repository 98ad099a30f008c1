"""DataProto's row operations beside the same on a bare TensorDict: 8,192 rows × 12 columns.

The bare side does what a person would write without DataProto: the operation on the TensorDict alone, with
no objects, no meta info and no checks. ``union`` compares the columns that both sides have, as its contract
asks for, on both sides.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from benchmarks.measure import Size
from probe.core.protocol import DataProto

ROWS = 8192
WIDTH = 128
PARTS = 64
TARGET = 1.2


def _columns(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Twelve columns as a trainer has them: ids, masks, log-probs, one number for each row."""
    columns: dict[str, torch.Tensor] = {}
    for name in ("input_ids", "attention_mask", "position_ids", "responses"):
        columns[name] = torch.randint(0, 1000, (count, WIDTH), generator=generator)
    for name in ("old_log_probs", "ref_log_prob", "advantages", "returns", "values"):
        columns[name] = torch.randn(count, WIDTH, generator=generator)
    columns["response_mask"] = torch.rand(count, WIDTH, generator=generator) < 0.5
    columns["score"] = torch.randn(count, generator=generator)
    columns["length"] = torch.randint(0, WIDTH, (count,), generator=generator)
    return columns


def _cases(count: int) -> list[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    generator = torch.Generator().manual_seed(0)
    columns = _columns(count, generator)
    bare = TensorDict(columns, batch_size=[count])
    uid = np.array([f"{row}" for row in range(count)], dtype=object)
    ours = DataProto(TensorDict(columns, batch_size=[count]), {"uid": uid}, {"temperature": 1.0})
    parts, bare_parts = ours.chunk(PARTS), list(bare.chunk(PARTS))
    index = torch.randperm(count, generator=generator)[: count // 2]
    names = list(columns)
    left, right = names[:8], names[4:]
    again = {name: columns[name].clone() for name in right}
    other, bare_other = DataProto.from_dict(again), TensorDict(again, batch_size=[count])

    def union_bare() -> TensorDict:
        mine = bare.select(*left)
        for name in set(mine.keys()) & set(bare_other.keys()):
            if not torch.equal(mine[name], bare_other[name]):
                raise AssertionError(name)
        return mine.update(bare_other)

    return [
        (f"concat of {PARTS} parts", lambda: DataProto.concat(parts), lambda: torch.cat(bare_parts)),  # type: ignore[arg-type]  # it takes these, too
        (f"chunk into {PARTS}", lambda: ours.chunk(PARTS), lambda: bare.chunk(PARTS)),
        ("select_idxs, half the rows", lambda: ours.select_idxs(index), lambda: bare[index]),
        ("union, 4 of 8 columns in both", lambda: ours.select(left, [], []).union(other), union_bare),
        ("repeat, twice", lambda: ours.repeat(2), lambda: bare.repeat_interleave(2, dim=0)),
    ]


def _seconds(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """Median seconds of each side, taken in turns so that a busy machine slows both alike, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measured(size.pick(2 * PARTS, ROWS), size.pick(1, 31))
    finally:
        torch.set_num_threads(threads)


def _measured(count: int, repeats: int) -> list[dict[str, Any]]:
    found = []
    for name, ours, theirs in _cases(count):
        _seconds(ours), _seconds(theirs)
        pairs = [(_seconds(ours), _seconds(theirs)) for _ in range(repeats)]
        ours_s = statistics.median(pair[0] for pair in pairs)
        theirs_s = statistics.median(pair[1] for pair in pairs)
        ratio = ours_s / theirs_s
        found.append({"name": name, "ours_s": ours_s, "theirs_s": theirs_s, "ratio": ratio, "target": TARGET})
    return found


def main() -> None:
    for row in rows():
        print(
            f"{row['name']:32} {row['ours_s'] * 1e3:9.3f} ms  bare {row['theirs_s'] * 1e3:9.3f} ms  "
            f"ratio {row['ratio']:.2f} (at most {row['target']})"
        )


if __name__ == "__main__":
    main()
