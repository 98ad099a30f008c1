"""verl's partitions worked out from its rule, beside the installed verl's own: the same parts in the same order."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

if importlib.util.find_spec("verl") is None:
    pytest.skip("needs verl, which lives in its own environment", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what verl and its dependencies warn of when imported is theirs to mend
    import verl.utils.seqlen_balancing as theirs

from probe.core.balancing.replay import Cut, replay
from probe.core.balancing.verl_rule import verl_partition

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]


def drawn(rng, n, top):
    """Lengths of which a quarter of the batches have only one, and a quarter a few: ties are what is hard."""
    kind = rng.choice(["any", "any", "few", "one"])
    values = [rng.randint(1, top) for _ in range({"any": n, "few": 6, "one": 1}[kind])]
    return values if kind == "any" else [rng.choice(values) for _ in range(n)]


def batch_of(lengths, width):
    rows = torch.tensor(lengths)
    if width is None:
        offsets = torch.tensor([0, *itertools.accumulate(lengths)])
        ids = torch.nested.nested_tensor_from_jagged(torch.zeros(sum(lengths), dtype=torch.long), offsets)
        return TensorDict({"input_ids": ids}, batch_size=[len(lengths)])
    mask = (torch.arange(width) < rows[:, None]).long()
    return TensorDict({"input_ids": mask, "attention_mask": mask}, batch_size=[len(lengths)])


def outcome(call):
    """What a call gives; None where it refuses."""
    try:
        return call()
    except (AssertionError, ValueError):
        return None


@pytest.mark.parametrize("seed", range(4))
def test_1_micro_batches_are_verls_own_order_included_on_10000_batches(seed, monkeypatch):
    # Which rows is the question: copying them is most of the time, and nobody looks at the copies.
    monkeypatch.setattr(theirs.tu, "index_select_tensor_dict", lambda batch, rows: None)
    rng = random.Random(seed)
    compared = 0
    for number in range(2500):
        size = rng.choice([1, 1, 2, 4])
        most = 96 if number % 40 == 0 else 32 if number % 5 == 0 else 12  # verl's own loop takes the square of them
        lengths = drawn(rng, size * rng.randint(1, most // size), rng.choice([6, 100, 4000]))
        width = rng.choice([None, max(lengths), max(lengths) + 5])
        cap = size * rng.randint(max(lengths), max(lengths) * rng.choice([2, 4, 12]))
        options = {
            "num_batches_divided_by": rng.choice([None, None, 2, 3]),
            "min_num_micro_batch": rng.choice([None, None, 3, 7]),
            "use_dynamic_bsz_balance": rng.random() < 0.7,
            "force_group_size": size,
        }
        recorded = Cut(
            packer="verl.rearrange_micro_batches",
            lengths=lengths,
            cap_tokens=cap,
            width_tokens=width,
            minimum_count=options["min_num_micro_batch"],
            divisor=options["num_batches_divided_by"],
            ordered=options["use_dynamic_bsz_balance"],
            group_size=size,
        )
        batch = batch_of(lengths, width)
        own = outcome(
            lambda batch=batch, cap=cap, options=options: theirs.rearrange_micro_batches(batch, cap, **options)
        )
        ours = outcome(lambda recorded=recorded: replay(recorded))
        assert ours == (own and [[int(row) for row in part] for part in own[1]]), recorded
        compared += own is not None
    assert compared > 1500


def problem(rng, large, equal_size):
    """Weights and a number of parts: of up to 240 rows, else of up to 64, of which a part may have only one."""
    if large:
        k = rng.randint(1, 12)
        size = k * rng.randint(1, 20)
    else:  # verl's own loop takes the square of the rows
        size = rng.randint(1, 64)
        k = rng.randint(1, min(size, 12) if rng.random() < 0.9 else size)
        size -= size % k if equal_size else 0
    return drawn(rng, size, rng.choice([5, 100, 10**7])), k


@pytest.mark.parametrize("equal_size", [True, False])
def test_5_partitions_are_verls_own_order_included_on_10000_batches(equal_size):
    rng = random.Random(0)
    compared = tied = 0
    for number in range(10_000):
        weights, k = problem(rng, number % 50 == 0, equal_size)
        own = outcome(lambda w=weights, k=k: theirs.get_seqlen_balanced_partitions(w, k, equal_size))
        assert outcome(lambda w=weights, k=k: verl_partition(w, k, equal_size)) == own, (weights, k)
        compared += own is not None
        tied += 2 * len(set(weights)) <= len(weights)
    assert compared > 9_900  # verl refuses those of whose parts one is empty
    assert tied > 5_000


# ------------------------------------------------------------------------------ other releases, and several ranks


SCRIPT = Path(__file__).with_name("verl_cuts.py")
ROOT = SCRIPT.parents[2]


def cuts_of(batches, ranks=1, older=None):
    """What ``verl_cuts.py`` prints, of each rank."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    path = [str(ROOT)] if older is None else [str(older), str(ROOT)]
    base = os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "0", str(batches)],
            env=base | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    ended = [one.communicate(timeout=600) for one in started]
    assert all(one.returncode == 0 for one in started), [stderr[-3000:] for _, stderr in ended]
    return [json.loads(stdout.splitlines()[-1]) for stdout, _ in ended]


def test_1_the_loose_cap_of_an_older_verl_is_its_own_on_10000_batches():
    (told,) = cuts_of(10_000, older=Path(sys.prefix) / "verl-0.7.1")
    assert told["verl"] == "0.7.1"
    assert told["same"] == 10_000, told["different"]
    assert told["above"] > 500  # which is what loose means
    assert told["refused"] < 1000


def test_1_ranks_that_agree_on_a_count_are_replayed_from_all_their_calls():
    for told in cuts_of(1000, ranks=2):
        assert told["same"] == 1000, told["different"]
        assert told["above"] == 0
        assert told["refused"] < 300
