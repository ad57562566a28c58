"""Random programs: how they are cut into micro-batches, what an observer sees of them, and the memory they take."""

import shutil
from pathlib import Path

import pytest
from roundlog.commitments import tensor_root
from roundlog.definitions import DEFINITIONS, InputReads
from roundlog.execution import Executor, StepExecutor, slicing
from roundlog.execution.executor import CheckedProgram, RunningStep
from roundlog.execution.microbatch import MicrobatchExecutor
from roundlog.execution.microbatch.analysis import analyse
from roundlog.number_format import FLOAT32
from roundlog.program import AliveMemory
from roundlog.rounding import Follower

from tests.engine.microbatch.random_programs import Made, make, make_mixed

pytestmark = pytest.mark.slow


def roots_of(executor: StepExecutor, made: Made) -> list[bytes]:
    """Roots of all outputs that an observer sees."""
    roots: list[bytes] = []
    executor.run(made.inputs, Follower.without_log(4), lambda _, output: roots.append(tensor_root(output)))
    return roots


def test_outputs_are_observed_in_as_many_executions_as_the_disk_needs(tmp_path: Path, monkeypatch) -> None:
    made, executions, run_all = make_mixed(0), [], MicrobatchExecutor._all
    monkeypatch.setattr(MicrobatchExecutor, "_all", lambda *given: executions.append(1) or run_all(*given))
    free = 2 * sum(node.type.nbytes for node in made.program.nodes) // 5
    monkeypatch.setattr(shutil, "disk_usage", lambda directory: shutil._ntuple_diskusage(10 * free, 0, free))
    expected = roots_of(Executor(made.program), made)
    assert roots_of(MicrobatchExecutor(made.program, 2, tmp_path), made) == expected
    assert len(executions) >= 5


def test_the_random_programs_cut_every_operator_that_has_a_rule_and_wait_for_sums() -> None:
    """Else the tests above would be vacuous."""
    sliced: set[str] = set()
    stages: set[int] = set()
    for seed in range(60):
        program = make(seed).program
        found = analyse(program, 2)
        sliced.update(node.op for node, layout in zip(program.nodes, found.layouts, strict=True) if layout)
        stages.add(found.last)
    ruled = {name for name, one in DEFINITIONS.items() if one.reads in (InputReads.OWN_RULE, InputReads.LINE)}
    assert sliced >= ruled | {"expand", "where"}
    assert {1, 2, 3} <= stages


def test_the_rules_are_those_of_operators_that_no_kind_of_reads_describes() -> None:
    assert set(slicing.RULES) == {name for name, one in DEFINITIONS.items() if one.reads is InputReads.OWN_RULE}


def test_memory_that_is_counted_is_at_least_what_is_kept() -> None:
    """Views have no memory of their own, and keep all of what they show."""
    tight = 0
    for seed in range(60):
        made = make_mixed(seed)
        nodes, last_uses, counted = made.program.nodes, made.program.last_uses(), AliveMemory(made.program)
        running = RunningStep(CheckedProgram(made.program, FLOAT32), made.inputs, Follower.without_log(4))
        running.stops = False
        of_states = {x.untyped_storage().data_ptr() for x in made.inputs.states}
        for index in range(len(nodes)):
            running.compute(index)
            counted.make(index)
            memories = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in running.values.values()}
            kept = sum(size for place, size in memories.items() if place not in of_states)
            assert kept <= counted.alive, (seed, index, nodes[index].op)
            tight += kept == counted.alive
            running.forget(last_uses.get(index, []))
            counted.release(last_uses.get(index, []))
    assert tight > 200
