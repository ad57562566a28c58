"""A trained model, out of a run: the tensors of its `state_dict`, in a file or in a module."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from roundlog.program import ProgramError, TensorType
from roundlog.program.model import SAVED, names_in_model, split
from roundlog.storage import StorageError, load_tensors, save_tensors, tensor_types
from roundlog.training.run_files import checkpoint_path

if TYPE_CHECKING:
    from torch import nn

_CHECKPOINT = re.compile(r"([0-9]{8}|[1-9][0-9]{8,20})\.safetensors")
_METADATA = {"format": "pt"}
"""Metadata that `transformers` looks for in a safetensors file before it reads one."""

_NO_STATE = "name the directory of a run, or a state as `tiebreak job collect` fetches it"


class ExportError(ValueError):
    """A state that no model can be made of, or a place that none can be written to; the message says what to do."""


@dataclass(frozen=True, slots=True)
class TrainedState:
    """A trained state in a file: one that a run has kept, or one that was fetched. The file is not trusted."""

    path: Path
    steps: int | None
    """Steps after which a run kept it; None of a file that lies in no run."""
    types: Mapping[str, TensorType]
    """Type of every tensor in the file, by its name there."""
    names: Mapping[str, str]
    """Name in the model's `state_dict` -> name in the file."""

    @property
    def nbytes(self) -> int:
        """Bytes of the model's tensors."""
        return sum(self.types[name].nbytes for name in self.names.values())

    def export(self, to: Path) -> None:
        """Writes the model's tensors to a safetensors file by the names of its `state_dict`, in place of a file that
        is there, in the dtypes that they were trained in. Tensors that are tied stand under the first of their names,
        as in files of `transformers`; `safetensors.torch.load_model` and `from_pretrained` tie them again. Buffers of
        dtypes that no state has, such as uint8, are missing: no step changes them, the model makes them by itself
        (`load_model` takes strict=False then).

        Raises ExportError for a place that is none for a model, StorageError for what cannot be read or written."""
        if to.is_dir():
            raise ExportError(f"{to} is a directory: name a file in it, as {to / 'model.safetensors'}")
        if to.suffix != ".safetensors" or (to.exists() and not to.is_file()):
            raise ExportError(f"{to} is no place for a model: name a file that ends in .safetensors")
        # A link at the place itself is replaced, not followed.
        target, ours = to.parent.resolve() / to.name, self.path.resolve()
        if target == ours or (self.steps is not None and target.parent == self.path.parent.resolve()):
            raise ExportError(f"{to} would lie among the trained states themselves: choose another directory")
        found = load_tensors(self.path, self.types, only=set(self.names.values()))
        save_tensors(to, {name: found[own] for name, own in self.names.items()}, _METADATA)


def trained_state(source: Path, steps: int | None = None) -> TrainedState:
    """The trained state in the directory of a run, after so many steps or (None) the newest that is kept; or that in a
    file. Nothing but its header is read.

    Raises ExportError if there is none, StorageError for a file that is damaged or no state."""
    if source.is_dir():
        steps, path = _kept(source, steps)
    elif steps is not None:
        raise ExportError(f"{source} is no directory of a run, so there are no states to choose from: {_NO_STATE}")
    else:
        path = source
    try:
        types = tensor_types(path)
    except StorageError as error:
        mend = _NO_STATE if steps is None else f"run `tiebreak train` with --run {source}, which mends it"
        raise ExportError(f"{path} is no trained state, since it {error.reason}: {mend}") from error
    return TrainedState(path, steps, types, _names(path, types))


def load_into(model: nn.Module, run_dir: str | os.PathLike[str], *, steps: int | None = None) -> None:
    """Give a model the values that a run has trained: all of them, or none if it raises. The model is one of the class,
    and of the sizes, that the job was made of; its mode (`train`/`eval`) stays.

    run_dir: directory of the run; or a trained state, as `tiebreak job collect` fetches it. Neither is trusted, nor
    held against a root: `tiebreak audit` and `tiebreak verify-model` do that. steps: after how many steps, where a
    checkpoint is kept; None: the newest.

    Raises ExportError if there is no state, StorageError for one that is damaged, and CaptureError for one of another
    model."""
    # Capture takes longer to load than an export takes.
    from torch import nn

    from roundlog.capture.errors import CaptureError
    from roundlog.training.checkpoint import load_state

    if not isinstance(model, nn.Module):
        raise CaptureError(f"the model is a {type(model).__name__}: give a torch.nn.Module")
    load_state(model, trained_state(Path(run_dir), steps).path)


def _kept(run_dir: Path, steps: int | None) -> tuple[int, Path]:
    """(steps, file) of a checkpoint that a run has kept."""
    folder = run_dir / "checkpoints"
    try:
        kept = {int(found[1]) for file in folder.iterdir() if (found := _CHECKPOINT.fullmatch(file.name))}
    except OSError as error:
        raise ExportError(
            f"{run_dir} is not the directory of a run ({error.strerror}: {folder}): {_NO_STATE}"
        ) from error
    if not kept:
        raise ExportError(f"the run in {run_dir} has kept no checkpoint yet: let it reach its first one")
    chosen = max(kept) if steps is None else steps
    if chosen not in kept:
        others = ", ".join(map(str, sorted(kept)[-10:]))
        raise ExportError(f"the run in {run_dir} has kept no state after {steps} steps: choose one of {others}")
    return chosen, checkpoint_path(run_dir, chosen)


def _names(path: Path, types: Mapping[str, TensorType]) -> dict[str, str]:
    """Name in the model -> name in the file, of what a `state_dict` holds."""
    strange = [name for name in types if not split(name)[0]]
    if strange:
        raise ExportError(
            f"{path} has a tensor {strange[0][:80]!r}, which is named otherwise than in a trained state: {_NO_STATE}"
        )
    try:
        names = names_in_model(name for name in types if split(name)[0] in SAVED)
    except ProgramError as error:
        raise ExportError(f"{path} {error}") from error
    for name in names:
        if not name or name == "__metadata__" or not name.isprintable():
            raise ExportError(f"{path} has a tensor {names[name][:80]!r}, which no model can have: {_NO_STATE}")
    if not names:
        raise ExportError(f"{path} has no parameter and no buffer: {_NO_STATE}")
    return names
