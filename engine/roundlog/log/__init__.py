"""The sparse rounding log: which way the trainer rounded what an auditor might find ambiguous
(docs/log-format.md).
"""

from roundlog.log.entries import Decision, Entries, StepLog
from roundlog.log.errors import LogError, PayloadError

__all__ = ["Decision", "Entries", "LogError", "PayloadError", "StepLog"]
