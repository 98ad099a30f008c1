"""Whether logged numbers are right: what was reported, what weighted means would have said, and the trap between."""

from probe.analysis.audit.auditing import Audit, Audited, audit
from probe.analysis.audit.judging import TRAPS

__all__ = ["TRAPS", "Audit", "Audited", "audit"]
