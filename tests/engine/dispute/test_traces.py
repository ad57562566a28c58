"""The tree of level OPERATOR, of steps that have a result and of steps that have none."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
import torch
from roundlog.adjudication.adjudicate import DisputedStep, NoAnswer, adjudicate, decode
from roundlog.adjudication.openings import Material, needed
from roundlog.commitments import CHUNK_SIZE, PAD, depth_of, leaf_hash, node_hash, state_root, tensor_bytes, tensor_root
from roundlog.descriptors import describe
from roundlog.dispute import FabricatedValues, StepTrace, operators_half, outputs_of, trace_step, trace_tree
from roundlog.dispute.step_trace import claimed_tree, half_of, right_bytes
from roundlog.execution import Executor
from roundlog.number_format import FLOAT32, narrow_float32
from roundlog.operators import StepInputs
from roundlog.program import DType, Program, TensorType, first_store
from roundlog.rounding import Follower

from tests.engine.adjudication.test_stops import hostile


def trace(program: Program, inputs: StepInputs, fabricated: FabricatedValues) -> StepTrace:
    return trace_step(Executor(program), inputs, Follower.without_log(4), fabricated)


def outputs(program: Program, inputs: StepInputs) -> dict[int, torch.Tensor]:
    return outputs_of(Executor(program), inputs, Follower.without_log(4), range(len(program.nodes)))


@pytest.mark.parametrize("operators", [1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize("states", [1, 2, 3, 5, 9])
def test_the_two_halves_stand_where_the_contract_looks_for_them(operators: int, states: int) -> None:
    outputs, slots = (
        [sha256(b"%s %d" % (what, i)).digest() for i in range(n)] for what, n in ((b"o", operators), (b"s", states))
    )
    half = 1 << max((operators - 1).bit_length(), (states - 1).bit_length())
    assert half_of(operators, states) == half
    tree = trace_tree(outputs, slots)
    assert tree.count == half + states and 1 << tree.depth == 2 * half
    leaves = [*map(leaf_hash, outputs), *[PAD] * (half - operators), *map(leaf_hash, slots), *[PAD] * (half - states)]
    assert [tree.node(0, i) for i in range(2 * half)] == leaves
    row = leaves
    while len(row) > 2:
        row = [node_hash(row[i], row[i + 1]) for i in range(0, len(row), 2)]
    assert row[0] == operators_half(tree) and tree.root == node_hash(*row)
    # The right half is the state's own tree, below PAD.
    depth = depth_of(states)
    own = leaves[half : half + (1 << depth)]
    while len(own) > 1:
        own = [node_hash(own[i], own[i + 1]) for i in range(0, len(own), 2)]
    assert tree.node(depth, half >> depth) == own[0]


def claimed_states(program: Program, found: StepTrace) -> list[bytes]:
    """Roots of the state by a copy of the operators' half of the trace."""
    return found.operators[first_store(program) :]


def test_a_step_that_has_a_result_is_traced_as_it_is(secret: FabricatedValues) -> None:
    traced = 0
    for seed in range(30):
        program, inputs = hostile(seed)
        found = trace(program, inputs, secret)
        if found.stop is not None:
            continue
        traced += 1
        states = Executor(program).run(inputs, Follower.without_log(4)).states
        assert found.states == claimed_states(program, found) == [tensor_root(state) for state in states]
        computed = outputs(program, inputs)
        assert found.operators == [tensor_root(computed[q]) for q in range(len(program.nodes))]
        assert state_root(states) == trace_tree([b"x" * 32], found.states).node(
            depth_of(len(states)), half_of(1, len(states)) >> depth_of(len(states))
        )
    assert traced > 1


@pytest.mark.slow
def test_a_step_that_stops_is_right_before_it_does_and_nobody_elses_after(
    secret: FabricatedValues, tmp_path: Path
) -> None:
    """For any claim of an opponent, the first difference is one in which the opponent is provably wrong."""
    another = FabricatedValues(tmp_path)
    stopped = []
    for seed in range(80):
        program, inputs = hostile(seed)
        found = trace(program, inputs, secret)
        if found.stop is None:
            continue
        q, first = found.stop.operator, first_store(program)
        stopped.append(program.nodes[q].op)
        assert len(found.operators) == len(program.nodes)
        computed = outputs(program, inputs)
        assert sorted(computed) == list(range(q + 1))
        assert found.operators[:q] == [tensor_root(computed[p]) for p in range(q)]
        # A copy of the operators' half stores what this side claims of the state, and nothing else.
        assert found.states == claimed_states(program, found)
        # Up to the chunk of the first bad element the output is right, from there on it is a secret.
        material = Material.of(program, q, values=computed, states=[], dataset=[], schedule=torch.zeros(0))
        step = DisputedStep(step=inputs.step, seed=inputs.seed, batch_size=program.batch_size, data_rows=1)
        kind = program.nodes[q].type
        right, size = bytes(right_bytes(found.stop, computed[q])), kind.dtype.itemsize
        assert len(right) == found.stop.element * size
        for element in range(0, found.stop.element, 37):
            bits = decode(kind.dtype, right[element * size : (element + 1) * size])
            assert adjudicate(describe(program, q), element, step, material) == bits
        assert adjudicate(describe(program, q), found.stop.element, step, material) is NoAnswer.NO_VALUE
        # The tree of the output is right before the chunk of that element, and a secret from there on.
        trees = [claimed_tree(program, FLOAT32, inputs.step, found.stop, computed[q], one) for one in (secret, another)]
        assert trees[0].root == found.operators[q] and trees[0].count == -(-kind.nbytes // CHUNK_SIZE)
        chunk = len(right) // CHUNK_SIZE
        for i in range(trees[0].count):
            hashes = [tree.node(0, i) for tree in trees]
            if i < chunk:
                assert hashes == [leaf_hash(right[i * CHUNK_SIZE : (i + 1) * CHUNK_SIZE])] * 2
            else:
                assert hashes[0] != hashes[1]
        other = trace(program, inputs, another)
        assert [a == b for a, b in zip(found.operators, other.operators, strict=True)][: q + 1] == [True] * q + [False]
        same = [a == b for a, b in zip(found.states, other.states, strict=True)]
        assert all(same[: max(0, q - first)]) and not all(same)
        assert trace(program, inputs, secret).tree.root == found.tree.root
        assert set(needed(program, q)) <= set(computed)
    assert {"take", "loss", "store"} <= set(stopped)


def test_what_is_made_up_is_on_disk_before_it_is_used_and_the_same_ever_after(tmp_path: Path) -> None:
    assert not FabricatedValues(tmp_path).needed
    first = FabricatedValues(tmp_path).data(32, "root", 1)
    assert FabricatedValues(tmp_path).needed and len((tmp_path / "fabricated.key").read_bytes()) == 32
    assert FabricatedValues(tmp_path).data(32, "root", 1) == first
    assert FabricatedValues(tmp_path).data(32, "root", 2) != first != FabricatedValues(tmp_path).data(32, "root", "1")
    (tmp_path / "other").mkdir()
    assert FabricatedValues(tmp_path / "other").data(32, "root", 1) != first
    (tmp_path / "fabricated.key").write_bytes(b"short")
    with pytest.raises(ValueError, match="is not a secret of 32 bytes"):
        FabricatedValues(tmp_path).data(1, "x")


@pytest.mark.parametrize("bits", [23, 27, 32])
def test_made_up_tensors_are_finite_numbers_of_the_format(bits: int, secret: FabricatedValues) -> None:
    x = secret.tensor(TensorType((50, 7), DType.F32), narrow_float32(bits), "x")
    words = x.view(torch.int32)
    assert x.isfinite().all() and not (words & ((1 << (32 - bits)) - 1)).any() and x.unique().numel() > 300
    flags = secret.tensor(TensorType((99,), DType.BOOL), bits, "x")
    assert set(bytes(tensor_bytes(flags))) == {0, 1}
    assert secret.tensor(TensorType((3,), DType.I64), bits, "x").dtype == torch.int64
    assert secret.tensor(TensorType((0, 3), DType.F32), narrow_float32(bits), "x").shape == (0, 3)
