"""Files of jobs and runs: their most bytes, checks of states in them, and the history of a run.

Most bytes follow from spec and program: a reader fetches no more. Each is the size beyond which the reader of that
file refuses it, so that no right file is larger. Of a job whose program is not known yet, only `SPEC` and `PROGRAM`
have a bound; the program has the root that the spec commits to, and decides the others.

The history of a run has the loss and the seconds of every step, in a file beside the roots, for people and plots:

history.jsonl    JSON, a line a step, in the order of the steps:
    {"step":12,"loss":2.31,"seconds":0.04,"schedule":{"0/lr":0.001}}
    {"step":12,"validation":2.4,"seconds":0.2}    loss on a validation set, of the state before that step

Numbers are the shortest decimals that are the FP32 numbers of the run; null where a step stopped without a loss.
Nothing is committed to: the file changes no root, no log and no finding, and a run goes on without it where it cannot
be written.

Every line is handed to the operating system as soon as its step is done, so that a kill loses no more than a torn last
line; the file is synced to the disk when the run ends. A resumed run cuts the lines of the steps that it repeats.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from roundlog.commitments import CommitmentError, state_root
from roundlog.data import block_roots_bytes, most_data_bytes
from roundlog.log import most_log_bytes
from roundlog.operators import Inexact, operator
from roundlog.program import DType, Program, TensorType
from roundlog.program.program_text import MAX_TEXT_BYTES
from roundlog.rounding.policies import payload_format
from roundlog.spec import MAX_JSON_BYTES, TrainingSpec
from roundlog.storage import (
    StorageError,
    entry_of,
    load_tensors,
    most_tensor_bytes,
    save_state,
    sync_file,
)
from roundlog.training.fabricated_values import noted_stop
from roundlog.training.job import BLOCKS, DATA, INITIAL, PROGRAM, SCHEDULE, SPEC, Job

BEFORE_THE_PROGRAM = {SPEC: MAX_JSON_BYTES, PROGRAM: MAX_TEXT_BYTES}
"""Most bytes of the two files of a job by which the others are bounded."""


def most_job_bytes(program: Program, spec: TrainingSpec) -> dict[str, int]:
    """Most bytes of the other four files of a job, by name."""
    schedule = TensorType((spec.steps, len(program.schedule_names)), DType.F32)
    return {
        INITIAL: most_state_bytes(program.states),
        SCHEDULE: most_tensor_bytes({"schedule": entry_of(schedule)}),
        BLOCKS: block_roots_bytes(program.fields, spec.data_rows),
        DATA: most_data_bytes(program.fields, spec.data_rows),
    }


def most_state_bytes(states: Mapping[str, TensorType]) -> int:
    """Most bytes of a file with these tensors of a state."""
    return most_tensor_bytes({name: entry_of(kind) for name, kind in states.items()})


def inexact_sizes(program: Program) -> list[int]:
    """Elements in the output of each operator that a log has entries of, and 0 for the others."""
    return [node.type.numel if isinstance(operator(node.op), Inexact) else 0 for node in program.nodes]


def most_interval_bytes(program: Program, spec: TrainingSpec) -> int:
    """Most bytes of the log of one interval: steps times what the outputs of all inexact operators can take."""
    return most_log_bytes(payload_format(spec), spec.interval, inexact_sizes(program))


def kept_bytes(program: Program, spec: TrainingSpec, keep_every: int) -> int:
    """Bytes of the checkpoints of a run that keeps every so many, and of one that is being written."""
    kept = -(-spec.intervals // keep_every)
    return kept * most_state_bytes(program.moved_states) + most_state_bytes(program.states)


def checkpoint_path(run_dir: Path, steps: int) -> Path:
    """Path of the checkpoint after `steps` steps, whether it is kept or not."""
    return run_dir / "checkpoints" / f"{steps:08d}.safetensors"


def save_checkpoint(run_dir: Path, job: Job, steps: int, states: Sequence[torch.Tensor]) -> None:
    """Write the checkpoint after so many steps: what steps change, of a state that may be lazy; at the end of the run,
    and after a stop, all of it. Raises as `save_state`."""
    only = None if _is_whole(run_dir, job, steps) else job.program.moved_states
    save_state(checkpoint_path(run_dir, steps), job.program.states, states, only)


def _is_whole(run_dir: Path, job: Job, steps: int) -> bool:
    """Whether a checkpoint has all tensors: the last one, and those after a stop, which are fabricated."""
    stop = noted_stop(run_dir)
    return steps == job.spec.steps or (stop is not None and stop[0] < steps)


def load_moved(path: Path, job: Job) -> list[torch.Tensor]:
    """The state in a checkpoint before the last one; what no step changes is the job's. The file is not trusted. Raises
    StorageError."""
    moved = load_tensors(path, job.program.moved_states)
    return [moved[name] if name in moved else job.initial[name] for name in job.program.states]


def load_kept(run_dir: Path, job: Job, steps: int, root: bytes | None = None) -> tuple[list[torch.Tensor], bytes, str]:
    """(state, its root, why it is not the one with this root, in one clause) of the checkpoint after so many steps, and
    an empty reason for one that is, or where no root is given. The file is not trusted."""
    path, is_whole = checkpoint_path(run_dir, steps), _is_whole(run_dir, job, steps)

    def read() -> list[torch.Tensor]:
        return [*load_tensors(path, job.program.states).values()] if is_whole else load_moved(path, job)

    return _with_root(path, read, root)


def wrong_state(path: Path, program: Program, root: bytes) -> str | None:
    """The reason, in one clause, why a file does not hold the state of the program with this state root (32 bytes);
    None if it does. The file is not trusted: its sizes are checked against the program before anything is allocated."""
    return _with_root(path, lambda: [*load_tensors(path, program.states).values()], root)[2] or None


def _with_root(
    path: Path, read: Callable[[], list[torch.Tensor]], root: bytes | None
) -> tuple[list[torch.Tensor], bytes, str]:
    try:
        states = read()
        found = state_root(states)
    except StorageError as error:
        if error.path != path:  # the job's own, which no checkpoint is blamed for
            raise
        return [], b"", f"it {error.reason}"
    except CommitmentError as error:
        return [], b"", f"it has no state root: {error}"
    return states, found, "" if root in (None, found) else f"its state root is 0x{found.hex()}, not 0x{root.hex()}"


def wrong_checkpoint(run_dir: Path, job: Job, steps: int, root: bytes) -> str | None:
    """`wrong_state` of a run's checkpoint. A missing checkpoint is not wrong, since a run need not keep it."""
    path = checkpoint_path(run_dir, steps)
    return (load_kept(run_dir, job, steps, root)[2] or None) if path.is_symlink() or path.exists() else None


def wrong_checkpoints(run_dir: Path, job: Job, roots: Sequence[bytes]) -> Iterator[tuple[Path, str]]:
    """(file, reason) of every kept checkpoint that does not hold the state with the root of its interval. roots: state
    roots of the first intervals."""
    for interval, root in enumerate(roots):
        steps = (interval + 1) * job.spec.interval
        if (why := wrong_checkpoint(run_dir, job, steps, root)) is not None:
            yield checkpoint_path(run_dir, steps), why


HISTORY_FILE = "history.jsonl"
MAX_COLUMNS = 64
MAX_COLUMN_NAME = 100
"""Columns of the schedule behind the first `MAX_COLUMNS`, and such with longer names, are left out: they stand in the
job."""


class History:
    """The history of a run that is going on. A history that cannot be written is given up, and the run goes on."""

    def __init__(self, run_dir: Path, job: Job, first_step: int) -> None:
        """Cuts off what is torn or damaged, and the lines of `first_step` and later steps, which are run again."""
        self.path = run_dir / HISTORY_FILE
        self.problem: str | None = None
        """Reason why lines are missing, in one clause; None if the run has written all of its own."""
        self._job = job
        names = job.program.schedule_names[:MAX_COLUMNS]
        self._columns = [(slot, name) for slot, name in enumerate(names) if len(name) <= MAX_COLUMN_NAME]
        self._last = (-1, True)
        self._file: BinaryIO | None = None
        try:
            self._file = self._open(first_step)
        except OSError as error:
            self._give_up(error)

    def _open(self, first_step: int) -> BinaryIO:
        self.path.touch()
        # Unbuffered: what is written is handed over.
        file = self.path.open("r+b", buffering=0)
        end = 0
        with self.path.open("rb") as reader:
            for number, line in enumerate(reader, 1):
                place = _place_of(line) if line.endswith(b"\n") else None
                if place is None or place <= self._last:
                    if line.endswith(b"\n"):  # else it is the last one, torn
                        self.problem = f"{self.path}: line {number} is damaged: the lines from there on were dropped"
                    break
                if place > (first_step, False):
                    break
                end, self._last = end + len(line), place
        file.truncate(end)
        file.seek(end)
        return file

    def add_step(self, step: int, loss: float, seconds: float) -> None:
        """Writes the line of a step."""
        row = self._job.schedule[step].tolist() if self._columns else []
        line: dict[str, Any] = {"step": step, "loss": _plain(loss), "seconds": round(seconds, 6)}
        if self._columns:
            line["schedule"] = {name: _plain(row[slot]) for slot, name in self._columns}
        self._write(line, (step, True))

    def lacks_validation(self, step: int) -> bool:
        """Whether there is no line yet about a validation of the state before this step."""
        return self._file is not None and (step, False) > self._last

    def add_validation(self, step: int, loss: float, seconds: float) -> None:
        """Writes the line of a validation."""
        self._write({"step": step, "validation": _plain(loss), "seconds": round(seconds, 6)}, (step, False))

    def close(self) -> None:
        """Syncs the file to the disk and closes it."""
        if self._file is None:
            return
        try:
            sync_file(self._file)
            self._file.close()
        except OSError as error:
            self._give_up(error)
        self._file = None

    def _write(self, line: dict[str, Any], place: tuple[int, bool]) -> None:
        if self._file is None or place <= self._last:
            return
        data = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        self._last = place
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Ends the history: no run is lost for it. The next process cuts off what is torn."""
        self.problem = f"{self.path} cannot be written ({error.strerror or error})"
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None


def _place_of(line: bytes) -> tuple[int, bool] | None:
    """Place of a line: its step, and whether it is about the step itself, since a step's validation stands before it.
    None for a damaged line."""
    try:
        found = json.loads(line)
        return int(found["step"]), "validation" not in found
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError):
        return None


def _plain(value: float) -> float | None:
    """The shortest decimal that is this FP32 number; None for NaN and infinities."""
    return float(str(np.float32(value))) if math.isfinite(value) else None
