"""A run that stops, and goes on from a state that is made up, so that a claim about it can be disputed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from roundlog.commitments import state_root, tensor_root
from roundlog.dispute import FabricatedValues, trace_step
from roundlog.execution import Executor, NonFiniteError
from roundlog.program import Node, Program, first_store
from roundlog.rounding.policies import without_log
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.repetition import replay_interval, replay_state
from roundlog.training.run import Run

from tests.engine.tasks import linear_task

STOP = 3


@pytest.fixture(scope="module")
def job() -> Job:
    """Its weights are too large for step 3, the second of its interval."""
    return Job.from_task(
        lambda: replace(linear_task(steps=8, interval=2), schedule=lambda step: 1.0 if step != STOP - 1 else 3e38),
        compare=False,
    )


def test_an_audit_that_does_not_go_on_stops(job: Job, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=f"^step {STOP}: "):
        Auditor(job, tmp_path).run()
    assert not FabricatedValues(tmp_path).needed


def test_everybody_agrees_before_the_stop_and_nobody_after(job: Job, tmp_path: Path) -> None:
    one, other = (
        Auditor(job, tmp_path / name, RunOptions(continue_after_stop=True)).run() for name in ("one", "other")
    )
    assert one.stopped is not None and one.stopped.startswith(f"step {STOP}: ")
    assert [a == b for a, b in zip(one.state_roots, other.state_roots, strict=True)] == [True, False, False, False]
    again = Auditor(job, tmp_path / "one", RunOptions(continue_after_stop=True)).run()
    assert again.state_roots == one.state_roots
    assert again.stopped == "it stopped before this process was started"


@pytest.mark.slow_but("2")
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_killed_audit_goes_on_to_the_same_claims(job: Job, tmp_path: Path, micro_batches: int) -> None:
    whole = Auditor(job, tmp_path / "whole", RunOptions(continue_after_stop=True, micro_batches=micro_batches)).run()
    for kept in (0, 1, 2, 3):
        room = tmp_path / f"kept {kept}"
        shutil.copytree(tmp_path / "whole", room)
        (room / "roots").write_bytes(b"".join(whole.state_roots[:kept]))
        assert (
            Auditor(job, room, RunOptions(continue_after_stop=True, micro_batches=micro_batches)).run().state_roots
            == whole.state_roots
        )


def test_what_is_replayed_and_traced_is_what_was_claimed(job: Job, tmp_path: Path) -> None:
    audit = Auditor(job, tmp_path, RunOptions(continue_after_stop=True)).run()
    run = Run(job, tmp_path, RunOptions(continue_after_stop=True))
    assert isinstance(run.executor, Executor)
    for interval in range(4):
        roots = replay_interval(run, interval)
        assert roots[-1] == audit.state_roots[interval]
        for inside, root in enumerate(roots):
            step = 2 * interval + inside
            before = replay_state(run, step)
            trace = trace_step(
                run.executor, run.inputs(step, before), without_log(job.spec), FabricatedValues(tmp_path)
            )
            assert (trace.stop is not None) == (step == STOP)
            assert state_root(replay_state(run, step + 1)) == root
            half = trace.tree.depth - 1
            states = job.spec.state_count
            depth = (states - 1).bit_length()
            assert trace.tree.node(depth, (1 << half) >> depth) == root


def test_a_state_that_cannot_be_stored_is_made_up_from_there_on(tmp_path: Path) -> None:
    """The second of the stores stops: the first one's value stands."""
    plain = Job.from_task(lambda: linear_task(steps=2, interval=1), compare=False)
    first, nodes = first_store(plain.program), list(plain.program.nodes)
    infinite = Node("constant", (), {"bits": (0x7F800000,)}, nodes[first + 1].type)
    nodes.insert(first, infinite)
    nodes[first + 2] = replace(nodes[first + 2], inputs=(first,))
    program = Program(**{**{f: getattr(plain.program, f) for f in Program.__slots__}, "nodes": tuple(nodes)})
    job = replace(plain, program=program)
    run = Run(job, tmp_path / "it", RunOptions(continue_after_stop=True))
    right = Run(plain, tmp_path / "plain").step(0, list(plain.initial.values()), without_log(plain.spec))
    states = run.step(0, list(job.initial.values()), without_log(job.spec))
    assert run.stopped is not None and run.stopped.operator == first_store(program) + 1
    assert state_root(states[:1]) == state_root(right[:1])
    assert state_root(states[1:2]) != state_root(right[1:2])
    assert isinstance(run.executor, Executor)
    inputs = run.inputs(0, list(job.initial.values()))
    trace = trace_step(run.executor, inputs, without_log(job.spec), FabricatedValues(tmp_path / "it"))
    assert trace.states == [tensor_root(state) for state in states]
    assert trace.operators[first_store(program) :] == trace.states
