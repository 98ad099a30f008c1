"""How long the rows of a batch are that a framework hands to its model, by the names that its tensors have.

Numbers of a tensor on the CPU are read at once; those on a device travel behind the work that is queued there already,
nobody waits for them, and what was to be said is said when they are there, in the scope in which it was asked for.
"""

from __future__ import annotations

import contextvars
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from probe.moments import TokenField

#: A label that the loss leaves out.
IGNORED: Final = -100

#: Asked of whoever reads numbers: lengths, and tokens that the loss counts (None where that isn't known).
Told = Callable[[list[int], list[int] | None], None]


class Rows(NamedTuple):
    """What a batch is made of.

    Attributes:
        lengths: Tokens of each row, a tensor of shape (rows,); or offsets of shape (rows + 1,) where ``offsets``.
        effective: Tokens of each row that the loss counts, shape (rows,); with ``offsets`` their running sum at the end
            of each row. None where the batch doesn't say it.
        width: Columns of the rectangle that is computed on; None where rows stand one behind the other.
        fields: Columns that hold something for each token.
        offsets: Whether rows are told by where they begin and end.
    """

    lengths: Any
    effective: Any
    width: int | None
    fields: list[TokenField]
    offsets: bool = False


def rows_of(batch: Any) -> Rows | None:
    """The rows of a batch of token ids, None where nothing in it tells of any.

    Args:
        batch: A mapping of names to tensors, of the names that Transformers and TRL use: ``prompt_mask`` and
            ``completion_mask`` (each padded for itself), ``cu_seq_lens_q`` or ``position_ids`` of a single row (rows
            one behind the other, without padding), ``attention_mask`` or ``input_ids``, each of shape (rows, width).
    """
    if not isinstance(batch, Mapping) and not (hasattr(batch, "keys") and hasattr(batch, "get")):
        return None
    if _is_matrix(batch, "prompt_mask") and _is_matrix(batch, "completion_mask"):
        return _prompts_and_completions(batch)
    if _is_matrix(batch, "input_ids") and ("cu_seq_lens_q" in batch or _is_flat(batch)):
        return _one_behind_the_other(batch, batch.get("cu_seq_lens_q", None))
    if _is_matrix(batch, "attention_mask"):
        mask = batch["attention_mask"]
        return _rectangle(batch, mask.sum(-1), int(mask.shape[1]))
    if _is_matrix(batch, "input_ids"):  # without a mask the model computes on all of it
        ids = batch["input_ids"]
        return _rectangle(batch, ids.new_full((ids.shape[0],), ids.shape[1]), int(ids.shape[1]))
    return None


class Arrivals:
    """Numbers that were asked for and aren't there yet."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], bool], Callable[[], None], contextvars.Context]] = deque()
        self._said: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def first_time(self, message: str) -> bool:
        """Whether it hasn't been asked about this message of the same trainer before."""
        new = message not in self._said
        self._said.add(message)
        return new

    def read(self, rows: Rows, told: Told) -> None:
        """Say how long rows are: now where that is known on the CPU, else at a :meth:`deliver` after it has come.

        Args:
            rows: Of :func:`rows_of`. Of rows on a device other than the CPU and CUDA nothing is ever said.
            told: Called with what is known; its points fire in the scope that this is called in.
        """
        asked = [one for one in (rows.lengths, rows.effective) if one is not None]
        kinds = {one.device.type for one in asked if hasattr(one, "device")}
        if kinds <= {"cpu"}:
            told(*_numbers(rows, [_listed(one) for one in asked]))
        elif kinds <= {"cpu", "cuda"}:
            self._send(rows, asked, told)

    def later(self, ready: Callable[[], bool], say: Callable[[], None]) -> None:
        """Call ``say`` at a :meth:`deliver` after ``ready``, in the scope that the program is in now.

        Args:
            ready: Such as a CUDA event's ``query``; it waits for nothing.
            say: What is said then.
        """
        self._waiting.append((ready, say, contextvars.copy_context()))

    def deliver(self) -> None:
        """Say what has come meanwhile, in the order in which it was asked for. Waits for nothing."""
        while self._waiting and self._waiting[0][0]():
            _, say, context = self._waiting.popleft()
            context.run(say)

    def _send(self, rows: Rows, asked: Sequence[Any], told: Told) -> None:
        import torch

        if torch.cuda.is_current_stream_capturing():
            return
        landings = []
        for one in asked:
            landing = torch.empty(one.shape, dtype=one.dtype, pin_memory=True)
            landing.copy_(one, non_blocking=True)
            landings.append(landing)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(next(one.device for one in asked if one.device.type == "cuda")))
        about = rows._replace(lengths=None, effective=rows.effective is not None or None)  # keeps no tensor alive

        def say() -> None:
            told(*_numbers(about, [landing.tolist() for landing in landings]))

        self.later(done.query, say)


def _listed(one: Any) -> list[int]:
    found: list[int] = one.tolist() if hasattr(one, "tolist") else list(one)
    return found


def _numbers(rows: Rows, found: Sequence[list[int]]) -> tuple[list[int], list[int] | None]:
    lengths = [int(one) for one in found[0]]
    effective = [int(one) for one in found[1]] if rows.effective is not None else None
    if not rows.offsets:
        return lengths, effective
    lengths = [after - before for before, after in itertools.pairwise(lengths)]
    if effective is not None:
        effective = [after - before for before, after in itertools.pairwise([0, *effective])]
    return lengths, effective


def _is_matrix(batch: Any, name: str) -> bool:
    found = batch.get(name, None)
    return getattr(found, "ndim", 0) == 2 and not getattr(found, "is_nested", False)


def _is_flat(batch: Any) -> bool:
    return _is_matrix(batch, "position_ids") and batch["position_ids"].shape[0] == 1 and "attention_mask" not in batch


def _prompts_and_completions(batch: Any) -> Rows:
    prompts, completions = batch["prompt_mask"], batch["completion_mask"]
    answers = completions if "tool_mask" not in batch else completions * batch["tool_mask"]
    width = int(prompts.shape[1] + completions.shape[1])
    # The trainer joins both into these two before it calls the model.
    fields = [TokenField("attention_mask", prompts.element_size())]
    if "prompt_ids" in batch:
        fields.append(TokenField("input_ids", batch["prompt_ids"].element_size()))
    return Rows(prompts.sum(-1) + completions.sum(-1), answers.sum(-1), width, fields)


def _one_behind_the_other(batch: Any, offsets: Any) -> Rows | None:
    ids = batch["input_ids"]
    if offsets is None:
        if ids.device.type != "cpu":  # how many rows there are is known on the device alone
            return None
        begins = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
        offsets = ids.new_tensor([*begins, ids.shape[1]])
    elif not hasattr(offsets, "device"):
        offsets = ids.new_tensor(offsets, device="cpu")
    fields = _fields(batch, 1, int(ids.shape[1]))
    counted = _counted(batch)
    if counted is None or counted.device != offsets.device:
        return Rows(offsets, None, None, fields, offsets=True)
    ends = counted.flatten().cumsum(0).index_select(0, offsets[1:].long() - 1)
    return Rows(offsets, ends, None, fields, offsets=True)


def _rectangle(batch: Any, lengths: Any, width: int) -> Rows:
    counted = _counted(batch)
    effective = None if counted is None else counted.sum(-1)
    return Rows(lengths, effective, width, _fields(batch, int(lengths.shape[0]), width))


def _counted(batch: Any) -> Any:
    """Which tokens the loss counts, shape (rows, width): labels are of the token before, so that the first counts not.

    None where the batch doesn't say it, or its labels aren't tokens.
    """
    if "labels" not in batch and _is_matrix(batch, "completion_mask"):
        counted = batch["completion_mask"] != 0
    elif _is_matrix(batch, "labels") and _is_matrix(batch, "input_ids"):
        if batch["labels"].shape != batch["input_ids"].shape:
            return None
        counted = batch["labels"] != IGNORED
    else:
        return None
    counted[:, 0] = False
    return counted


def _fields(batch: Any, rows: int, width: int) -> list[TokenField]:
    found = []
    for name in batch:
        shape: Any = getattr(batch[name], "shape", ())
        if len(shape) >= 2 and shape[0] == rows and shape[1] == width:
            trailing = 1
            for size in shape[2:]:
                trailing *= int(size)
            found.append(TokenField(str(name), batch[name].element_size() * trailing))
    return sorted(found)
