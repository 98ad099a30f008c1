"""The codec beside the plain ways: row slices into nested tensors, torch's own padding, and the floor.

Four batches with the lengths of rollouts (log-normal, about a quarter of the rectangle filled). The plain sides are
what a person would write: ``torch.nested.as_nested_tensor`` of row slices, the same for responses, and
``torch.nested.to_padded_tensor``. The note of each row gives the floor: one copy of the bytes that must move into
fresh memory, the first touch of the output included, and how far above it we are.

On the CPU it runs on one thread: the others of a busy machine come and go, and torch's copies wait for the last.
``python -m benchmarks.codec cuda`` measures the same on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Size, duration, row, seconds
from probe import hooks
from probe.core.codec import materialize, pack_jagged_fields, response_from_nested, to_nested_by_length

BATCHES = (
    (512, 2048, torch.int64),
    (512, 2048, torch.bfloat16),
    (512, 8192, torch.float32),
    (4096, 2048, torch.float32),
)
SMALL_BATCHES = ((8, 64, torch.int64),)
TARGETS = {"pack": "at most 0.3", "response": "at most 0.2", "materialise": "at most 0.65"}
FILLED = 0.25
FIELDS = 8
LOOPS = 50


#: Kind, ours, the plain way and the floor.
Case = tuple[str, Callable[[], Any], Callable[[], Any], Callable[[], Any]]


def lengths_of(rows: int, width: int) -> torch.Tensor:
    """Log-normal lengths from 2 to ``width`` that fill about a quarter of the rectangle; the longest row fills it."""
    generator = np.random.default_rng(0)
    drawn = generator.lognormal(0.0, 0.8, rows)
    lengths = np.clip((drawn / drawn.mean() * width * FILLED).astype(np.int64), 2, width)
    lengths[0] = width
    return torch.from_numpy(lengths)


def batch_of(rows: int, width: int, dtype: torch.dtype, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """A rectangle and its lengths."""
    values = torch.randint(0, 100, (rows, width), generator=torch.Generator().manual_seed(0))
    return values.to(device=device, dtype=dtype), lengths_of(rows, width)


def plain_pack(padded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The rectangle's rows cut one by one."""
    rows = [padded[index, :length] for index, length in enumerate(lengths.tolist())]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def plain_response(full: Any, mask: Any) -> torch.Tensor:
    """The left-shifted responses cut one by one."""
    values, ends, lengths = full.values(), full.offsets()[1:].tolist(), mask.offsets().diff().tolist()
    rows = [values[end - length - 1 : end - 1] for end, length in zip(ends, lengths, strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def copied(tokens: int, like: torch.Tensor, into: int) -> Callable[[], Any]:
    """The floor: ``tokens`` copied into the beginning of fresh memory for ``into`` of them, all of it touched."""
    source = torch.zeros(tokens, dtype=like.dtype, device=like.device)

    def work() -> None:
        made = torch.empty(into, dtype=like.dtype, device=like.device)
        made[:tokens].copy_(source)
        made[tokens:].zero_()

    return work


def cases(rows: int, width: int, dtype: torch.dtype, device: str = "cpu") -> list[Case]:
    """Of one batch; ours is checked to equal the plain result."""
    padded, lengths = batch_of(rows, width, dtype, device)
    total = int(lengths.sum())
    full = to_nested_by_length(padded, lengths)
    mask = to_nested_by_length(padded, lengths // 2)
    wire = pack_jagged_fields({"ids": padded}, lengths=lengths, token_aligned_fields={"ids"})
    found: list[Case] = [
        (
            "pack",
            lambda: to_nested_by_length(padded, lengths),
            lambda: plain_pack(padded, lengths),
            copied(total, padded, total),
        ),
        (
            "response",
            lambda: response_from_nested(full, mask),
            lambda: plain_response(full, mask),
            copied(int((lengths // 2).sum()), padded, int((lengths // 2).sum())),
        ),
    ]
    for _, ours, plain, _ in found:
        if not torch.equal(ours().values(), plain().values()):
            raise RuntimeError("the two sides differ")
    if device == "cuda" and dtype == torch.int64:  # torch's own padding has no kernel for integers there
        return found
    if not torch.equal(materialize(wire)["ids"], padded_plainly(wire)):
        raise RuntimeError("the two sides differ")
    return [
        *found,
        (
            "materialise",
            lambda: materialize(wire),
            lambda: padded_plainly(wire),
            copied(total, padded, rows * width),
        ),
    ]


def padded_plainly(wire: Any) -> torch.Tensor:
    """torch's own padding."""
    padded: torch.Tensor = torch.nested.to_padded_tensor(wire.get("ids"), 0)
    return padded


def observing(repeats: int, rows: int = 8, width: int = 16) -> list[dict[str, Any]]:
    """What a field costs to tell of: a small batch with the padding recorder listening, and with nobody."""
    from probe.recorders.padding_tax import PaddingTaxRecorder

    class Record(hooks.Listener):
        recorder = PaddingTaxRecorder()

        def fire(self, event: hooks.Event) -> None:
            self.recorder.fire(event)

    lengths = lengths_of(rows, width)
    fields = {f"field{index}": torch.zeros(rows, width, dtype=torch.int16) for index in range(FIELDS)}
    wire = pack_jagged_fields(fields, lengths=lengths)

    def heard(work: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> None:
            with hooks.subscribe(Record(), "codec.packed", "codec.materialized"):
                for _ in range(LOOPS):
                    work()

        return run

    def unheard(work: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> None:
            for _ in range(LOOPS):
                work()

        return run

    found = []
    works: list[tuple[str, Callable[[], Any]]] = [
        ("pack", lambda: pack_jagged_fields(fields, lengths=lengths)),
        ("materialise", lambda: materialize(wire)),
    ]
    for name, work in works:
        ours, theirs = (one / LOOPS for one in seconds(heard(work), unheard(work), repeats=repeats))
        note = f"{duration(abs(ours - theirs) / FIELDS)} per field (at most 30 µs)"
        found.append(row(f"{name} {FIELDS} small fields, padding recorded", ours, theirs, "", note))
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rows(size: Size = Size.USUAL, device: str = "cpu") -> list[dict[str, Any]]:
    """The table; a full one measures longer."""
    found = []
    with one_thread():
        for count, width, dtype in size.pick(SMALL_BATCHES, BATCHES):
            for kind, ours, plain, floor in cases(count, width, dtype, device):
                works = [finished(work, device) for work in (ours, plain, floor)]
                mine, theirs, least = seconds(*works, repeats=size.pick(1, 15, 41))
                note = (
                    f"the minimum is {duration(least)} ({least / theirs:.2f} of the alternative); "
                    f"ours is {mine / least:.1f} times the minimum"
                )
                name = f"{kind} {count} × {width} {str(dtype).removeprefix('torch.')}"
                found.append(row(name, mine, theirs, TARGETS[kind], note))
        return found + (observing(size.pick(1, 15)) if device == "cpu" else [])


def finished(work: Callable[[], Any], device: str) -> Callable[[], Any]:
    """``work``, and on a device until it is done."""
    if device == "cpu":
        return work

    def run() -> None:
        work()
        torch.cuda.synchronize()

    return run


def main() -> None:
    """Print the rows."""
    for one in rows(device=sys.argv[1] if len(sys.argv) > 1 else "cpu"):
        times = f"{duration(one['ours_s']):>9} against {duration(one['theirs_s']):>9}"
        print(f"{one['name']:44} {times}  ratio {one['ratio']:.3f} {one['target']:15} {one['note']}")


if __name__ == "__main__":
    main()
