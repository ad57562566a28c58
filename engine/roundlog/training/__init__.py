"""Whole trainings: jobs, runs, the trainer, the auditor, and verdicts on claims.

What a name needs is loaded when it is first used, since PyTorch takes seconds, and ranks are for few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundlog import lazy_face

if TYPE_CHECKING:
    from roundlog.training.auditor import Auditor, LogStanding, Verdict, audit
    from roundlog.training.export import load_into, trained_state
    from roundlog.training.fabricated_values import noted_stop
    from roundlog.training.job import (
        DATA,
        JOB_FILES,
        JOB_STAGES,
        Job,
        JobError,
        JobLimits,
        TooLargeJobError,
        read_program,
        require_memory,
    )
    from roundlog.training.machine_support import (
        kernel_instructions,
        supported_arithmetics,
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
    from roundlog.training.rank_runs import Helpers, agree, by_ranks, help_rank_0, help_with_runs
    from roundlog.training.receipt import (
        MAX_RECEIPT_BYTES,
        RECEIPT_FORMATS,
        AuditRecord,
        Receipt,
        ReceiptError,
        interval_ranges,
        parse_receipt,
        read_receipt,
    )
    from roundlog.training.repetition import (
        Repetition,
        draw_intervals,
        repeat,
        repeat_all,
        replay_interval,
        replay_state,
    )
    from roundlog.training.run import Run, root_sum
    from roundlog.training.run_cost import estimate_step_seconds, run_bytes, step_bytes
    from roundlog.training.run_files import (
        BEFORE_THE_PROGRAM,
        HISTORY_FILE,
        checkpoint_path,
        kept_bytes,
        load_moved,
        most_interval_bytes,
        most_job_bytes,
        most_state_bytes,
        wrong_checkpoints,
        wrong_state,
    )
    from roundlog.training.sameness import Sameness
    from roundlog.training.trainer import Trainer, TrainingResult, log_header, log_path

__getattr__ = lazy_face(__name__, __file__)
