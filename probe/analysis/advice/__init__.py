"""Which setting, which value: see :func:`advise`."""

from __future__ import annotations

from probe.analysis.advice.advice import Advice, Suggestion, advise
from probe.analysis.advice.patching import overrides, patch

__all__ = ["Advice", "Suggestion", "advise", "overrides", "patch"]
