"""The rounding log: which way the trainer rounded what an auditor might find ambiguous, or, under the `threshold`
policy, everything (docs/log-format.md).
"""

from roundlog.log.entries import Decision, Entries, StepLog
from roundlog.log.errors import LogError, PayloadError
from roundlog.log.layout import LogHeader, PayloadKind
from roundlog.log.reader import LogReader, most_log_bytes
from roundlog.log.summary import Counts, LogSummary, StepSummary, summarise
from roundlog.log.trits import TritLog, Trits
from roundlog.log.writer import ClosedLog, LogWriter

__all__ = [
    "ClosedLog",
    "Counts",
    "Decision",
    "Entries",
    "LogError",
    "LogHeader",
    "LogReader",
    "LogSummary",
    "LogWriter",
    "PayloadError",
    "PayloadKind",
    "StepLog",
    "StepSummary",
    "TritLog",
    "Trits",
    "most_log_bytes",
    "summarise",
]
