"""What tests of publishing share with those of tracking."""

from tests.tracking.conftest import patient_ends  # noqa: F401  (a fixture)
