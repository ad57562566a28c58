"""Files that should hold a certain state: checkpoints of a run, a model that was fetched or bought."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from roundlog.commitments import CommitmentError, state_root
from roundlog.program import Program
from roundlog.spec import TrainingSpec
from roundlog.storage import StorageError, load_tensors


def checkpoint_path(run_dir: Path, steps: int) -> Path:
    """Where a run keeps the state after that many steps, if it does."""
    return run_dir / "checkpoints" / f"{steps:08d}.safetensors"


def wrong_state(path: Path, program: Program, root: bytes) -> str | None:
    """Why a file does not hold the state of the program with this state root (32 bytes), in one clause; None if it
    does. The file is a stranger's: its sizes are checked against the program before anything is allocated."""
    try:
        found = state_root(load_tensors(path, program.states).values())
    except StorageError as error:
        return f"it {error.reason}"
    except CommitmentError as error:
        return f"it has no state root: {error}"
    return None if found == root else f"its state root is 0x{found.hex()}, not 0x{root.hex()}"


def wrong_checkpoint(path: Path, program: Program, root: bytes) -> str | None:
    """`wrong_state` of a run's checkpoint. One that is not there is not wrong: a run keeps what it wants."""
    return wrong_state(path, program, root) if path.is_symlink() or path.exists() else None


def wrong_checkpoints(
    run_dir: Path, program: Program, spec: TrainingSpec, roots: Sequence[bytes]
) -> Iterator[tuple[Path, str]]:
    """(file, what is wrong with it) of every checkpoint that is kept and is not the state with the root of its
    interval. roots: of the first intervals."""
    for interval, root in enumerate(roots):
        path = checkpoint_path(run_dir, (interval + 1) * spec.interval)
        if (why := wrong_checkpoint(path, program, root)) is not None:
            yield path, why
