from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
from roundlog.kernels import machine_code

from tests.engine.kernels.triton_processes import interpret


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    """A process in which Triton interprets its kernels."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=interpret) as pool:
        yield pool


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of operators are compiled from the first step on."""
    monkeypatch.setattr(machine_code, "WORTH", -1)
