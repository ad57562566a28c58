"""The rounding log: which way the trainer rounded what an auditor might find ambiguous (docs/log-format.md). Other
policies of rounding log something else, in payloads of a format of their own.
"""

from roundlog.log.entries import Decision, Entries, LogError, PayloadError, StepLog
from roundlog.log.layout import LogHeader, PayloadFormat, PayloadKind
from roundlog.log.payload import ENTRIES
from roundlog.log.reader import LogFile, LogReader, most_log_bytes
from roundlog.log.writer import ClosedLog, LogWriter

__all__ = [
    "ENTRIES",
    "ClosedLog",
    "Decision",
    "Entries",
    "LogError",
    "LogFile",
    "LogHeader",
    "LogReader",
    "LogWriter",
    "PayloadError",
    "PayloadFormat",
    "PayloadKind",
    "StepLog",
    "most_log_bytes",
]
