"""Imported first, a training's process does without what TRL and Transformers import wherever it is installed.

No training here uses these packages, and importing them is a third of such a process's start.
"""

from __future__ import annotations

import sys

for _name in ("mlflow", "sklearn", "scipy", "trackio", "wandb"):
    sys.modules.setdefault(_name, None)  # type: ignore[arg-type]
