"""Names of OpenTelemetry: the proposed ``rl.*`` conventions, and ``hw.gpu.*`` for memory.

Sources: open-telemetry/semantic-conventions-genai issue 88 (spans ``rl.loop``, ``rl.sample``, ``rl.reward``,
``rl.train``, ``rl.sync``); OpenTelemetry's hardware conventions (``hw.gpu.memory.usage``, in bytes); the metrics API
(a name begins with a letter and has at most 255 of ``[A-Za-z0-9_./-]``).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_GIB: Final = 1024**3


@dataclass(frozen=True)
class Named:
    """Attributes: name, and the unit in UCUM's spelling. factor: what values are multiplied with."""

    name: str
    unit: str = "1"
    factor: float = 1
    attributes: Mapping[str, str] = field(default_factory=dict)


#: What probe measures of memory that is in use: probe/memory/<scope>/<quantity>_gib, or with a reducer behind it.
_MEMORY = re.compile(
    r"probe/memory/(?:(?P<scope>.+)/)?(?P<quantity>peak_allocated|peak_reserved|peak_rss|device_used|non_torch)_gib"
    r"(?:_(?P<reducer>max|min|mean))?"
)
_ILLEGAL = re.compile(r"[^A-Za-z0-9_.-]")
_LENGTH: Final = 255
#: Unit by what a metric's name ends in, where probe's own names hold it.
_UNITS: Final = {"_bytes": "By", "_ns": "ns", "_s": "s", "_ms": "ms", "_tokens": "{token}", "_ratio": "1"}
_SPANS: Final = {
    "rl.loop": ("step", "loop"),
    "rl.sample": ("gen", "generate", "generate_sequences", "generation", "rollout", "sample"),
    "rl.reward": ("reward", "rewards", "reward_model"),
    "rl.train": ("train", "update", "update_actor", "update_critic", "actor_update", "policy_training"),
    "rl.sync": ("sync", "weight_sync", "update_weights", "refit"),
}
_SPAN_OF: Final = {name: own for own, names in _SPANS.items() for name in names}


def metric_name(name: str) -> Named:
    """What a logged metric is called.

    >>> metric_name("actor/loss").name, metric_name("timing_s/gen").name, metric_name("奖励").name
    ('rl.actor.loss', 'rl.timing_s.gen', 'rl.__')
    >>> metric_name("probe/memory/actor/peak_allocated_gib_max")  # doctest: +ELLIPSIS
    Named(name='hw.gpu.memory.usage', unit='By', factor=1073741824, attributes={'rl.scope': 'actor', ...})
    """
    memory = _MEMORY.fullmatch(name)
    if memory is not None:
        attributes = {f"rl.{key}": value for key, value in memory.groupdict().items() if value}
        own = "process.memory.usage" if memory["quantity"] == "peak_rss" else "hw.gpu.memory.usage"
        return Named(own, "By", _GIB, attributes)
    clean = _ILLEGAL.sub("_", name.strip("/").replace("/", "."))
    clean = f"rl.{clean}" if clean else "rl._"
    if len(clean) > _LENGTH:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        clean = f"{clean[: _LENGTH - 9]}_{digest}"
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "1")
    return Named(clean, unit)


def span_name(name: str) -> str:
    """What a span is called: a phase that the conventions know by their name, another by its own.

    >>> span_name("update_actor"), span_name("gen"), span_name("ref")
    ('rl.train', 'rl.sample', 'ref')
    """
    return _SPAN_OF.get(name, name)
