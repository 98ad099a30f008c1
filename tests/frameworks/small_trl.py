"""Trainings that end in a second: a Qwen2 of 32 dimensions, a tokenizer of bytes, and each trainer of TRL.

Run as a program it trains as one rank of torchrun: ``small_trl.py KIND FOLDER [attach] [kill]``.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

TEXTS = [
    "ab",
    "a much longer text than that",
    "seven!!",
    "x" * 40,
    "words in a row",
    "0123456789",
    "last",
    "or not",
] * 2
#: Two processes, each a rank.
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
KINDS = ("sft", "sft_padding_free", "sft_packed", "dpo", "grpo", "rloo", "plain")
COMMON: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": 3,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": not torch.cuda.is_available(),
    "seed": 7,
    "bf16": False,
    "fp16": False,
    "disable_tqdm": True,
    "gradient_checkpointing": False,
}


def tokenizer() -> Any:
    """Each byte a token, and one each for padding and the end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {one: index for index, one in enumerate([*alphabet, "<pad>", "<end>"])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>")


def model(seed: int = 0) -> Any:
    """Random weights, the same at each call; a sixth of all tokens ends an answer, so that answers differ in length."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    made = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=258,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            pad_token_id=256,
            eos_token_id=257,
        )
    )
    made.generation_config.eos_token_id = [257, *range(40)]
    made.generation_config.pad_token_id = 256
    return made


def saved(folder: Path) -> Any:
    """:func:`model` as it comes from a file: trainers load their reference from there."""
    from transformers import AutoModelForCausalLM

    place = folder.parent / f"model-{os.environ.get('RANK', '0')}"  # no rank reads what another one is writing
    if not place.exists():
        model().save_pretrained(place)
    return AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)


def distinct(completions: list[str], **_: Any) -> list[float]:
    """A reward that answers differ in: how many different characters there are, and how long it is."""
    return [len(set(one)) - 0.1 * len(one) for one in completions]


def trainer(kind: str, folder: Path, base: Any = None, **changes: Any) -> Any:
    """A trainer of this kind, ready to train.

    Args:
        kind: Of :data:`KINDS`.
        folder: For what it writes.
        base: Makes the trainer's class into the one that is used, such as a subclass of it.
        **changes: Arguments of its configuration.
    """
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_DISABLE_PROGRESS_BARS", "TRL_EXPERIMENTAL_SILENCE"):
        os.environ.setdefault(name, "1")
    make = {"grpo": _online, "rloo": _online, "dpo": _preferences, "plain": _plain}.get(kind, _supervised)
    return make(kind, {**COMMON, "output_dir": str(folder), **changes}, base or (lambda one: one))


def _supervised(kind: str, arguments: dict[str, Any], base: Any) -> Any:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    more: dict[str, Any] = {"max_length": 64}
    if kind == "sft_padding_free":
        more |= {"padding_free": True, "max_length": None}
    if kind == "sft_packed":
        more |= {"packing": True, "packing_strategy": "bfd", "max_length": 48}
    data = Dataset.from_list([{"text": one} for one in TEXTS])
    return base(SFTTrainer)(
        model=model(),
        args=SFTConfig(**{**more, **arguments}),
        train_dataset=data,
        eval_dataset=data.select(range(5)),
        processing_class=tokenizer(),
    )


def _preferences(kind: str, arguments: dict[str, Any], base: Any) -> Any:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    rows = [{"prompt": one, "chosen": " yes" * (at % 3 + 1), "rejected": " no"} for at, one in enumerate(TEXTS)]
    data = Dataset.from_list(rows)
    return base(DPOTrainer)(
        model=saved(Path(arguments["output_dir"])),
        args=DPOConfig(**{"max_length": 64, **arguments}),
        train_dataset=data,
        eval_dataset=data.select(range(5)),
        processing_class=tokenizer(),
    )


def _online(kind: str, arguments: dict[str, Any], base: Any) -> Any:
    import trl
    from datasets import Dataset

    upper = kind.upper()
    more: dict[str, Any] = {"num_generations": 2, "max_completion_length": 12, "beta": 0.05}
    data = Dataset.from_list([{"prompt": one} for one in TEXTS])
    return base(getattr(trl, f"{upper}Trainer"))(
        model=saved(Path(arguments["output_dir"])),
        args=getattr(trl, f"{upper}Config")(**{**more, **arguments}),
        train_dataset=data,
        eval_dataset=data.select(range(4)),
        processing_class=tokenizer(),
        reward_funcs=[distinct],
    )


def _plain(kind: str, arguments: dict[str, Any], base: Any) -> Any:
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    one = tokenizer()
    rows = [one(text) for text in TEXTS]
    return base(Trainer)(
        model=model(),
        args=TrainingArguments(**arguments),
        train_dataset=rows,
        eval_dataset=rows[:5],
        data_collator=DataCollatorForLanguageModeling(one, mlm=False),
    )


def witness(notes: list[dict[str, Any]]) -> Any:
    """Makes a trainer's class into one that notes what its ``compute_loss`` receives, read without probe's code.

    Args:
        notes: Filled: of each call its step, whether it trains, tokens and counted tokens of each row, and its width.
    """

    def base(kind: Any) -> Any:
        class Witnessed(kind):  # type: ignore[misc]
            def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                found = {name: one.tolist() for name, one in inputs.items() if isinstance(one, torch.Tensor)}
                notes.append(
                    {
                        "step": self.state.global_step + (1 if self.model.training else 0),
                        "training": self.model.training,
                        **_read(found),
                    }
                )
                return super().compute_loss(model, inputs, *args, **kwargs)

        Witnessed.__name__ = Witnessed.__qualname__ = kind.__name__
        return Witnessed

    return base


def killed(rank: int, step: int, micro_batch: int) -> Any:
    """Makes a trainer's class into one whose process is killed within a micro-batch of one rank.

    Args:
        rank: Which process.
        step: Of the trainer, from 1.
        micro_batch: Of the step, from 0.
    """

    def base(kind: Any) -> Any:
        class Killed(kind):  # type: ignore[misc]
            calls = 0

            def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
                now = self.state.global_step + 1, self.calls % self.args.gradient_accumulation_steps
                self.calls += 1
                if now == (step, micro_batch) and int(os.environ.get("RANK", "0")) == rank:
                    time.sleep(3)  # at most half a second of rows is lost: what came before is on the disk
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().compute_loss(*args, **kwargs)

        return Killed

    return base


def _read(found: dict[str, Any]) -> dict[str, Any]:
    if "prompt_mask" in found:
        masks = [p + c for p, c in zip(found["prompt_mask"], found["completion_mask"], strict=True)]
        counted = [sum(one) for one in found["completion_mask"]]
        return {"lengths": [sum(one) for one in masks], "width": len(masks[0]), "effective": counted}
    counted_tokens = [[one != -100 for one in row] for row in found.get("labels", [])]
    if "completion_mask" in found:
        counted_tokens = [[bool(one) for one in row] for row in found["completion_mask"]]
    for row in counted_tokens:
        row[0] = False
    if "seq_idx" in found:
        numbers = found["seq_idx"][0]
        rows = [[at for at, one in enumerate(numbers) if one == number] for number in range(max(numbers) + 1)]
        counted = [sum(counted_tokens[0][at] for at in row) for row in rows]
        return {"lengths": [len(row) for row in rows], "width": None, "effective": counted}
    return {
        "lengths": [row.count(1) for row in found["attention_mask"]],
        "width": len(found["attention_mask"][0]),
        "effective": [sum(row) for row in counted_tokens],
    }


def outcome(trained: Any) -> dict[str, Any]:
    """All that a training leaves: what it logged, but for its times, and its weights."""
    timed = ("runtime", "_per_second", "time", "epoch_time")
    logged = [
        {k: v for k, v in one.items() if not any(word in k for word in timed) and "_mem_" not in k}
        for one in trained.state.log_history
    ]
    state = {name: one.detach().cpu().clone() for name, one in trained.model.state_dict().items()}
    return {"logged": logged, "weights": state}


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Both trainings are the same to the last bit."""
    assert repr(one["logged"]) == repr(other["logged"])
    assert one["weights"].keys() == other["weights"].keys()
    for name, value in one["weights"].items():
        assert torch.equal(value, other["weights"][name]), name


def told_as_killed(run: Any, *, rank: int, step: int, micro_batch: int) -> None:
    """The run says who of two ranks was killed and where it was seen last; the other one's failure follows from it.

    Args:
        run: What was recorded.
        rank: Which process was killed.
        step: In which step.
        micro_batch: In which of its micro-batches.
    """
    told = run.post_mortem()
    assert told.state == "killed", str(told)
    events = {one.where.rank: one for one in told.events}
    killed, other = events[rank], events.get(1 - rank)
    at = killed.where
    assert (killed.how, at.step, at.phase, at.micro_batch) == ("killed", step, "update", micro_batch), str(told)
    if other is not None and other.how == "killed":  # by the launcher, so soon that nobody can tell which was first
        assert abs(killed.wall_ns - other.wall_ns) < 0.5e9 or told.first is killed, str(told)
        assert "isn't known which was killed first" in str(told) or told.first is killed, str(told)
    else:
        assert told.first is killed, str(told)
        assert told.sentence.startswith(f"Rank {rank} was killed in update")
    assert {one.where.rank: one.state for one in told.standing}[rank] == "killed"
    assert set(events) in ({rank}, {0, 1})


def main() -> None:
    """One rank of a training under torchrun."""
    importlib.import_module("lean")  # it lies beside this program, whose folder is the first on the path
    kind, folder = sys.argv[1], Path(sys.argv[2])
    if "attach" in sys.argv[3:]:
        import probe

        probe.attach("trl")
    notes: list[dict[str, Any]] = []
    base = killed(1, 2, 1) if "kill" in sys.argv[3:] else witness(notes)
    trained = trainer(kind, folder / "out", base, ddp_backend="gloo")
    trained.train()
    rank = int(os.environ["RANK"])
    (folder / f"notes-{rank}.json").write_text(json.dumps(notes))
    torch.save(outcome(trained), folder / f"outcome-{rank}.pt")
    # What ends with the interpreter ends here; the interpreter doesn't. gloo's threads free their last tensors when
    # the group ends, and need Python's lock for that: then they are ended with SIGABRT now and then, or DDP's reducer
    # waits for them with the lock held, for ever (PyTorch 2.13, seen in gdb, in trainings without probe).
    sys.stdout.flush()
    atexit._run_exitfuncs()
    os._exit(0)


if __name__ == "__main__":
    main()
