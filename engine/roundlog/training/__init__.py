"""Whole trainings: jobs, runs, the trainer, the auditor, and verdicts on claims.

What a name needs is loaded when it is first used, since PyTorch takes seconds, and ranks are for few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundlog import lazy_face

if TYPE_CHECKING:
    from roundlog.training.audit_record import MAX_ADDRESS, MAX_REASON, AuditRecord, WrongInterval, interval_ranges
    from roundlog.training.auditor import Auditor
    from roundlog.training.export import load_into, trained_state
    from roundlog.training.fabricated_values import noted_stop
    from roundlog.training.helpers import Helpers, help_with_runs
    from roundlog.training.history import HISTORY_FILE, read_history
    from roundlog.training.job import (
        JOB_STAGES,
        Job,
        JobError,
        JobLimits,
        TooLargeJobError,
        read_program,
        require_memory,
        run_bytes,
        step_bytes,
    )
    from roundlog.training.options import (
        DEFAULT_OPTIONS,
        Execution,
        RunOptions,
        StepEvent,
        Validation,
        draws_numbers,
        read_validation_rows,
    )
    from roundlog.training.rank_runs import agree, agree_without_job, by_ranks, help_rank_0
    from roundlog.training.receipt import MAX_RECEIPT_BYTES, Receipt, ReceiptError, read_receipt
    from roundlog.training.repetition import (
        Repetition,
        draw_intervals,
        repeat,
        repeat_all,
        replay,
        replay_interval,
        replay_state,
    )
    from roundlog.training.run import Run, root_sum
    from roundlog.training.run_files import (
        BEFORE_THE_PROGRAM,
        DATA,
        JOB_FILES,
        checkpoint_path,
        kept_bytes,
        most_interval_bytes,
        most_job_bytes,
        most_state_bytes,
        wrong_checkpoints,
        wrong_state,
    )
    from roundlog.training.sameness import Sameness
    from roundlog.training.trainer import Trainer, TrainingResult, log_header, log_path
    from roundlog.training.verdict import LogStanding, Verdict, audit

_FILES = {
    "AuditRecord": "audit_record",
    "Auditor": "auditor",
    "BEFORE_THE_PROGRAM": "run_files",
    "DATA": "run_files",
    "DEFAULT_OPTIONS": "options",
    "Execution": "options",
    "HISTORY_FILE": "history",
    "Helpers": "helpers",
    "JOB_FILES": "run_files",
    "JOB_STAGES": "job",
    "Job": "job",
    "JobError": "job",
    "JobLimits": "job",
    "LogStanding": "verdict",
    "MAX_ADDRESS": "audit_record",
    "MAX_REASON": "audit_record",
    "MAX_RECEIPT_BYTES": "receipt",
    "Receipt": "receipt",
    "ReceiptError": "receipt",
    "Repetition": "repetition",
    "Run": "run",
    "RunOptions": "options",
    "Sameness": "sameness",
    "StepEvent": "options",
    "TooLargeJobError": "job",
    "Trainer": "trainer",
    "TrainingResult": "trainer",
    "Validation": "options",
    "Verdict": "verdict",
    "WrongInterval": "audit_record",
    "agree": "rank_runs",
    "agree_without_job": "rank_runs",
    "audit": "verdict",
    "by_ranks": "rank_runs",
    "checkpoint_path": "run_files",
    "draw_intervals": "repetition",
    "draws_numbers": "options",
    "help_rank_0": "rank_runs",
    "help_with_runs": "helpers",
    "interval_ranges": "audit_record",
    "kept_bytes": "run_files",
    "load_into": "export",
    "log_header": "trainer",
    "log_path": "trainer",
    "most_interval_bytes": "run_files",
    "most_job_bytes": "run_files",
    "most_state_bytes": "run_files",
    "noted_stop": "fabricated_values",
    "read_history": "history",
    "read_program": "job",
    "read_receipt": "receipt",
    "read_validation_rows": "options",
    "repeat": "repetition",
    "repeat_all": "repetition",
    "replay": "repetition",
    "replay_interval": "repetition",
    "replay_state": "repetition",
    "require_memory": "job",
    "root_sum": "run",
    "run_bytes": "job",
    "step_bytes": "job",
    "trained_state": "export",
    "wrong_checkpoints": "run_files",
    "wrong_state": "run_files",
}

__all__ = [
    "BEFORE_THE_PROGRAM",
    "DATA",
    "DEFAULT_OPTIONS",
    "HISTORY_FILE",
    "JOB_FILES",
    "JOB_STAGES",
    "MAX_ADDRESS",
    "MAX_REASON",
    "MAX_RECEIPT_BYTES",
    "AuditRecord",
    "Auditor",
    "Execution",
    "Helpers",
    "Job",
    "JobError",
    "JobLimits",
    "LogStanding",
    "Receipt",
    "ReceiptError",
    "Repetition",
    "Run",
    "RunOptions",
    "Sameness",
    "StepEvent",
    "TooLargeJobError",
    "Trainer",
    "TrainingResult",
    "Validation",
    "Verdict",
    "WrongInterval",
    "agree",
    "agree_without_job",
    "audit",
    "by_ranks",
    "checkpoint_path",
    "draw_intervals",
    "draws_numbers",
    "help_rank_0",
    "help_with_runs",
    "interval_ranges",
    "kept_bytes",
    "load_into",
    "log_header",
    "log_path",
    "most_interval_bytes",
    "most_job_bytes",
    "most_state_bytes",
    "noted_stop",
    "read_history",
    "read_program",
    "read_receipt",
    "read_validation_rows",
    "repeat",
    "repeat_all",
    "replay",
    "replay_interval",
    "replay_state",
    "require_memory",
    "root_sum",
    "run_bytes",
    "step_bytes",
    "trained_state",
    "wrong_checkpoints",
    "wrong_state",
]


__getattr__ = lazy_face(__name__, _FILES)
