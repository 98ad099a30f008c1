"""verl without TRL, where the environment has only its configurations, for other tests: verl asks for TRL's models
wherever it finds the package.

Loaded by verl (``VERL_USE_EXTERNAL_MODULES``).
"""

from __future__ import annotations

import sys

sys.modules.setdefault("trl", None)  # type: ignore[arg-type]
