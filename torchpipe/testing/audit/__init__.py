"""``audit``: any loader, run whole, cut off, killed and resumed in its own processes: what is lost, what comes twice?

``checks`` says what is run, ``processes`` runs it, ``child`` is what runs, ``report`` compares and tells.
"""

from torchpipe.testing.audit.checks import audit
from torchpipe.testing.audit.report import AuditReport, Options, Row

__all__ = ["AuditReport", "Options", "Row", "audit"]
