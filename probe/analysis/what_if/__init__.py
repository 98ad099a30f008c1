"""What a run's batches would have come to under other settings: see :func:`what_if`."""

from __future__ import annotations

from probe.analysis.what_if.answering import Replayer, WhatIf, what_if
from probe.analysis.what_if.recorded import replayed, replayed_dealings, replayed_packings
from probe.analysis.what_if.settings import Settings

__all__ = ["Replayer", "Settings", "WhatIf", "replayed", "replayed_dealings", "replayed_packings", "what_if"]
