"""A trained model, out of a run: the tensors of its `state_dict`, in a file or in a module."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from roundlog.program import ProgramError, TensorType
from roundlog.program.model import SAVED, names_in_model, split
from roundlog.storage import StorageError, load_tensors, read_record, save_tensors, tensor_types
from roundlog.training.run_files import checkpoint_path

if TYPE_CHECKING:
    import torch
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
    """Type of every tensor of the state, by its name in a file."""
    names: Mapping[str, str]
    """Name in the model's `state_dict` -> name in the file."""
    files: Mapping[Path, Mapping[str, TensorType]]
    """The file, and one with what no step changes, if that is another: type of every tensor in each."""

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
        found = self.load(set(self.names.values()))
        save_tensors(to, {name: found[own] for name, own in self.names.items()}, _METADATA)

    def load(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """The tensors with these names. Raises StorageError."""
        found: dict[str, torch.Tensor] = {}
        for path, types in self.files.items():
            found |= load_tensors(path, types, only=set(names) - found.keys())
        return found


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
    paths = [path]
    if steps is not None and steps != (whole := _whole_after(source, steps)):
        paths.append(checkpoint_path(source, whole))
        if not paths[1].exists():
            raise ExportError(f"{source} has what no step changes at its end, after {whole} steps: let the run end")
    try:
        files = {one: tensor_types(one) for one in paths}
    except StorageError as error:
        mend = _NO_STATE if steps is None else f"run `tiebreak train` with --run {source}, which mends it"
        raise ExportError(f"{path} is no trained state, since it {error.reason}: {mend}") from error
    types = {name: kind for one in reversed(paths) for name, kind in files[one].items()}
    return TrainedState(path, steps, types, _names(path, types), files)


def load_into(model: nn.Module, run_dir: str | os.PathLike[str], *, steps: int | None = None) -> None:
    """Give a model the values that a run has trained: all of them, or none if it raises. The model is one of the class,
    and of the sizes, that the job was made of; its mode (`train`/`eval`) stays.

    run_dir: directory of the run; or a trained state, as `tiebreak job collect` fetches it. Neither is trusted, nor
    held against a root: `tiebreak audit` and `tiebreak verify --root` do that. steps: after how many steps, where a
    checkpoint is kept; None: the newest.

    Raises ExportError if there is no state, StorageError for one that is damaged, and CaptureError for one of another
    model."""
    # Capture takes longer to load than an export takes.
    from torch import nn

    from roundlog.capture.errors import CaptureError
    from roundlog.training.checkpoint import load_state

    if not isinstance(model, nn.Module):
        raise CaptureError(f"the model is a {type(model).__name__}: give a torch.nn.Module")
    state = trained_state(Path(run_dir), steps)
    load_state(model, state.path, state.types, state.load)


def _whole_after(run_dir: Path, steps: int) -> int:
    """Steps after which the run keeps a whole state, if it keeps no other; else, `steps`."""
    try:
        record = read_record(run_dir / "run.json")
    except StorageError:  # the state itself is checked
        return steps
    found = record.get("whole_after") if isinstance(record, dict) else None
    return found if type(found) is int and found > steps else steps


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
