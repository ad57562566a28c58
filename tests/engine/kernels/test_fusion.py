"""A fused chain gives the bits that its operators give one by one, and stops where they stop."""

from __future__ import annotations

import pytest
import torch
from roundlog.capture.builder import Builder
from roundlog.definitions import DEFINITIONS, opcodes
from roundlog.execution import Batches, Executor, NonFiniteError
from roundlog.execution.fusion import MAX_GROUP, Group, peak_bytes, plan
from roundlog.program import DType, Program
from roundlog.rounding import Recorder

from tests.engine.kept_jobs import kept_job
from tests.engine.kernels.test_short_tapes import inputs_of, program_of
from tests.engine.oracle.array import words_of

pytestmark = pytest.mark.usefixtures("compiled")


def compare(program: Program, states: list[torch.Tensor]) -> list[torch.Tensor]:
    """The stored values, which have to have the same bits in groups and one by one."""
    executor = Executor(program)
    fused = executor.run(inputs_of(states), Recorder(4)).states
    single = executor.run(inputs_of(states), Recorder(4), lambda index, value: None).states
    assert list(map(words_of, fused)) == list(map(words_of, single))
    return list(fused)


def stops(program: Program, states: list[torch.Tensor]) -> NonFiniteError:
    """The stop, which has to be at the same element in groups and one by one."""
    found = []
    for observe in (lambda index, value: None, None):
        with pytest.raises(NonFiniteError) as caught:
            Executor(program).run(inputs_of(states), Recorder(4), observe)
        found.append(caught.value)
    assert (found[0].operator, found[0].element) == (found[1].operator, found[1].element)
    return found[1]


TAPED = {DType.F32, DType.BF16, DType.BOOL, None}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [(name, each.inputs) for name in opcodes() for each in DEFINITIONS[name].formats if set(each.inputs) <= TAPED],
)
def test_every_operator_that_has_an_instruction_gives_its_own_bits(name: str, kinds: tuple[DType | None, ...]) -> None:
    """A number without an instruction would be computed as if it were another one's."""

    def build(builder: Builder, values: list[int]) -> list[int]:
        a, b = values
        floats, shorts = [a, b, a], [builder.op("to_bf16", a), builder.op("to_bf16", b)]
        given = {DType.BOOL: [builder.op("lt", a, b), builder.op("le", b, a)], DType.BF16: shorts}
        found = builder.op(name, *(given.get(dtype, floats)[i] for i, dtype in enumerate(kinds)))
        if builder.dtype(found) == DType.BF16:
            found = builder.op("to_f32", found)
        if builder.dtype(found) == DType.BOOL:
            found = builder.op("where", found, a, builder.constant(3.0, DType.F32))
        return [found, b]

    states = [
        torch.randn(1000, generator=torch.Generator().manual_seed(slot)).abs() + (slot + 1) / 8 for slot in (0, 1)
    ]
    program = program_of(build, states)
    (group,) = [unit for unit in plan(program) if isinstance(unit, Group)]
    assert name in {program.nodes[index].op for index in group.nodes}
    compare(program, [-states[0] if name in ("neg", "abs", "floor") else states[0], states[1]])


@pytest.mark.slow_cases("gpt_bf16", "convolution")
@pytest.mark.parametrize("name", ["logistic_sgd", "gpt_bf16", "convolution"])
def test_whole_steps_give_the_same_bits_fused_and_one_by_one(name: str) -> None:
    job = kept_job(name)
    executor, batches = Executor(job.program), Batches(job.dataset, job.spec)
    states = list(job.initial.values())
    for number in range(2):
        inputs, recorder = job.inputs(batches, number, states), Recorder(4)
        fused = executor.run(inputs, recorder)
        log = recorder.take()
        single = executor.run(inputs, recorder, lambda index, value: None)
        assert log == recorder.take()
        assert all(torch.equal(a, b) for a, b in zip(fused.states, single.states, strict=True))
        assert fused.loss == single.loss
        states = fused.states


def test_where_a_chain_overflows_the_operator_that_did_is_named() -> None:
    def build(builder: Builder, values: list[int]) -> list[int]:
        x = builder.op("add", values[0], values[1])
        return [builder.op("sub", builder.op("mul", x, x), values[1]), values[1]]

    states = [torch.ones(50, 60), torch.ones(60)]
    program = program_of(build, states)
    states[0][7, 9] = 3e38
    stop = stops(program, states)
    first = program.nodes.index(next(node for node in program.nodes if node.op == "store"))
    assert (stop.operator, stop.element) == (first, 429)
    assert "(mul) gives inf at element 429: lower the learning rate" in str(stop)


def test_an_infinite_mask_passes_through_a_chain() -> None:
    def build(builder: Builder, values: list[int]) -> list[int]:
        never = builder.constant(float("-inf"), DType.F32)
        mask = builder.op("where", builder.op("lt", values[0], builder.constant(0.0, DType.F32)), never, values[0])
        shifted = builder.op("sub", mask, values[1])
        return [builder.op("maximum", shifted, builder.constant(-5.0, DType.F32)), values[1]]

    states = [torch.randn(40, 50), torch.randn(50)]
    assert (compare(program_of(build, states), states)[0] == -5.0).any()


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum", "neg", "abs", "floor", "sqrt"])
def test_a_nan_that_comes_in_goes_through_and_stops_both_ways_at_the_store(name: str) -> None:
    def build(builder: Builder, values: list[int]) -> list[int]:
        unary = name in ("neg", "abs", "floor", "sqrt")
        x = builder.op(name, values[0]) if unary else builder.op(name, values[1], values[0])
        never_less = builder.op("maximum", builder.constant(0.5, DType.F32), builder.op("neg", x))
        return [never_less, values[1]]

    states = [torch.ones(3, 50), torch.ones(50)]
    program = program_of(build, states)
    states[0][1, 7] = torch.nan
    assert "operator 0 (state) has nan at element 57: leave such numbers out" in str(stops(program, states))


@pytest.mark.slow
def test_a_long_chain_is_planned_quickly_and_held_back_in_pieces() -> None:
    """A hostile program may have a million operators: groups have a limit, and planning is linear."""

    def build(builder: Builder, values: list[int]) -> list[int]:
        x = values[0]
        for _ in range(20_000):
            x = builder.op("neg", builder.op("abs", builder.op("add", x, values[0])))
            builder._known.clear()
        return [x]

    groups = [item for item in plan(program_of(build, [torch.ones(4)])) if isinstance(item, Group)]
    assert max(len(group.nodes) for group in groups) == MAX_GROUP

    def halved(builder: Builder, values: list[int]) -> list[int]:
        x = values[0]
        for _ in range(3 * MAX_GROUP):
            x = builder.op("mul", builder.op("add", x, values[0]), builder.constant(0.5, DType.F32))
        return [x]

    compare(program_of(halved, [torch.ones(4)]), [torch.ones(4)])


def test_values_that_a_group_holds_back_are_counted() -> None:
    def build(builder: Builder, values: list[int]) -> list[int]:
        total = values[0]
        for _ in range(40):
            total = builder.op("add", total, builder.uniform((1 << 16,)))
        return [total]

    program = program_of(build, [torch.ones(1 << 16)])
    # All forty inputs of the one group are alive at once.
    assert peak_bytes(program) >= 40 * 4 * (1 << 16)


HIDDEN = {
    "quotient": lambda c, x: c.op("div", c.constant(1.0, DType.F32), x),
    "minimum": lambda c, x: c.op("minimum", x, c.constant(1.0, DType.F32)),
    "comparison": lambda c, x: c.op("to_f32", c.op("lt", c.constant(0.0, DType.F32), x)),
}


@pytest.mark.parametrize("chain", [(), ("neg", "neg"), ("abs", "sqrt"), ("sqrt", "floor")])
@pytest.mark.parametrize("hide", HIDDEN)
def test_an_overflow_that_a_chain_hides_gives_the_same_bits_both_ways(hide: str, chain: tuple[str, ...]) -> None:
    def build(c: Builder, values: list[int]) -> list[int]:
        x = c.op("mul", values[0], values[0])
        for name in chain:
            x = c.op(name, x)
        return [HIDDEN[hide](c, x)]

    states = [torch.ones(3, 900)]
    program = program_of(build, states)
    compare(program, states)
    states[0][1, 70] = 1e30
    compare(program, states)
