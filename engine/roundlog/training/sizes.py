"""Most bytes of the files of a job, of a log and of a state, as spec and program say: a reader fetches no more.

Each is the size beyond which the reader of that file refuses it, so that no right file is larger. Of a job whose
program is not known yet, only `SPEC` and `PROGRAM` have a bound; the program has the root that the spec commits to, and
decides the others.
"""

from __future__ import annotations

from roundlog.data import block_roots_bytes, most_data_bytes
from roundlog.log import most_log_bytes
from roundlog.operators import Inexact, operator
from roundlog.program import DType, Program, TensorType
from roundlog.program.program_text import MAX_TEXT_BYTES
from roundlog.rounding.policies import payload_format
from roundlog.spec import MAX_JSON_BYTES, TrainingSpec
from roundlog.storage import entry_of, most_tensor_bytes
from roundlog.training.job import BLOCKS, DATA, INITIAL, PROGRAM, SCHEDULE, SPEC

BEFORE_THE_PROGRAM = {SPEC: MAX_JSON_BYTES, PROGRAM: MAX_TEXT_BYTES}
"""Most bytes of the two files of a job by which the others are bounded."""


def most_job_bytes(program: Program, spec: TrainingSpec) -> dict[str, int]:
    """Most bytes of the other four files of a job, by name."""
    schedule = TensorType((spec.steps, len(program.schedule_names)), DType.F32)
    return {
        INITIAL: most_state_bytes(program),
        SCHEDULE: most_tensor_bytes({"schedule": entry_of(schedule)}),
        BLOCKS: block_roots_bytes(program.fields, spec.data_rows),
        DATA: most_data_bytes(program.fields, spec.data_rows),
    }


def most_state_bytes(program: Program) -> int:
    """Most bytes of a file with a state of this program."""
    return most_tensor_bytes({name: entry_of(kind) for name, kind in program.states.items()})


def inexact_sizes(program: Program) -> list[int]:
    """Elements in the output of each operator that a log has entries of, and 0 for the others."""
    return [node.type.numel if isinstance(operator(node.op), Inexact) else 0 for node in program.nodes]


def most_interval_bytes(program: Program, spec: TrainingSpec) -> int:
    """Most bytes of the log of one interval: steps times what the outputs of all inexact operators can take."""
    return most_log_bytes(payload_format(spec), spec.interval, inexact_sizes(program))


def kept_bytes(program: Program, spec: TrainingSpec, keep_every: int) -> int:
    """Bytes of the checkpoints of a run that keeps every so many, and of one that is being written."""
    return (-(-spec.intervals // keep_every) + 1) * most_state_bytes(program)
