"""What inference engines load in each of their processes: the entry points ``probe`` of vLLM's and SGLang's plugins.

The groups are ``vllm.general_plugins`` and ``sglang.srt.plugins``. Where the environment names no run directory nothing
of probe is imported. What fails is said and never raised: vLLM would not start.
"""

from __future__ import annotations

import os

from probe_rl import harmless, load


def vllm() -> None:
    """Observe vLLM in this process where there is somewhere to record to."""
    _observe("vllm")


def sglang() -> None:
    """Observe SGLang in this process where there is somewhere to record to."""
    _observe("sglang")


def _observe(engine: str) -> None:
    if not os.environ.get("PROBE_RUN_DIR"):
        return
    with harmless():
        load("probe.adapters.attachment").attach(engine)
