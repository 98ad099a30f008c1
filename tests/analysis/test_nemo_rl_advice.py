"""16, items 1 and 4 for NeMo-RL: rows that were dealt by its rules, as probe carries them out, replayed and advised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import probe
from probe.analysis.advice import advise
from probe.analysis.advice.keys import key_of
from probe.analysis.what_if import answering, replayed_dealings, what_if
from probe.cli import main
from probe.errors import InputError
from probe.moments import tell_dealt
from probe.records import GIB
from probe.testing import FakeDevice
from tests.analysis.planted_batches import MIB

CAP = 4096
COLUMNS = {"input_key": "input_ids", "input_lengths_key": "input_lengths", "max_tokens_per_microbatch": CAP}
DYNAMIC = {"dynamic_batching_args": {**COLUMNS, "sequence_length_round": 64}}
YAML = """\
policy:  # NeMo-RL's
  dynamic_batching:
    enabled: true
    train_mb_tokens: 4096
  sequence_packing:
    enabled: false
    train_mb_tokens: 4096
    algorithm: "modified_first_fit_decreasing"
cluster: {num_nodes: 1}
"""


def packing(algorithm: str, **more: Any) -> dict[str, Any]:
    return {"sequence_packing_args": {**COLUMNS, "algorithm": algorithm, "sequence_length_pad_multiple": 8, **more}}


def drawn(random: np.random.Generator) -> list[int]:
    return [300] * 20 + random.lognormal(6, 0.7, 44).clip(20, 2000).astype(int).tolist()  # many are equal


def trained(path: Path, arguments: dict[str, Any], *, steps: int = 3, dynamic: bool = True, **more: Any) -> Any:
    """A run whose driver deals as NeMo-RL does; rank 0 then computes its micro-batches, a MiB a slot. ``lengths`` are
    those of each step, ``total`` bytes the device has.
    """
    random, device = np.random.default_rng(0), FakeDevice(total_bytes=more.get("total", 80 * GIB))
    policy = {
        "dynamic_batching": {"enabled": dynamic, "train_mb_tokens": CAP},
        "sequence_packing": {"enabled": not dynamic, "train_mb_tokens": CAP, "algorithm": "concatenative"},
    }
    config = {"policy": policy, "cluster": {}}
    with probe.start("nemo", "own", run_dir=path, config=config, device=device) as session:
        for step in range(steps):
            lengths = torch.tensor(more.get("lengths") or drawn(random))
            batch = probe.BatchedDataDict({"input_ids": torch.zeros(64, 3000), "input_lengths": lengths})
            with session.step(step), probe.phase("policy_training"):
                (own, *_), _ = batch.shard_by_batch_size(4, batch_size=32, **arguments)
                for number in range(2):
                    computed(own.get_batch(number), device)
    return probe.open(path)


def computed(own: Any, device: FakeDevice) -> None:
    spans, widths = own.micro_batch_indices[0], own.micro_batch_lengths[0]
    for at, ((begin, end), width) in enumerate(zip(spans, widths, strict=True)):
        lengths = own["input_lengths"][begin:end].tolist()
        with probe.micro_batch(at, lengths=lengths, width=width, cap=CAP):
            device.allocate(len(lengths) * width * MIB).free()


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with trained(tmp_path_factory.mktemp("dynamic") / "run", DYNAMIC, steps=12, total=12 * GIB) as run:
        yield run


RULES = [
    packing("concatenative"),
    packing("first_fit_decreasing", largest_first=True),
    packing("modified_first_fit_decreasing", largest_first=True),
]


@pytest.mark.parametrize("arguments", [DYNAMIC, *RULES])
def test_1_the_recorded_configuration_gives_the_recorded_rows_and_micro_batches(tmp_path: Path, arguments: Any) -> None:
    with trained(tmp_path / "run", arguments) as run:
        assert replayed_dealings(run)["same"].tolist() == [True] * 3
        answer = what_if(run)
        assert answer.steps == 3
        assert (answer.frame["before"] - answer.frame["after"]).abs().max() == 0
        (micro,) = answer.frame.query("number == 'micro_batches'")["before"]
        told = (
            "source in ('packing.packed', 'batched_data_dict.shard_by_batch_size')"  # of all shards, as they were cut
        )
        planned = run.sql(
            f"select step, count(*) as n, max(tokens) as most from micro_batches where {told} group by step"
        )
        assert 4 * micro == planned["n"].mean()
        assert answer.number("largest_tokens")[0] == planned["most"].max()
        if arguments is DYNAMIC:
            padded = f"select sum(sequences * width_tokens - tokens) / 3 as n from micro_batches where {told}"
            assert answer.number("padding_tokens")[0] == pytest.approx(run.sql(padded)["n"][0])


def test_4_packing_in_the_place_of_dynamic_batching_has_the_gain_of_its_replay_and_nemos_keys(dynamic: Any) -> None:
    found = advise(dynamic)
    packed, cap = found.suggestions
    assert (packed.kind, cap.kind) == ("packing", "cap")
    assert packed.values == {
        "policy.dynamic_batching.enabled": False,
        "policy.sequence_packing.enabled": True,
        "policy.sequence_packing.algorithm": "modified_first_fit_decreasing",
    }
    again = what_if(dynamic, packer="packing.modified_first_fit_decreasing")
    before, after = again.number("padding_tokens")
    assert after < 0.3 * before
    for name in ("padding_tokens", "micro_batches"):
        assert packed.what_if.number(name) == again.number(name)
    micro = again.number("micro_batches")
    assert packed.gains[1] == f"micro-batches of the rank with the most: {micro[0]:.4g} → {micro[1]:.4g} a step"
    assert packed.gain_share is not None
    assert packed.gain_share > 0.01
    assert packed.confidence == "low"  # which isn't compared with the package


def test_4_the_cap_of_dynamic_batching_is_raised_by_what_memory_allows(dynamic: Any) -> None:
    found = advise(dynamic)
    (cap,) = [one for one in found.suggestions if one.kind == "cap"]
    assert cap.before == {"policy.dynamic_batching.train_mb_tokens": CAP}
    (value,) = cap.values.values()
    assert CAP < value <= 2 * CAP  # nothing larger was seen
    again = what_if(dynamic, cap_tokens=value)
    assert again.number("micro_batches") == cap.what_if.number("micro_batches")
    assert again.number("micro_batches")[1] < again.number("micro_batches")[0]
    # Of dynamic batching nothing is set where packing takes its place.
    assert "policy.dynamic_batching.train_mb_tokens" not in found.values


def test_4_another_rule_for_bins_is_advised_where_it_needs_fewer(tmp_path: Path) -> None:
    key, best = "policy.sequence_packing.algorithm", "modified_first_fit_decreasing"
    alternating = [3000, 3000, 900, 900] * 16  # neighbours don't fit, others do
    with trained(tmp_path / "a", packing("concatenative"), dynamic=False, lengths=alternating) as run:
        assert key_of(run, "cap_tokens", "policy_training") == "policy.sequence_packing.train_mb_tokens"
        assert key_of(run, "cap_tokens", "policy_and_reference_logprobs") == "policy.sequence_packing.logprob_mb_tokens"
        (one,) = [one for one in advise(run).suggestions if one.kind == "algorithm"]
        assert (one.values, one.before) == ({key: best}, {key: "concatenative"})
        assert one.what_if.number("micro_batches") == what_if(run, packer=f"packing.{best}").number("micro_batches")
        before, after = one.what_if.number("micro_batches")
        assert after < 0.9 * before
    for name, told in (("b", packing("first_fit_decreasing")), ("c", packing(best))):  # as many bins
        with trained(tmp_path / name, told, dynamic=False) as run:
            assert [one.kind for one in advise(run).suggestions if one.kind == "algorithm"] == []


def test_4_the_command_prints_a_patch_of_nemos_yaml(dynamic: Any, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "grpo.yaml"
    file.write_text(YAML)
    assert main(["advise", str(dynamic.path), "--config", str(file)]) == 0
    said = capsys.readouterr()
    assert "policy.sequence_packing.enabled: false → true" in said.err
    changed = [line for line in said.out.splitlines() if line.startswith(("+ ", "- "))]
    assert changed == ["-    enabled: true", "+    enabled: false", "-    enabled: false", "+    enabled: true"]


def test_1_a_driver_that_tells_no_steps_and_no_order_is_replayed_call_by_call(tmp_path: Path, monkeypatch: Any) -> None:
    random = np.random.default_rng(1)
    arguments = {"shards": 2, "batch_size": None, "max_tokens_per_microbatch": 800, "sequence_length_round": 1}
    with probe.start("nemo", "driver", run_dir=tmp_path / "run", config={"policy": {}, "cluster": {}}):
        for _ in range(3):
            lengths = random.integers(10, 400, 16).tolist()
            order = sorted(range(16), key=lengths.__getitem__)
            told = [lengths[row] for rank in (0, 1) for row in order[rank::2]]  # one shard after the other
            parts = [list(range(8)), list(range(8, 16))]
            with probe.phase("policy_training"):
                tell_dealt(
                    lengths=told,
                    partitions=parts,
                    source="theirs",
                    packer="nemo_rl.dynamic_batching",
                    arguments=arguments,
                )
        with probe.phase("policy_training"):  # whoever got these isn't whom the rule gives them to
            parts = [list(range(0, 16, 2)), list(range(1, 16, 2))]
            tell_dealt(
                lengths=told, partitions=parts, source="theirs", packer="nemo_rl.dynamic_batching", arguments=arguments
            )
    with probe.open(tmp_path / "run") as run:
        answer = what_if(run, cap_tokens=1600)
        assert answer.steps == 3
        assert answer.number("micro_batches")[1] < answer.number("micro_batches")[0]
        assert replayed_dealings(run)["same"].tolist() == [True, True, True, False]
        with pytest.raises(InputError, match=r"balance: got .*, expected None: NeMo-RL's own rule deals the rows"):
            what_if(run, balance="batch")
        assert what_if(run, dp_size=4).number("micro_batches")[1] > 0
        assert what_if(run, cap_tokens=1600, steps=[2]).steps == 1
        monkeypatch.setattr(answering, "STEPS", 3)  # of the last three calls one isn't the rule's
        assert what_if(run, cap_tokens=1600).steps == 2
