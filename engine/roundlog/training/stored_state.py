"""The initial state of a job, left in its file: a run reads it once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from roundlog.commitments import MerkleTree, tensor_root
from roundlog.storage import StorageError, StoredTensors


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
