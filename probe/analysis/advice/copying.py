"""What can be copied of advice: a patch of the configuration that a run recorded, else its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from probe.analysis.advice.patching import overrides, patch
from probe.analysis.advice.suggestions import Advice
from probe.errors import InputError

if TYPE_CHECKING:
    from probe.runs.reader import Run


def recorded_patch(run: Run, values: Mapping[str, Any]) -> str:
    """The change as a patch of the configuration that the run recorded, written as YAML: of the user's own file
    ``probe advise RUN --config FILE`` makes one.

    Args:
        run: The run.
        values: By dotted key.

    Returns:
        "" where the run recorded no configuration that has a place for them.
    """
    config = run.info.config
    if not isinstance(config, Mapping) or not config or not values:
        return ""
    import yaml

    try:
        return patch("config.yaml", yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True), values)
    except (InputError, yaml.YAMLError):
        return ""


def copied(run: Run, advice: Advice) -> str:
    """What can be copied: a patch of what was recorded, else the settings, one a line.

    Args:
        run: The run.
        advice: For it.
    """
    return recorded_patch(run, advice.values) or "".join(f"{one}\n" for one in overrides(advice.values))
