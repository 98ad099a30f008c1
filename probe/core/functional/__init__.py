"""The parts of :mod:`probe.core.torch_functional`: log-probabilities, masked moments, padding, schedules."""
