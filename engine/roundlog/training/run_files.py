"""Files of jobs and runs: their names, their most bytes, checks of states in them, and the initial state of a job,
which a run reads once.

Most bytes follow from spec and program: a reader fetches no more. Each is the size beyond which the reader of that
file refuses it, so that no right file is larger. Of a job whose program is not known yet, only `SPEC` and `PROGRAM`
have a bound; the program has the root that the spec commits to, and decides the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from roundlog.commitments import CommitmentError, MerkleTree, state_root, tensor_root
from roundlog.data import block_roots_bytes, most_data_bytes
from roundlog.log import most_log_bytes
from roundlog.operators import Inexact, operator
from roundlog.program import DType, Program, TensorType
from roundlog.program.program_text import MAX_TEXT_BYTES
from roundlog.rounding.policies import payload_format
from roundlog.spec import MAX_JSON_BYTES, TrainingSpec
from roundlog.storage import StorageError, StoredTensors, entry_of, load_tensors, most_tensor_bytes

PROGRAM, SPEC, INITIAL, SCHEDULE, DATA, BLOCKS = JOB_FILES = (
    "program.json",
    "spec.json",
    "initial.safetensors",
    "schedule.safetensors",
    "data.safetensors",
    "data.blocks",
)
CACHE = "data.cache"
"""Name of the file beside a job's, where the data lie elsewhere, that keeps blocks of them."""

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


def checkpoint_path(run_dir: Path, steps: int) -> Path:
    """Path of the checkpoint after `steps` steps, whether it is kept or not."""
    return run_dir / "checkpoints" / f"{steps:08d}.safetensors"


def wrong_state(path: Path, program: Program, root: bytes) -> str | None:
    """The reason, in one clause, why a file does not hold the state of the program with this state root (32 bytes);
    None if it does. The file is not trusted: its sizes are checked against the program before anything is allocated."""
    try:
        found = state_root(load_tensors(path, program.states).values())
    except StorageError as error:
        return f"it {error.reason}"
    except CommitmentError as error:
        return f"it has no state root: {error}"
    return None if found == root else f"its state root is 0x{found.hex()}, not 0x{root.hex()}"


def wrong_checkpoint(path: Path, program: Program, root: bytes) -> str | None:
    """`wrong_state` of a run's checkpoint. A missing checkpoint is not wrong, since a run need not keep it."""
    return wrong_state(path, program, root) if path.is_symlink() or path.exists() else None


def wrong_checkpoints(
    run_dir: Path, program: Program, spec: TrainingSpec, roots: Sequence[bytes]
) -> Iterator[tuple[Path, str]]:
    """(file, reason) of every kept checkpoint that does not hold the state with the root of its interval. roots: state
    roots of the first intervals."""
    for interval, root in enumerate(roots):
        path = checkpoint_path(run_dir, (interval + 1) * spec.interval)
        if (why := wrong_checkpoint(path, program, root)) is not None:
            yield path, why


class StoredState(Mapping[str, torch.Tensor]):
    """A state in a file, by name, in program order. Each tensor is read whenever it is asked for, and has the root that
    it had when the state was made: whoever writes to the file meanwhile is found out."""

    def __init__(self, stored: StoredTensors) -> None:
        """Reads every tensor once. Raises StorageError, and CommitmentError for a tensor that has no root."""
        self._stored = stored
        self._roots = {name: tensor_root(tensor) for name, tensor in stored.items()}

    @property
    def root(self) -> bytes:
        """The state root."""
        return MerkleTree(list(self._roots.values())).root

    def __getitem__(self, name: str) -> torch.Tensor:
        """Raises StorageError if it cannot be read, or has changed."""
        tensor = self._stored[name]
        if tensor_root(tensor) != self._roots[name]:
            raise StorageError(self._stored.path, f"tensor {name!r} has changed since its root was taken: restore it")
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)
