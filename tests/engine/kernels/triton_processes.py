"""Processes in which Triton interprets its kernels: it decides whether when it is imported."""

from __future__ import annotations

import importlib.util
import os
import warnings

import pytest
import torch

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: `make test-devices`"
)


def interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    # Warnings of numpy, which it computes with: infinities and NaN are among the cases.
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    torch.set_num_threads(1)
