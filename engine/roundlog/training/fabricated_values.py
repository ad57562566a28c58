"""What a party claims where a run has no value.

A run that stops (a loss or next state that is not finite, an index out of range) has no state after that step, and yet
a party has to play with whole trees. So it makes values up, and goes on from them as from any others: every claim
before and after the step is right, given what comes before it, and the claim of the step itself is one that nobody
else can have. Hence the opponent, who claims a value where there is none, differs from it right there, whatever it
copies from the other's moves; a known constant in that place it could claim as well, and nothing about it could be
proven.
"""

from __future__ import annotations

import os
from functools import cached_property
from hashlib import shake_256
from pathlib import Path

import numpy as np
import torch

from roundlog.arithmetic import FULL_BITS
from roundlog.program import DType, TensorType
from roundlog.storage import StorageError, open_regular, replace_file

SECRET_BYTES = 32

_SMALL = 0xBFFFFFFF
"""Without the highest bit of its exponent an FP32 number is below 2: far from where sums overflow at once."""


class FabricatedValues:
    """Values from a secret, the same ones whenever they are asked for. A place is any numbers and words."""

    def __init__(self, run_dir: Path) -> None:
        """Those of a run directory. The secret is drawn when it is first needed, and on disk before it is used: a
        process that is killed goes on with the same claims."""
        self._path = run_dir / "fabricated.key"

    @property
    def needed(self) -> bool:
        """Whether anything was ever made up here."""
        return self._path.exists()

    @cached_property
    def _secret(self) -> bytes:
        try:
            with open_regular(self._path) as file:
                secret = file.read(SECRET_BYTES + 1)
        except FileNotFoundError:
            secret = os.urandom(SECRET_BYTES)
            with replace_file(self._path) as file:
                file.write(secret)
        if len(secret) != SECRET_BYTES:
            raise StorageError(self._path, f"is not a secret of {SECRET_BYTES} bytes")
        return secret

    def data(self, count: int, *place: int | str) -> bytes:
        """That many bytes. Raises StorageError, OSError."""
        return shake_256(self._secret + repr(place).encode()).digest(count)

    def tensor(self, kind: TensorType, bits: int, *place: int | str) -> torch.Tensor:
        """A tensor without NaN and infinities, every FP32 number of it in the format of `bits` bits."""
        data = np.frombuffer(self.data(kind.nbytes, *place), np.uint8)
        if kind.dtype == DType.BOOL:
            flat = torch.from_numpy((data & 1).astype(np.bool_))
        elif kind.dtype == DType.I64:
            flat = torch.from_numpy(data.view("<i8").astype(np.int64))
        else:
            kept = np.uint32(_SMALL & -(1 << (FULL_BITS - bits)))
            flat = torch.from_numpy((data.view("<u4") & kept).astype(np.uint32).view(np.float32))
        return flat.reshape(kind.shape)
