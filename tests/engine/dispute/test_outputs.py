"""The outputs of a disputed step on disk: what was written is read, and nothing stays behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest
import torch
from roundlog.commitments import tensor_root
from roundlog.dispute import FabricatedValues, OutputsOnDisk, SomeOutputs, trace_step
from roundlog.execution import Executor
from roundlog.program import Program
from roundlog.rounding import Follower

from tests.engine.microbatch.random_programs import make


@pytest.mark.parametrize("seed", range(6))
def test_outputs_of_random_programs_come_back_bit_for_bit(seed: int, tmp_path: Path) -> None:
    made = make(seed, 25)
    kept = OutputsOnDisk(made.program, tmp_path)
    traced = trace_step(
        Executor(made.program), made.inputs, Follower.without_log(4), FabricatedValues(tmp_path), outputs=kept
    )
    order = list(kept)
    Random(seed).shuffle(order)
    for q in order:
        kind = made.program.nodes[q].type
        assert (kept[q].dtype, tuple(kept[q].shape)) == (kind.dtype.torch_dtype, tuple(kind.shape))
        stopped_here = traced.stop is not None and traced.stop.operator == q
        assert stopped_here or tensor_root(kept[q]) == traced.operators[q]
    assert len(kept) == (len(made.program.nodes) if traced.stop is None else traced.stop.operator + 1)


def program() -> Program:
    return make(0, 25).program


def test_an_output_that_was_not_kept_is_none(tmp_path: Path) -> None:
    kept = OutputsOnDisk(program(), tmp_path)
    with pytest.raises(KeyError):
        kept[0]
    some = SomeOutputs([1])
    some[0] = some[1] = torch.zeros(3)
    assert list(some) == [1]


def test_the_file_has_no_name_and_takes_no_room_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = OutputsOnDisk(program(), tmp_path)
    kept[0] = torch.zeros(program().nodes[0].type.shape, dtype=program().nodes[0].type.dtype.torch_dtype)
    assert list(tmp_path.iterdir()) == []
    size = sum(node.type.nbytes for node in program().nodes)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 2 * size - 1))
    with pytest.raises(OSError, match="No space left"):
        OutputsOnDisk(program(), tmp_path)
