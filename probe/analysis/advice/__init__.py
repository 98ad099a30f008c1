"""Which setting, which value: see :func:`advise`."""

from __future__ import annotations

from probe.analysis.advice.advice import Advice, Suggestion, advise
from probe.analysis.advice.patching import Patched, overrides, patch, patched

__all__ = ["Advice", "Patched", "Suggestion", "advise", "overrides", "patch", "patched"]
