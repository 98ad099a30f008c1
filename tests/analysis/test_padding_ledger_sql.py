"""The ledger's SQL takes each batch's widest field in one pass; here it is beside the same rule in plain loops."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe.analysis import padding_tax
from probe.records import Padding
from tests.sample_run import open_run

PLANNED = "seqlen_balancing.partition"
SOURCES = (PLANNED, "packing.packed", "codec.packed", "data_proto.from_dict", "it's")
FIELDS = ("input_ids", "attention_mask", "zzz", "Ä'")

batches = st.builds(
    dict,
    rank=st.integers(0, 1),
    step=st.none() | st.integers(0, 2),
    source=st.sampled_from(SOURCES),
    batch_id=st.integers(0, 2),
    field=st.sampled_from(FIELDS),
    cause=st.sampled_from(("longest_row", "rounding", "none")),
    tokens=st.integers(0, 9),
    rectangle_tokens=st.sampled_from((0, 1, 7, 8, 2**40)),
    valid_tokens=st.integers(0, 5),
)


def rows_of(found):
    return [Padding(**one, bytes=one["tokens"] * 8) for one in found]


def widest_of(rows):
    """The rows of each batch's widest field, by batch."""
    width = defaultdict(int)
    for row in rows:
        key = (row.rank, row.step, row.source, row.batch_id, row.field)
        width[key] = max(width[key], row.rectangle_tokens)
    best = {}
    for key in sorted(width, key=lambda key: (-width[key], key[4] != "input_ids", key[4].encode())):
        best.setdefault(key[:4], key[4])
    kept = defaultdict(list)
    for row in rows:
        key = (row.rank, row.step, row.source, row.batch_id)
        if best[key] == row.field:
            kept[key].append(row)
    return kept


def by_step(rows):
    """What :func:`probe.analysis.padding_tax.by_step` says."""
    planned = {PLANNED, "packing.packed"}
    cut = {(row.rank, row.step) for row in rows if row.source in planned}
    tokens, size, valid = defaultdict(int), defaultdict(int), defaultdict(int)
    for (rank, step, source, _), found in widest_of(rows).items():
        if source in planned or ((rank, step) not in cut and source != "codec.packed"):
            size[step] += max(row.rectangle_tokens for row in found)
            valid[step] += max(row.valid_tokens for row in found)
            for row in found:
                tokens[step, row.cause] += row.tokens
    return {(step, cause): (n, size[step], valid[step]) for (step, cause), n in tokens.items()}


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(batches, min_size=1, max_size=30), st.booleans())
def test_the_sql_says_what_the_loops_say(tmp_path_factory, found, usual):
    if usual:  # one look is enough where "input_ids" is the widest field of each batch
        found = [{**one, "field": "input_ids"} for one in found]
    rows = rows_of(found)
    written = {rank: [row for row in rows if row.rank == rank] for rank in (0, 1)}
    with open_run(tmp_path_factory.mktemp("run"), written) as run:
        frame = padding_tax.by_step(run)
        columns = ("tokens", "rectangle_tokens", "valid_tokens")
        steps = [
            None if step is None else int(step)
            for step in frame["step"].astype(object).where(frame["step"].notna(), None)
        ]
        told = dict(
            zip(
                zip(steps, frame["cause"], strict=True),
                frame[list(columns)].itertuples(index=False, name=None),
                strict=True,
            )
        )
        assert told == by_step(rows)
