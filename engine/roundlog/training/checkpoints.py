"""Checks of files that should hold a known state: checkpoints of a run, or a model that was fetched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from roundlog.commitments import CommitmentError, state_root
from roundlog.program import Program
from roundlog.spec import TrainingSpec
from roundlog.storage import StorageError, load_tensors


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
