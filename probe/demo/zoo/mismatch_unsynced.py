"""A fault between rollout and training, in a real small model; see :mod:`probe.demo.zoo.mismatches`."""

from __future__ import annotations

from probe.demo.zoo.mismatches import Unsynced as Fault

__all__ = ["Fault"]
