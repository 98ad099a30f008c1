"""Which answers TRL trains in a micro-batch, and which of their tokens its loss holds back: as TRL itself has them."""

from __future__ import annotations

import collections
import importlib.util
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

import probe
from probe.adapters import trl_passes
from probe.analysis.step_samples import StepSamples
from tests.frameworks.trl_trainings import trained

pytestmark = [
    pytest.mark.framework,
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL, which has its own environment"),
    pytest.mark.filterwarnings("ignore"),  # what they warn of is theirs to mend
    pytest.mark.usefixtures("taken_off"),
]

VARIANTS = ["grpo", "rloo", "several iterations", "steps per generation", "two generations a step", "answers evaluated"]


class Seen(NamedTuple):
    """A batch as the trainer itself has it: generated, or received by a loss as the micro-batch ``at`` of its step."""

    step: int
    at: int | None
    ids: list[list[int]]
    columns: set[str]
    mask: torch.Tensor


def noting(seen: list[Seen]) -> Any:
    """Makes a trainer's class into one that notes what it generates and what its losses receive, in their order."""

    def base(kind: Any) -> Any:
        class Noted(kind):  # type: ignore[misc]
            def note(self, batch: dict[str, Any], at: int | None) -> None:
                both = zip(batch["prompt_ids"].tolist(), batch["completion_ids"].tolist(), strict=True)
                ids = [asked + given for asked, given in both]
                seen.append(Seen(self.state.global_step + 1, at, ids, set(batch), batch["completion_mask"]))

            def _generate_and_score_completions(self, inputs: Any) -> Any:
                found = super()._generate_and_score_completions(inputs)
                if self.model.training:
                    self.note(found, None)
                return found

            def _compute_loss(self, model: Any, inputs: Any) -> Any:
                if self.model.training:
                    step = self.state.global_step + 1
                    self.note(inputs, sum(one.at is not None and one.step == step for one in seen))
                return super()._compute_loss(model, inputs)

        Noted.__name__ = kind.__name__
        return Noted

    return base


@pytest.mark.parametrize("name", VARIANTS)
def test_15_2_micro_batches_of_an_answer_are_those_whose_loss_received_it(name, tmp_path):
    seen: list[Seen] = []
    probe.attach("trl")
    with probe.start("trl", run_dir=tmp_path / "run"):
        trained(name, noting(seen))
    with probe.open(tmp_path / "run") as run:
        assert run.incidents.empty
        batches = [rows.sort_values("row") for _, rows in run.samples.groupby("batch_id")]
    assert len({frozenset(one.columns) for one in seen}) == 1  # the trainer's own columns, and no other
    assert not trl_passes._passes
    begins = [at for at, one in enumerate(seen) if one.at is None]
    assert len(batches) == len(begins) > 0
    for rows, begin, end in zip(batches, begins, [*begins[1:], len(seen)], strict=True):
        told = collections.defaultdict(list)
        for answer, numbers in zip(seen[begin].ids, rows["micro_batches"], strict=True):
            for number in numbers:
                told[number].append(answer)
        received = {one.at: one.ids for one in seen[begin + 1 : end] if one.step == seen[begin].step}
        assert {at: sorted(ids) for at, ids in told.items()} == {at: sorted(ids) for at, ids in received.items()}
        assert rows["passes"].tolist() == [len(one) for one in rows["micro_batches"]]
        assert (rows["dropped"] == "").all()  # those of a later step aren't


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("several iterations", {"epsilon": 1e-3}),
        ("steps per generation", {"epsilon": 1e-3}),
        ("steps per generation", {"epsilon": 1e-3, "num_iterations": 2, "max_steps": 5}),  # ends within an iteration
        ("rloo", {"epsilon": 1e-3, "num_iterations": 2, "max_steps": 4}),
    ],
)
def test_15_3_passes_of_later_steps_are_credited_to_the_batch_that_is_trained(name, changes, tmp_path):
    """Each loss of TRL's own, whenever it comes: the fates of all tokens follow from what it received."""
    seen: list[Seen] = []
    heard = Hear()
    probe.attach("trl")
    with probe.start("trl", run_dir=tmp_path / "run"), probe.subscribe(heard, "samples.trained"):
        trainer = trained(name, noting(seen), **changes)
    begins = [at for at, one in enumerate(seen) if one.at is None]
    clipped = iter(heard.clipped)
    with probe.open(tmp_path / "run") as run:
        assert run.incidents.empty
        fates, samples, later = run.token_fates, run.samples, run.later_passes
        answers = {step: StepSamples.read(run, step).answers for step in samples["step"].unique().tolist()}
        ledger = run.ledger()
    expected = collections.Counter()
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(seen)], strict=True)):
        batch, losses = samples[samples["batch_id"] == number].sort_values("row"), seen[begin + 1 : end]
        carried: dict[str, Any] = {}
        held: dict[str, Any] = {}
        passes = collections.Counter(str(ids) for one in losses for ids in one.ids)
        for one in losses:
            flags = next(clipped)
            for ids, mask, flag in zip(one.ids, one.mask.bool(), flags, strict=True):
                free = ~flag.expand_as(mask) & mask
                carried[str(ids)] = carried.get(str(ids), torch.zeros_like(free)) | free
                held[str(ids)] = mask
        rows = fates[fates["batch_id"] == number]
        assert rows.groupby("trained_step")["tokens"].sum().eq(0).all()
        assert set(rows["step"]) == {seen[begin].step}
        tokens = rows.groupby("fate")["tokens"].sum()
        assert tokens.sum() == rows["batch_tokens"].max() == batch["response_tokens"].sum()
        told = collections.Counter()
        for row, ids in zip(batch.itertuples(), seen[begin].ids, strict=True):
            free = int(carried[str(ids)].sum()) if str(ids) in carried else 0
            whole = passes[str(ids)] >= trainer.num_iterations * seen[begin].ids.count(ids)
            nothing = row.advantage_mean == 0
            left = row.response_tokens - free
            own = (
                {"no_advantage": row.response_tokens}
                if nothing
                else {"carried": free, "clipped" if whole else "clip_unknown": left}
            )
            told.update(own)
            (answer,) = [one for one in answers[row.step] if (one["batch_id"], one["row"]) == (number, row.row)]
            assert {fate: answer[f"{fate}_tokens"] for fate in own} == own
        assert {fate: many for fate, many in tokens.items() if many} == {
            one: many for one, many in told.items() if many
        }
        expected.update(told)
        of_batch = later[later["batch_id"] == number]
        in_all = sum(answer["passes"] for answer in answers[batch["step"].iloc[0]] if answer["batch_id"] == number)
        assert in_all == sum(passes.values()) == batch["passes"].sum() + sum(sum(one) for one in of_batch["passes"])
        assert set(of_batch["trained_step"]) == {one.step for one in losses} - {seen[begin].step}
    assert {line.fate: line.tokens for line in ledger.fates} == {
        one: many for one, many in expected.items() if many or one == "carried"
    }
    assert (expected["clipped"] > 0) == (name == "steps per generation")  # else each token carried in its first pass
    assert len(later) > 0


class Hear(probe.Listener):
    """Notes which tokens were told to be held back, of each micro-batch."""

    def __init__(self) -> None:
        self.clipped: list[torch.Tensor] = []

    def fire(self, event: Any) -> None:
        self.clipped.append(event.values["clipped"].clone())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("rloo", {"num_iterations": 2, "max_steps": 4}),
        ("several iterations", {}),
        ("steps per generation", {}),
        ("several iterations", {"importance_sampling_level": "sequence"}),
    ],
)
def test_15_3_tokens_that_the_loss_holds_back_are_those_that_trl_counts(name, changes, tmp_path):
    seen: list[Seen] = []
    heard = Hear()
    probe.attach("trl")
    with probe.start("trl", run_dir=tmp_path / "run"), probe.subscribe(heard, "samples.trained"):
        made = trained(name, noting(seen), epsilon=1e-3, **changes)
    losses = [one for one in seen if one.at is not None]
    counted = collections.defaultdict(list)
    for one, clipped in zip(losses, heard.clipped, strict=True):
        by_answer = clipped.dim() == 1
        held = clipped.float().mean() if by_answer else (clipped * one.mask).sum() / one.mask.sum()
        counted[one.step].append(held.item())
    logged = {one["step"]: one["clip_ratio/region_mean"] for one in made.state.log_history if "grad_norm" in one}
    assert max(logged.values()) > 0
    assert {step: sum(each) / len(each) for step, each in counted.items()} == pytest.approx(logged, abs=1e-6)


def test_15_3_a_second_bound_of_grpo_holds_tokens_back_and_other_reasons_are_not_known():
    """Where the gradient of TRL's own two terms is 0, by autograd."""
    log_probs = torch.tensor([[-2.0, -0.3, 0.1, 0.3, 2.0]], dtype=torch.float64).repeat(2, 1)
    inputs = {"advantages": torch.tensor([1.0, -1.0]), "old_per_token_logps": torch.zeros(2, 5)}
    trainer = SimpleNamespace(epsilon_low=0.2, epsilon_high=0.2, loss_type="grpo", importance_sampling_level="token")
    for most in (None, 1.3, 4.0):
        trainer.args = SimpleNamespace(delta=most)
        leaf = log_probs.clone().requires_grad_()
        ratio = torch.exp(leaf)
        within = torch.clamp(ratio, 0.8, 1.2)
        bounded = ratio if most is None else torch.clamp(ratio, max=most)
        torch.min(bounded * inputs["advantages"][:, None], within * inputs["advantages"][:, None]).sum().backward()
        assert torch.equal(trl_passes.held_back(trainer, inputs, log_probs), leaf.grad == 0), most
    for changes in ({"top_entropy_quantile": 0.5}, {"off_policy_mask_threshold": 0.1}, {"loss_type": "vespo"}):
        assert trl_passes.held_back(SimpleNamespace(**{**vars(trainer), **changes}), inputs, log_probs) is None
    assert trl_passes.never_clips(SimpleNamespace(loss_type="cispo"), inputs)
    assert not trl_passes.never_clips(trainer, inputs)
