"""A fused chain gives the bits that its operators give one by one, and stops where they stop."""

import random

import pytest
import torch
from roundlog.capture.builder import Builder
from roundlog.definitions import DEFINITIONS, opcodes
from roundlog.execution import Batches, Executor, NonFiniteError
from roundlog.execution.fusion import MAX_GROUP, Group, peak_bytes, plan
from roundlog.kernels import machine_code
from roundlog.operators import StepInputs
from roundlog.program import DType, Program, TensorType
from roundlog.rounding import Recorder
from roundlog.training.job import Job

from tests.engine.tasks import TASKS

SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0**-149, -(2.0**-126), 3.4028234663852886e38, 1.5, 1 / 3, 2.0**-75]


@pytest.fixture(autouse=True, params=["interpreted", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way in which chains are played, from the first step on."""
    monkeypatch.setattr(machine_code, "WORTH", 1 << 62 if request.param == "interpreted" else -1)


def step(program: Program, states: list[torch.Tensor]) -> StepInputs:
    return StepInputs(states=states, data=[], schedule=torch.zeros(0), seed=0, step=0, device=torch.device("cpu"))


def program_of(build, shapes: list[tuple[int, ...]]) -> Program:
    """A program with FP32 states of these shapes; `build(builder, values)` gives the next ones, of the same shapes."""
    builder = Builder()
    values = [builder.source_op("state", TensorType(shape, DType.F32), slot=slot) for slot, shape in enumerate(shapes)]
    stores = build(builder, values)
    loss = builder.op("reshape", builder.op("sum", values[0], dims=tuple(range(len(shapes[0])))), shape=())
    names = [f"s{slot}" for slot in range(len(shapes))]
    return builder.finish(loss, stores, states=names, data=[], schedule=[], batch_size=1)


def both_ways(program: Program, states: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    executor = Executor(program)
    fused = executor.run(step(program, states), Recorder(4)).states
    single = executor.run(step(program, states), Recorder(4), lambda index, value: None).states
    return fused, single


def same_bits(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(
        torch.equal(x.contiguous().view(torch.int32), y.contiguous().view(torch.int32))
        for x, y in zip(a, b, strict=True)
    )


def numbers(shape: tuple[int, ...], seed: int, wild: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    if wild:
        x = x * 2.0 ** torch.randint(-60, 40, shape, generator=generator)
        flat = x.reshape(-1)
        spots = torch.randint(0, flat.numel(), (len(SPECIAL),), generator=generator)
        flat[spots] = torch.tensor(SPECIAL)
    return x


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

    program = program_of(build, [(1000,), (1000,)])
    (group,) = [unit for unit in plan(program) if isinstance(unit, Group)]
    assert name in {program.nodes[index].op for index in group.nodes}
    states = [numbers((1000,), slot, wild=False).abs() + (slot + 1) / 8 for slot in (0, 1)]
    fused, single = both_ways(program, [-states[0] if name in ("neg", "abs", "floor") else states[0], states[1]])
    assert same_bits(fused, single)


SHAPES = [
    [(6, 700), (700,), (6, 1), ()],
    [(2, 3, 20, 20), (1, 3, 1, 1), (2, 3, 20, 20), (20,)],
    [(5, 1, 333), (5, 4, 333), (1, 4, 1), (1, 1, 333)],
    [(3000,), (1,), (3000,), ()],
    [(1, 1), (1, 1), (), (1,)],
    [(4, 3, 7), (3, 1), (4, 1, 7), (1, 3, 7)],
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_random_chains_give_the_same_bits(shapes, seed: int) -> None:
    rng = random.Random(seed)

    def build(builder: Builder, values: list[int]) -> list[int]:
        floats, flags = list(values), []
        for _ in range(rng.randint(4, 40)):
            kind = rng.random()
            try:
                if kind < 0.6:
                    name = rng.choice(["add", "sub", "mul", "maximum", "minimum", "div"])
                    a, b = rng.choice(floats), rng.choice(floats)
                    if name == "div":
                        b = builder.op("add", builder.op("abs", b), builder.constant(0.5, DType.F32))
                    floats.append(builder.op(name, a, b))
                elif kind < 0.75:
                    name = rng.choice(["neg", "abs", "floor", "sqrt"])
                    a = rng.choice(floats)
                    floats.append(builder.op(name, builder.op("abs", a) if name == "sqrt" else a))
                elif kind < 0.88 or not flags:
                    flags.append(builder.op(rng.choice(["lt", "le", "eq"]), rng.choice(floats), rng.choice(floats)))
                elif kind < 0.94:
                    flags.append(builder.op("logical_not", rng.choice(flags)))
                    flags.append(builder.op(rng.choice(["logical_and", "logical_or"]), *rng.choices(flags, k=2)))
                else:
                    floats.append(builder.op("where", rng.choice(flags), *rng.choices(floats, k=2)))
                    floats.append(builder.op("to_f32", rng.choice(flags)))
            except ValueError:
                continue  # shapes that do not broadcast
            if rng.random() < 0.1:
                # Something that does not fuse, in the middle.
                x = rng.choice(floats)
                if builder.shape(x):
                    floats.append(builder.op("amax", x, dims=(len(builder.shape(x)) - 1,)))
        largest = {}
        for value in floats:
            largest[builder.shape(value)] = value
        return [largest[shape] for shape in shapes]

    program = program_of(build, shapes)
    for wild in (False, True):
        states = [numbers(shape, seed + slot, wild) for slot, shape in enumerate(shapes)]
        try:
            fused, single = both_ways(program, states)
        except NonFiniteError:
            continue  # both ways stop: the test below compares how
        assert same_bits(fused, single)


@pytest.mark.slow_but("compiled-linear")
@pytest.mark.parametrize("name", TASKS)
def test_whole_steps_give_the_same_bits_fused_and_one_by_one(name: str) -> None:
    job = Job.from_task(lambda: TASKS[name](), compare=False)
    executor, batches = Executor(job.program), Batches(job.dataset, job.spec)
    states = list(job.initial.values())
    logs = []
    for number in range(3):
        inputs = StepInputs(
            states=states,
            data=batches.load(number),
            schedule=job.schedule[number],
            seed=job.spec.seed,
            step=number,
            device=torch.device("cpu"),
        )
        recorder = Recorder(4)
        fused = executor.run(inputs, recorder)
        logs.append(recorder.take())
        single = executor.run(inputs, recorder, lambda index, value: None)
        assert logs[-1] == recorder.take()
        assert all(torch.equal(a, b) for a, b in zip(fused.states, single.states, strict=True))
        assert fused.loss == single.loss
        states = fused.states


def overflowing(builder: Builder, values: list[int]) -> list[int]:
    x = builder.op("add", values[0], values[1])
    x = builder.op("mul", x, x)
    return [builder.op("sub", x, values[1]), values[1]]


def test_where_a_chain_overflows_the_operator_that_did_is_named() -> None:
    program = program_of(overflowing, [(50, 60), (60,)])
    states = [torch.ones(50, 60), torch.ones(60)]
    states[0][7, 9] = 3e38
    places = []
    for observe in (lambda index, value: None, None):
        with pytest.raises(NonFiniteError) as caught:
            Executor(program).run(step(program, states), Recorder(4), observe)
        places.append((caught.value.operator, caught.value.element))
    assert places[0] == places[1] == (program.nodes.index(next(n for n in program.nodes if n.op == "store")), 429)
    assert f"(mul) gives inf at element {7 * 60 + 9}: lower the learning rate" in str(caught.value)


def test_an_infinite_mask_passes_through_a_chain() -> None:
    def build(builder: Builder, values: list[int]) -> list[int]:
        never = builder.constant(float("-inf"), DType.F32)
        mask = builder.op("where", builder.op("lt", values[0], builder.constant(0.0, DType.F32)), never, values[0])
        shifted = builder.op("sub", mask, values[1])
        return [builder.op("maximum", shifted, builder.constant(-5.0, DType.F32)), values[1]]

    program = program_of(build, [(40, 50), (50,)])
    states = [torch.randn(40, 50), torch.randn(50)]
    fused, single = both_ways(program, states)
    assert same_bits(fused, single)
    assert (fused[0] == -5.0).any()


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum", "neg", "abs", "floor", "sqrt"])
def test_a_nan_that_comes_in_goes_through_and_stops_both_ways_at_the_store(name: str) -> None:
    def build(builder: Builder, values: list[int]) -> list[int]:
        unary = name in ("neg", "abs", "floor", "sqrt")
        x = builder.op(name, values[0]) if unary else builder.op(name, values[1], values[0])
        never_less = builder.op("maximum", builder.constant(0.5, DType.F32), builder.op("neg", x))
        return [never_less, values[1]]

    program = program_of(build, [(3, 50), (50,)])
    states = [torch.ones(3, 50), torch.ones(50)]
    states[0][1, 7] = torch.nan
    places = []
    for observe in (lambda index, value: None, None):
        with pytest.raises(NonFiniteError) as caught:
            Executor(program).run(step(program, states), Recorder(4), observe)
        places.append((caught.value.operator, caught.value.element))
    assert places[0] == places[1]
    assert "operator 0 (state) has nan at element 57: leave such numbers out" in str(caught.value)


@pytest.mark.slow
def test_a_long_chain_is_planned_quickly_and_held_back_in_pieces() -> None:
    """A hostile program may have a million operators: groups have a limit, and planning is linear."""

    def build(builder: Builder, values: list[int]) -> list[int]:
        x = values[0]
        for _ in range(20_000):
            x = builder.op("neg", builder.op("abs", builder.op("add", x, values[0])))
            builder._known.clear()
        return [x]

    program = program_of(build, [(4,)])
    groups = [item for item in plan(program) if isinstance(item, Group)]
    assert max(len(group.nodes) for group in groups) == MAX_GROUP
    fused, single = both_ways(program_of(lambda b, v: build_short(b, v), [(4,)]), [torch.ones(4)])
    assert same_bits(fused, single)


def build_short(builder: Builder, values: list[int]) -> list[int]:
    x = values[0]
    for _ in range(3 * MAX_GROUP):
        x = builder.op("mul", builder.op("add", x, values[0]), builder.constant(0.5, DType.F32))
    return [x]


def test_values_that_a_group_holds_back_are_counted() -> None:
    def build(builder: Builder, values: list[int]) -> list[int]:
        total = values[0]
        for _ in range(40):
            total = builder.op("add", total, builder.uniform((1 << 16,)))
        return [total]

    program = program_of(build, [(1 << 16,)])
    # All forty inputs of the one group are alive at once.
    assert peak_bytes(program) >= 40 * 4 * (1 << 16)


def _hidden(c: Builder, x: int) -> int:
    """1 / x: where x is infinite, nothing of that is left."""
    one = c.source_op("constant", TensorType((), DType.F32), bits=(0x3F800000,))
    return c.op("div", one, x)


@pytest.mark.parametrize(
    "hide",
    [
        _hidden,
        lambda c, x: c.op("minimum", x, c.source_op("constant", TensorType((), DType.F32), bits=(0x3F800000,))),
        lambda c, x: c.op("to_f32", c.op("lt", c.source_op("constant", TensorType((), DType.F32), bits=(0,)), x)),
    ],
)
@pytest.mark.parametrize("chain", [(), ("neg", "neg"), ("abs", "sqrt"), ("sqrt", "floor")])
def test_an_overflow_that_a_chain_hides_gives_the_same_bits_both_ways(hide, chain) -> None:
    def build(c: Builder, values: list[int]) -> list[int]:
        x = c.op("mul", values[0], values[0])
        for name in chain:
            x = c.op(name, x)
        return [hide(c, x)]

    program = program_of(build, [(3, 900)])
    states = [torch.ones(3, 900)]
    assert same_bits(*both_ways(program, states))
    states[0][1, 70] = 1e30
    assert same_bits(*both_ways(program, states))
