"""The server of :mod:`stub_rollout`: an actor of Ray without verl, whose import takes longer than all its answers."""

from __future__ import annotations

from typing import Any

import ray
from stub_answers import Answers, nothing


class Told:
    """An answer on its way: whoever receives it has verl, and gets verl's own ``TokenOutput``."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def __reduce__(self) -> tuple[Any, ...]:
        return _token_output, (self._fields,)


def _token_output(fields: dict[str, Any]) -> Any:
    from verl.workers.rollout.replica import TokenOutput

    return TokenOutput(**fields)


@ray.remote(num_cpus=0)
class StubServer:
    """Answers what it is asked, and says by which weights."""

    def __init__(self, longest: int) -> None:
        self._answers = Answers(longest)
        self._step = 0

    async def generate(self, request_id: Any = None, *, prompt_ids: list[int], **_: Any) -> Told:
        tokens = await self._answers.to(prompt_ids)
        steps = {"global_steps": self._step, "min_global_steps": self._step, "max_global_steps": self._step}
        return Told(token_ids=tokens, log_probs=[-5.6] * len(tokens), stop_reason="completed", extra_fields=steps)

    async def set_global_steps(self, step: int) -> None:
        self._step = step

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = nothing
    abort_all_requests = resume_generation = start_profile = stop_profile = nothing
