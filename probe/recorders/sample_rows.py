"""From one told batch to its rows: fates of all tokens, numbers of the answers that are kept, blocks of a few."""

from __future__ import annotations

import base64
import math
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import repeat
from typing import Any, Final

import msgspec
import numpy as np

from probe.recorders.group_baselines import Known, baselines
from probe.recorders.later_passes import AsEnded
from probe.recorders.rollout_rows import Answers, rollouts
from probe.recorders.sample_arrays import Array
from probe.recorders.sample_choice import Seen, chosen
from probe.recorders.sample_fates import OF_ANSWERS
from probe.recorders.token_identity import compared_answers, identity
from probe.recorders.told_batch import Batch, Told, words_of
from probe.records import FATES, NOT_KNOWN, GroupBaseline, Rollout, Row, Sample, TokenBlock, TokenFate, TokenIdentity

#: Arrays of a token block, in their order, with how they are kept.
BLOCK_ARRAYS: Final = {
    "rollout_log_probs": "f2",
    "log_probs": "f2",
    "entropies": "f2",
    "advantages": "f4",
    "mask": "u1",
    "clipped_passes": "u1",
}


def rows_of_batch(told: Told, kept: int, blocks: int, block_bytes: int) -> list[Row]:
    """The rows of a told batch.

    Args:
        told: What was told.
        kept: Answers that get a row, at most.
        blocks: Answers whose tokens are kept, at most; each of them gets a row too.
        block_bytes: What these may take together.

    Returns:
        Its fates, what each replica did, whether what is trained was sampled, whether what isn't trained moves a
        baseline, then the answers, then the blocks.
    """
    if not told.answers:
        return []
    # NaN and infinities are what is looked for: where warnings are errors they would take the batch's rows with them.
    with np.errstate(invalid="ignore", over="ignore"):
        rows = list(_rows(Batch(told), kept, min(blocks, kept), block_bytes))
    for row in rows:
        row.step = told.step
    return rows


def _rows(batch: Batch, kept: int, blocks: int, block_bytes: int) -> Iterator[Row]:
    no_advantage, step = batch.counts[:, FATES.index("no_advantage")], batch.told.step
    seen = Seen(batch.nan, batch.worst(), batch.layout.lengths, no_advantage)
    with_block = chosen(seen, blocks, step)  # drawn from all, and not from those with a row: means are weighted by that
    answers = chosen(seen, kept, step, with_block)
    few = list(_blocks(batch, with_block, block_bytes))
    if (later := batch.told.following) is not None:
        named = (batch.told.batch_id, batch.told.source, step)
        later.begin(AsEnded(*named, batch.given, batch.counts, list(answers), batch.equal))
    yield from _fates(batch, len(answers), len(few))
    yield from _rollouts(batch)
    yield from _identity(batch)
    yield from _baselines(batch)
    yield from _samples(batch, answers)
    yield from few


def _rollouts(batch: Batch) -> Iterator[Rollout]:
    told, of, difference = batch.told, batch.layout.row_of, batch.difference
    inside = None if difference is None else batch.counted & np.isfinite(difference)
    answers = Answers(
        told.replicas,
        told.times,
        batch.number("weight_versions"),
        told.trainer_version,
        None if inside is None else of[inside],
        None if inside is None or difference is None else difference[inside],
        batch.layout.lengths,
        batch.number("rewards"),
    )
    return rollouts(answers, told.answers, told.batch_id, told.source)


def _identity(batch: Batch) -> Iterator[TokenIdentity]:
    """Whether the tokens that are trained are the sampled ones, where both were told; of what is dropped none are."""
    told, loss = batch.told, batch.loss
    ids, sampled = batch.layout.flat(told.arrays["response_ids"].rows()), told.arrays["sampled_ids"].rows()
    if ids is None or sampled is None or len(sampled) != told.answers or loss is None:
        return
    places = [at for at, word in enumerate(words_of(told)) if not word]
    found = compared_answers(batch.layout, ids, loss, sampled, places)
    uids = None if told.uids is None else [told.uids[at] for at in places]
    yield identity(found, places, told.batch_id, told.source, uids, keeps_ids=told.keeps_ids)


def _baselines(batch: Batch) -> Iterator[GroupBaseline]:
    """Whether what failed or isn't trained moves the baseline of its group."""
    told, rewards = batch.told, batch.number("rewards")
    if told.groups is None or rewards is None:
        return
    errors, inside = told.arrays["has_error"].array(), batch.loss_tokens
    failed = np.array([word == "failed" for word in words_of(told)], dtype=bool)
    trained = np.array([not word for word in words_of(told)], dtype=bool)
    if errors is not None and errors.shape == failed.shape:
        failed |= errors
    if inside is not None:
        trained &= inside > 0
    if trained.all() and not failed.any():  # mostly: there is nothing to say
        return
    advantages = batch.advantage
    if advantages is None:
        return
    known = Known(told.groups, rewards, advantages, failed, trained)
    row = baselines(known, told.batch_id, told.source)
    if row is not None:
        yield row


def _fates(batch: Batch, kept: int, blocks: int) -> Iterator[TokenFate]:
    by_fate, equal = batch.counts.sum(0), batch.equal
    prompts = batch.number("prompt_tokens")
    for code, fate in enumerate(FATES):
        tokens = int(by_fate[code])
        if tokens or fate == "carried":
            yield TokenFate(
                batch_id=batch.told.batch_id,
                source=batch.told.source,
                fate=fate,
                tokens=tokens,
                samples=int((batch.counts[:, code] > 0).sum()),
                batch_tokens=batch.layout.tokens,
                batch_prompt_tokens=None if prompts is None or not np.isfinite(prompts).all() else int(prompts.sum()),
                batch_samples=batch.told.answers,
                complete=not by_fate[[FATES.index(one) for one in NOT_KNOWN]].any(),
                reach_known=not by_fate[FATES.index("unknown")],
                kept_samples=kept,
                kept_blocks=blocks,
                equal_tokens=None if equal is None else int(batch.counts[equal, code].sum()),
                loss_terms=batch.told.loss_terms,
            )


def _samples(batch: Batch, kept: dict[int, str]) -> list[Sample]:
    told, places = batch.told, list(kept)
    at = np.array(places, np.int64)
    columns: dict[str, list[Any]] = {"row": places, "response_tokens": batch.layout.lengths[at].tolist()}
    wholes = {name: batch.number(told_as) for name, told_as in _WHOLE.items()}
    columns |= {name: _wholes(values, at) for name, values in wholes.items() if values is not None}
    columns |= _numbers(batch, at)
    by_fate = batch.counts[at]
    columns["dropped_tokens"] = by_fate[:, : len(OF_ANSWERS)].sum(1).tolist()
    columns |= {f"{fate}_tokens": by_fate[:, FATES.index(fate)].tolist() for fate in FATES[len(OF_ANSWERS) :]}
    columns["nan_count"] = batch.nan[at].tolist()
    if batch.loss_tokens is not None:
        columns["loss_tokens"] = batch.loss_tokens[at].tolist()
        columns["masked"] = (batch.loss_tokens[at] == 0).tolist()
    if batch.passes.told:
        columns["passes"] = batch.passes.of_row[at].tolist()
    if told.times is not None:
        columns |= told.times.own(at)
    for name in ("truncated", "has_error"):
        flags = told.arrays[name].array()
        if flags is not None:
            columns[name] = flags[at].tolist()
    columns |= _in_words(batch, places)
    if "ended" in columns and "truncated" not in columns:
        columns["truncated"] = [one == "length" if one else None for one in columns["ended"]]
    whole = columns.get("masked", [None] * len(places))
    columns["trainable"] = [
        False if dropped else None if masked is None else not masked
        for dropped, masked in zip(columns["dropped"], whole, strict=True)
    ]
    columns["chosen_by"] = list(kept.values())
    columns = {name: values for name, values in columns.items() if name not in _EMPTY or any(values)}
    return _filled(Sample(batch_id=told.batch_id, step=told.step, row=0, response_tokens=0), columns, len(places))


def _filled(like: Sample, columns: dict[str, list[Any]], count: int) -> list[Sample]:
    """Rows like one, with columns of their own: column by column, which takes a third of making each with its values.

    Args:
        like: Its lists are those of all rows, so that they are to be empty, or columns.
        columns: Values by field, ``count`` each.
        count: How many rows.
    """
    rows = [copy(like) for _ in range(count)]
    for name, values in columns.items():
        deque(map(setattr, rows, repeat(name), values), maxlen=0)
    return rows


#: Columns that needn't be told where all of them are empty or 0, as they are where nobody tells them.
_EMPTY: Final = {one.name for one in msgspec.structs.fields(Sample) if one.default in (0, "")}


#: Whole numbers of a sample, and what ``probe.samples`` calls them.
_WHOLE: Final = {
    "prompt_tokens": "prompt_tokens",
    "turns": "turns",
    "tools": "tools",
    "weight_version": "weight_versions",
}


def _numbers(batch: Batch, at: Array) -> dict[str, list[Any]]:
    """Columns of rewards, and of what is told by token."""
    rewards = batch.number("rewards")
    found: dict[str, list[Any]] = {} if rewards is None else {"reward": rewards[at].tolist()}
    for name, stats, kinds in (
        ("advantage", batch.advantages, ("mean", "smallest", "largest")),
        ("rollout_log_prob", batch.stats(batch.flat["rollout_log_probs"]), ("mean", "smallest")),
        ("log_prob", batch.stats(batch.flat["log_probs"]), ("mean", "smallest")),
        ("entropy", batch.stats(batch.flat["entropies"]), ("mean",)),
        ("difference", batch.stats(batch.difference), ("mean",)),
    ):
        if stats is not None:
            found |= {f"{name}_{kind}": _floats(getattr(stats, kind)[at]) for kind in kinds}
    largest = batch.largest_difference
    if largest is not None:
        found["difference_largest"] = _floats(largest[0][at])
        found["difference_at"] = [None if one < 0 else one for one in largest[1][at].tolist()]
    return found


def _in_words(batch: Batch, places: list[int]) -> dict[str, list[Any]]:
    """Columns of what is said of answers in words, and of the micro-batches that trained them."""
    told, untrained = batch.told, batch.passes.untrained.tolist()
    names = {"uid": told.uids, "group": told.groups, "replica": told.replicas, "ended": told.ended}
    lists: dict[str, Sequence[Any]] = {name: values for name, values in names.items() if values is not None}
    columns = {name: [values[at] for at in places] for name, values in lists.items()}
    columns["micro_batches"] = batch.passes.micro_batches(places)
    words = words_of(told)
    columns["dropped"] = [words[at] or ("untrained" if untrained[at] else "") for at in places]
    for name, told_as in (("prompt_text", "prompts"), ("response_text", "responses")):
        if told_as in told.texts:
            columns[name] = [str(told.texts[told_as][at]) for at in places]
    if told.keeps_ids:
        for name in ("prompt_ids", "response_ids"):
            rows = told.arrays[name].rows()
            if rows is not None:
                columns[name] = [[int(one) for one in rows[at]] for at in places]
    return columns


def _of(batch: Batch, at: int) -> slice:
    begin = int(batch.layout.begins[at])
    return slice(begin, begin + int(batch.layout.lengths[at]))


def _floats(values: Array) -> list[float | None]:
    """NaN here means that there is none."""
    found: list[float | None] = values.tolist()
    for at in np.flatnonzero(np.isnan(values)).tolist():
        found[at] = None
    return found


def _wholes(values: Array, at: Array) -> list[int | None]:
    return [int(x) if math.isfinite(x) else None for x in values[at].tolist()]


def _blocks(batch: Batch, kept: dict[int, str], most_bytes: int) -> Iterator[TokenBlock]:
    """Arrays of the chosen few, as long as there is room: drawn ones take what those that were chosen by what they are
    leave.
    """
    held = {name: values for name, values in batch.flat.items() if values is not None}
    if not held:
        return
    if batch.loss is not None:
        held["mask"] = batch.loss
    if batch.passes.told:
        held["clipped_passes"] = np.minimum(batch.passes.clipped, 255)
    names = [name for name in BLOCK_ARRAYS if name in held]
    room, found = most_bytes, []
    for at, reason in sorted(kept.items(), key=lambda one: one[1] == "random"):
        inside = _of(batch, at)
        # What is too large for half precision becomes an infinity.
        raw = b"".join(held[name][inside].astype("<" + BLOCK_ARRAYS[name]).tobytes() for name in names)
        data = base64.b64encode(zlib.compress(raw, 6)).decode("ascii")
        if len(data) > room:
            continue
        room -= len(data)
        block = TokenBlock(
            batch_id=batch.told.batch_id,
            row=at,
            tokens=int(batch.layout.lengths[at]),
            arrays=names,
            dtypes=[BLOCK_ARRAYS[name] for name in names],
            data=data,
            chosen_by=reason,
        )
        found.append(block)
    yield from sorted(found, key=lambda one: one.row)
