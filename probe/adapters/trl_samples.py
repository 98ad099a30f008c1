"""What TRL's GRPO and RLOO trainers sample, told when their advantages are known.

Lengths and ids are Python's numbers there, and so are the rewards that TRL logs; what is on a device is copied behind
the queued work, as everywhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from typing import Any, Final, NamedTuple, TypeGuard
from weakref import WeakKeyDictionary

from probe.adapters.seams import Call
from probe.adapters.trl_passes import follow, never_clips
from probe.sampled import SAMPLES, samples


class Drawn:
    """What was sampled for each answer of a batch, turn by turn.

    TRL asks for a first turn of all answers, and then, where they call tools, for a further one of some of them, with
    all their tokens so far before it. It doesn't say which these are: they are those whose tokens so far the prompt
    begins with, in their order.

    Attributes:
        so_far: Of each answer the ids of its prompt and of what was sampled, as the next prompt has to begin.
        ids: Of each answer the ids that were sampled, in their order.
        lost: Whether a turn was of none of the answers, as where a conversation was tokenised again.
        calls: How often TRL has asked for a turn of some answers.
    """

    def __init__(self) -> None:
        self.so_far: list[list[int]] = []
        self.ids: list[list[int]] = []
        self.lost = False
        self.calls = 0

    def add(self, prompts: Any, answers: Any) -> None:
        """A turn was sampled.

        Args:
            prompts: Ids of what the model was given, a list for each answer.
            answers: Ids of what it gave.
        """
        self.calls += 1
        if self.lost or not _lists(prompts) or not _lists(answers) or len(prompts) != len(answers):
            self.lost = True
        elif not self.so_far:
            self.so_far = [[*asked, *given] for asked, given in zip(prompts, answers, strict=True)]
            self.ids = [list(given) for given in answers]
        else:
            self._go_on(prompts, answers)

    def _go_on(self, prompts: list[list[int]], answers: list[list[int]]) -> None:
        left = iter(range(len(self.ids)))
        for asked, given in zip(prompts, answers, strict=True):
            at = next((at for at in left if asked[: len(self.so_far[at])] == self.so_far[at]), None)
            if at is None:
                self.lost = True
                return
            self.so_far[at] = [*asked, *given]
            self.ids[at] += given


def _lists(ids: Any) -> TypeGuard[list[list[Any]]]:
    return isinstance(ids, list) and all(isinstance(one, list) for one in ids)


class Generated(NamedTuple):
    """What a call of ``_generate`` gave.

    Attributes:
        prompt_ids: Of each prompt.
        ids: Of each answer, those of tools between them included.
        begin_ns: When the batch was asked for, monotonic: answers come all at once.
        end_ns: When it was there.
        sampled: Ids that were sampled, of each answer; None where that isn't known of all of them.
        version: Of the weights that sampled.
        turns: The model's own turns of each conversation; None likewise.
        tools: Calls of tools that it made in them; None likewise, and where the trainer has no tools.
    """

    prompt_ids: list[Any]
    ids: list[Any]
    begin_ns: int
    end_ns: int
    sampled: list[list[int]] | None
    version: int
    turns: list[int] | None
    tools: list[int] | None


_drawn: Final[WeakKeyDictionary[Any, Drawn]] = WeakKeyDictionary()
_generated: Final[WeakKeyDictionary[Any, Generated]] = WeakKeyDictionary()


def generated(call: Call) -> Generator[None, None, None]:
    """Answers are generated: lists of token ids, on the CPU."""
    begin_ns, trainer = time.monotonic_ns(), call.args[0]
    if SAMPLES.listeners:
        _drawn[trainer] = Drawn()
    yield
    drawn = _drawn.pop(trainer, None)
    if SAMPLES.listeners and isinstance(call.result, tuple) and len(call.result) > 1:
        ids = list(call.result[0]), list(call.result[1])
        known = drawn if drawn is not None and not drawn.lost and len(drawn.ids) == len(ids[1]) else None
        turns, tools = _turns(call.result, ids[1], known), _tool_calls(trainer, call.result, len(ids[1]))
        sampled = None if known is None else known.ids
        _generated[trainer] = Generated(*ids, begin_ns, time.monotonic_ns(), sampled, _version(trainer), turns, tools)


def _version(trainer: Any) -> int:
    """The optimizer steps that the weights which sample have had: those of an engine as of its last sync, and else the
    trainer's own.
    """
    synced = getattr(trainer, "_last_loaded_step", None) if getattr(trainer, "use_vllm", False) else None
    return int(trainer.state.global_step if synced is None else synced)


def _turns(result: tuple[Any, ...], ids: list[Any], drawn: Drawn | None) -> list[int] | None:
    """Runs of the model's tokens in each answer, where TRL says which these are; without tools it is one turn each."""
    mask = result[2] if len(result) > 2 else None
    if not _lists(mask):
        return [1] * len(ids) if drawn is not None and drawn.calls == 1 else None
    if [len(one) for one in mask] != [len(one) for one in ids]:
        return None
    try:
        return [(b"\0" + bytes(one)).count(b"\0\1") for one in mask]  # of 8,000 tokens in 0.2 ms
    except (TypeError, ValueError):  # it isn't a mask of 0 and 1
        return None


def _tool_calls(trainer: Any, result: tuple[Any, ...], count: int) -> list[int] | None:
    """Calls of tools in the messages of each conversation, those included whose result had no room any more."""
    conversations = result[3] if len(result) > 3 and getattr(trainer, "tools", None) else None
    if not _lists(conversations) or len(conversations) != count:
        return None
    return [sum(len(one.get("tool_calls") or ()) for one in messages) for messages in conversations]


def turn(call: Call) -> None:
    """A turn of some answers was sampled: RLOO's gives the ids alone, GRPO's their log-probabilities too."""
    drawn = _drawn.get(call.args[0])
    if drawn is not None:
        drawn.add(call.argument("prompt_ids"), call.result[0] if isinstance(call.result, tuple) else call.result)


def scored(call: Call) -> None:
    """Answers have their rewards and advantages. What is generated to evaluate isn't trained."""
    trainer = call.args[0]
    made = _generated.pop(trainer, None)
    if made is None or not SAMPLES.listeners or not trainer.model.training or not isinstance(call.result, dict):
        return
    output, count = call.result, len(made.ids)
    first = trainer.accelerator.process_index * count
    truncated = _truncated(trainer, made)
    drops = truncated is not None and getattr(trainer, "mask_truncated_completions", False)
    samples(
        [len(one) for one in made.ids],
        prompt_tokens=[len(one) for one in made.prompt_ids],
        mask=_mask(output),
        groups=[str((first + at) // trainer.num_generations) for at in range(count)],
        turns=made.turns,
        tools=made.tools,
        truncated=truncated,
        rewards=_rewards(trainer, first, count),
        advantages=output.get("advantages"),
        rollout_log_probs=output.get("sampling_per_token_logps"),
        log_probs=output.get("old_per_token_logps"),
        clipped=False if never_clips(trainer, output) else None,
        passes=int(getattr(trainer, "num_iterations", 1)),
        weight_versions=[made.version] * count,
        trainer_version=int(trainer.state.global_step),
        begin_ns=made.begin_ns,
        end_ns=made.end_ns,
        replicas=_replica(trainer),
        dropped=["truncated" if one else None for one in truncated] if drops and truncated else None,
        loss_terms=_loss_terms(trainer),
        prompt_ids=made.prompt_ids,
        response_ids=made.ids,
        sampled_ids=made.sampled,
        source=type(trainer).__name__,
    )
    follow(output, count)


def _replica(trainer: Any) -> str:
    """The engine: one server for all processes, or each process samples for itself."""
    served = getattr(trainer, "use_vllm", False) and getattr(trainer, "vllm_mode", "") == "server"
    return "vLLM server" if served else f"rank {trainer.accelerator.process_index}"


def _mask(output: dict[str, Any]) -> Any:
    """Which tokens of the answers the loss counts."""
    mask, of_tools = output["completion_mask"], output.get("tool_mask")
    return mask if of_tools is None else mask * of_tools


def _truncated(trainer: Any, made: Generated) -> list[bool] | None:
    """Whether answers ended without an end token, by TRL's own rule; None where it has another one."""
    ends, tokenizer = getattr(trainer, "eos_token_ids", None), getattr(trainer, "_tokenizer", None)
    if ends is None or tokenizer is None:
        return None
    last = {*ends, tokenizer.pad_token_id}
    return [not len(one) or int(one[-1]) not in last for one in made.ids]


def _rewards(trainer: Any, first: int, count: int) -> list[float] | None:
    """The weighted sum of what each reward function gave, from what TRL has put into its log of completions."""
    logged = getattr(trainer, "_logs", {}).get("rewards", {})
    total = count * trainer.accelerator.num_processes
    weights = getattr(trainer, "reward_weights", None)
    named = [list(logged[name])[-total:] for name in trainer.reward_func_names if name in logged]
    if weights is None or weights.device.type != "cpu" or not named or any(len(one) != total for one in named):
        return None
    weighted = [[weight * one for one in column] for weight, column in zip(weights.tolist(), named, strict=True)]
    return [_sum_of_known(row) for row in list(zip(*weighted, strict=True))[first : first + count]]


def _sum_of_known(values: tuple[float, ...]) -> float:
    """NaN is a function that gave nothing; of nothing at all it is the sum."""
    known = [one for one in values if not math.isnan(one)]
    return sum(known) if known else float("nan")


def _loss_terms(trainer: Any) -> list[str]:
    """GRPO has the KL term in its loss, RLOO in its rewards."""
    in_loss = any(kind.__name__ == "GRPOTrainer" for kind in type(trainer).__mro__)
    return ["KL"] if in_loss and bool(getattr(trainer, "beta", None)) else []
