"""By whose rule the rows of a training of TRL or Transformers come into micro-batches, and what that rule was given.

A loader gives each micro-batch the same number of rows. The online trainers of TRL cut what they have generated at once
into equal stretches; its SFT trainer can pack the rows of its data set into sequences first, a thousand rows at a time.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from probe.adapters.loaders import rule_of_loader
from probe.adapters.seams import Call
from probe.adapters.telling import session
from probe.adapters.told_batches import Rule
from probe.moments import tell_packed

#: Rows that TRL packs at once: what ``datasets.Dataset.map`` takes for a batch.
CHUNK_ROWS: Final = 1000

#: TRL's collator that makes two sequences of each row: the answer that was chosen and the one that was rejected.
_PAIRS: Final = "DataCollatorForPreference"

#: What is to be told of data sets when the training has begun: they are packed before. Of more than that the oldest go.
_waiting: Final[deque[Callable[[], None]]] = deque(maxlen=8)


def packer_of(trainer: Any) -> Rule:
    """By whose rule the micro-batches of a step were cut, or those of one of its generations.

    Args:
        trainer: A ``Trainer``, as the first of them begins.
    """
    if hasattr(trainer, "_buffered_inputs"):
        return _of_generation(trainer)
    loader = getattr(getattr(trainer, "callback_handler", None), "train_dataloader", None)
    return _of_loader(trainer, loader, bool(getattr(trainer.args, "packing", False)))


def evaluation_packer_of(trainer: Any, loader: Any) -> Rule:
    """By whose rule the batches of an evaluation are made. What is generated in one is generated batch by batch.

    Args:
        trainer: A ``Trainer``.
        loader: What gives the batches.
    """
    packed_data = getattr(trainer.args, "eval_packing", None)
    if packed_data is None:
        packed_data = getattr(trainer.args, "packing", False)
    return _of_loader(trainer, loader, bool(packed_data))


def _of_loader(trainer: Any, loader: Any, packed_data: bool) -> Rule:
    given = rule_of_loader(loader)
    if "rows_each" not in given:
        return Rule("", given)
    if any(kind.__name__ == _PAIRS for kind in type(getattr(trainer, "data_collator", None)).__mro__):
        given["sequences_each"] = 2
    if packed_data:
        given |= {"packing": True} | {name: getattr(trainer.args, name) for name in ("packing_strategy", "max_length")}
    return Rule(_whose(trainer), given)


def _of_generation(trainer: Any) -> Rule:
    """Of the batch that an online trainer takes its micro-batches from, an equal stretch for each.

    Which stretch comes first, in which pass over what was generated, is worked out from the trainer's own count of
    micro-batches.
    """
    stretches = trainer._buffered_inputs
    if not stretches or not all(isinstance(one, dict) and "completion_ids" in one for one in stretches):
        return Rule("", {})
    passes = int(getattr(trainer, "num_iterations", 1))
    given = {
        "steps_per_generation": len(stretches),
        "generated_rows": sum(int(one["completion_ids"].shape[0]) for one in stretches),
        "num_iterations": passes,
    }
    done = getattr(trainer, "_step", None)
    if isinstance(done, int):
        earlier, within = divmod(done, len(stretches) * passes)
        given["generation"] = earlier
        given["iteration"], given["first_stretch"] = divmod(within, len(stretches))
    return Rule(_whose(trainer), given)


def _whose(trainer: Any) -> str:
    theirs = any(kind.__module__.partition(".")[0] == "trl" for kind in type(trainer).__mro__)
    return _named("trl" if theirs else "transformers")


def _named(package: str) -> str:
    return f"{package} {getattr(sys.modules.get(package), '__version__', '')}".rstrip()


def packed(call: Call) -> None:
    """A data set has been packed into sequences. Its first rows are told of, those that TRL packs in one go.

    Args:
        call: Of ``pack_dataset``.
    """
    rows, made = call.argument("dataset"), call.result
    if not hasattr(rows, "_data") or not hasattr(made, "_data"):  # of a stream nothing has been packed yet
        return
    options = call.argument("map_kwargs") or {}
    processes = int(options.get("num_proc") or 1)
    chunk = min(int(options.get("batch_size") or CHUNK_ROWS), -(-len(rows) // processes))
    size, strategy = int(call.argument("seq_length")), str(call.argument("strategy"))
    lengths = _row_lengths(rows, chunk)
    kept = sum(min(one, size) for one in lengths) if strategy == "bfd" else sum(lengths)
    parts: list[int] = []
    for tokens in _row_lengths(made, chunk + kept // size + 1):
        if kept <= 0:
            break
        parts.append(tokens)
        kept -= tokens
    told: dict[str, Any] = {"strategy": strategy, "seq_length": size, "rows": len(rows), "chunk_rows": chunk}

    def tell() -> None:
        tell_packed(
            lengths=lengths, parts_tokens=parts, source="trl.pack_dataset", packer=_named("trl"), arguments=told
        )

    _waiting.append(tell)


def _row_lengths(rows: Any, count: int) -> list[int]:
    """Entries of the first rows of a data set, of which all columns have one for each token, counted by Arrow."""
    table = rows.with_format("arrow")[:count]
    name = "input_ids" if "input_ids" in table.column_names else table.column_names[0]
    found: list[int] = [len(one) for one in table.column(name)]
    return found


def tell_waiting() -> None:
    """Tell of the data sets that were packed before the training, once; all ranks pack the same."""
    open_now = session()
    if not _waiting or open_now is None:
        return
    waiting = list(_waiting)
    _waiting.clear()
    if not open_now.rank:
        for tell in waiting:
            tell()
