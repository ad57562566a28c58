"""Micro-batched or whole: the same bits, for every program. No program is refused: what cannot be cut is computed whole."""

from pathlib import Path

import pytest
import torch
from random_programs import make
from roundlog.executor import Executor, NonFiniteError
from roundlog.microbatch import MicrobatchExecutor
from roundlog.rounding import Follower, Recorder


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int32) if x.dtype == torch.float32 else x


def check_all_cuts(seed: int, directory: Path) -> None:
    made = make(seed)
    try:
        whole = Executor(made.program).run(made.inputs, Recorder(4))
    except NonFiniteError:
        whole = None
    for count in range(2, made.program.batch_size + 1):
        executor = MicrobatchExecutor(made.program, count, directory)
        if whole is None:
            with pytest.raises(NonFiniteError):
                executor.run(made.inputs, Follower.of_nobody(4))
            continue
        result = executor.run(made.inputs, Follower.of_nobody(4))
        assert len(result.states) == len(whole.states)
        for slot, (a, b) in enumerate(zip(whole.states, result.states, strict=True)):
            assert a.shape == b.shape, (seed, count, slot)
            assert torch.equal(bits(a), bits(b)), (seed, count, slot)
        assert bits(torch.tensor(whole.loss)) == bits(torch.tensor(result.loss))


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_programs_give_the_same_bits_in_every_number_of_micro_batches(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        check_all_cuts(seed, tmp_path)
