from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.devices.interpreted_gpu import interpret_compiled

CACHE = Path(__file__).parents[2] / "build" / "triton"


@pytest.fixture(scope="module", params=(80, 90, pytest.param(100, marks=pytest.mark.slow)), ids="sm_{}".format)
def gpu_process(request: pytest.FixtureRequest) -> Iterator[ProcessPoolExecutor]:
    """A process in which Triton compiles for a GPU, and what it compiles is interpreted."""
    with process_of(request.param) as pool:
        yield pool


def process_of(capability: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    arguments = capability, str(CACHE)
    return ProcessPoolExecutor(1, mp_context=context, initializer=interpret_compiled, initargs=arguments)
