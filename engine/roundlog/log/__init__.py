"""The rounding log: which way the trainer rounded what an auditor might find ambiguous (docs/log-format.md). Other
policies of rounding log something else, in payloads of a format of their own.
"""

from roundlog.log.layout import LogHeader, PayloadFormat, PayloadKind
from roundlog.log.log_files import ClosedLog, LogFile, LogReader, LogWriter, most_log_bytes
from roundlog.log.payload import ENTRIES, Decision, Entries, LogError, PayloadError, StepLog
