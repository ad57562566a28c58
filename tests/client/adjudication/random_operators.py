"""Operators that no program has, but that a descriptor may describe, and tensors of numbers at the edges of their type.

Descriptors are drawn so that reads land inside often enough, not always."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from random import Random

from roundlog.adjudication.adjudicate import DisputedStep, encode
from roundlog.definitions import FLOATS, code_names, signatures
from roundlog.descriptors import Descriptor, DescriptorError, Family, Input, Row
from roundlog.descriptors.descriptor import REDUCTIONS, check_descriptor
from roundlog.program import DType, Stored

from tests.client.adjudication.contract_answers import STEPS, Memory, tree_of

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL

DTYPES = list(DType)

EXPONENTS = (0, 0, 1, 2, 24, 101, 102, 103, 104, 125, 126, 127, 127, 128, 129, 149, 150, 151, 252, 253, 254)
FRACTIONS = (0, 0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF)
MAX_WORK = 2000
"""Elements of a tensor, and terms of all elements together."""
INTEGERS = (0, 0, 1, -1, 2, 3, 2**24 + 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1)


def number(rng: Random, dtype: DType = F32) -> int:
    """A finite number of a dtype's format that has to do with a corner, by its bits."""
    format = dtype.number_format()
    assert format is not None
    bits, largest = format.fraction_bits, format.infinity >> format.fraction_bits
    # FP32's corners, or those of the same distance from the ends and the middle.
    exponent = rng.choice(EXPONENTS) if rng.random() < 0.8 else rng.randrange(255)
    exponent = exponent if largest == 255 else min(exponent, max(1, exponent - 112), largest - 1)
    fraction = rng.choice(FRACTIONS) >> (23 - bits) if rng.random() < 0.6 else rng.randrange(1 << bits)
    if rng.random() < 0.2:
        fraction &= 3
    return rng.randrange(2) * format.sign | exponent << bits | fraction


def item(rng: Random, dtype: DType, spoilt: float, labels: int) -> int:
    if dtype == BOOL:
        return rng.randrange(2)
    if dtype == I64:
        return rng.randrange(labels) if rng.random() < 0.7 else rng.choice(INTEGERS)
    if rng.random() < spoilt:
        format = dtype.number_format()
        assert format is not None
        infinity, sign = format.infinity, format.sign
        return rng.choice([infinity, infinity | sign, format.nan, infinity + 1, 2 * sign - 1])
    return number(rng, dtype)


def tensor(rng: Random, dtype: DType, count: int, spoilt: float, labels: int) -> bytes:
    # Few different numbers, so that sums cancel and extremes have equals.
    pool = [item(rng, dtype, spoilt, labels) for _ in range(rng.choice([2, 5, 40]))]
    if format := dtype.number_format():
        pool += [bits ^ format.sign for bits in pool if rng.random() < 0.5]
    return b"".join(encode(dtype, rng.choice(pool)) for _ in range(count))


def sizes(rng: Random, most: int, large: bool) -> tuple[int, ...]:
    drawn = [rng.choice([1, 2, 3, 4, 5]) for _ in range(rng.randrange(most + 1))]
    if drawn and large:
        drawn[rng.randrange(len(drawn))] = rng.choice([33, 120, 257])
    if drawn and rng.random() < 0.03:
        drawn[rng.randrange(len(drawn))] = 0
    return tuple(drawn)


def row(rng: Random, axes: tuple[int, ...], size: int) -> Row:
    """A coordinate that is inside most of the time."""
    coefficients = [0] * len(axes)
    for axis in rng.sample(range(len(axes)), min(len(axes), rng.choice([0, 1, 1, 2]))):
        coefficients[axis] = rng.choice([1, 1, 1, 2, 3, -1, -2])
    reach = [c * max(n - 1, 0) for c, n in zip(coefficients, axes, strict=True)]
    low = sum(min(r, 0) for r in reach)
    divisor = rng.choice([1, 1, 1, 2, 3])
    offset = -low + rng.choice([0, 0, 0, 0, 1, -1, divisor])
    if rng.random() < 0.02:
        offset = rng.choice([2**62, -(2**62), size])
    return Row(offset, tuple(coefficients), divisor)


def view(rng: Random, axes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[Row, ...]]:
    shape, rows = [], []
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        drawn = row(rng, axes, 9)
        reach = sum(abs(c) * max(n - 1, 0) for c, n in zip(drawn.coefficients, axes, strict=True)) // drawn.divisor
        shape.append(max(1, reach + rng.choice([1, 1, 1, 2, 0])))
        rows.append(drawn)
    return tuple(shape), tuple(rows)


def operands(rng: Random, dtypes: list[DType], axes: tuple[int, ...]) -> tuple[Input, ...]:
    """Inputs of distinct values, or of one value twice."""
    drawn: list[Input] = []
    for position, dtype in enumerate(dtypes):
        shape, rows = view(rng, axes)
        value = 10 + position
        same = [other for other in drawn if other.dtype == dtype]
        if same and rng.random() < 0.3:
            # A value is of one size, however it is looked at.
            other = rng.choice(same)
            value, shape = other.value, other.view
            rows = tuple(row(rng, axes, size) for size in shape)
        drawn.append(Input(value, dtype, shape, rows))
    return tuple(drawn)


def descriptor(rng: Random, family: Family) -> Descriptor:
    """A descriptor of the family, sound as a rule."""
    large = rng.random() < 0.3
    iteration, dtype, code, parameters = sizes(rng, 3, large), F32, 0, ()
    reduction: tuple[int, ...] = ()
    if family in REDUCTIONS:
        iteration, reduction = sizes(rng, 2, False), sizes(rng, 3, large)
    axes = iteration + reduction
    inputs: tuple[Input, ...] = ()
    segment = 0
    if family == Family.COPY:
        dtype = rng.choice(DTYPES)
        code = rng.randrange(2) if dtype.is_float else 0
        inputs = operands(rng, [dtype] * rng.choice([1, 2, 3, 7]), axes)
    elif family == Family.GATHER:
        dtype = rng.choice(DTYPES)
        (x,), (index,) = operands(rng, [dtype], axes), operands(rng, [I64], axes)
        index = replace(index, value=11)
        size, zero = rng.randrange(1, 6), Row(0, (0,) * len(axes))
        axis = rng.randrange(len(x.view) + 1)
        x = Input(x.value, dtype, (*x.view[:axis], size, *x.view[axis:]), (*x.rows[:axis], zero, *x.rows[axis:]))
        inputs, parameters = (x, index), (axis,)
    elif family == Family.MAP:
        code = rng.choice([code for code, _ in sorted(code_names(family))])
        signature = rng.choice(signatures(family, code))
        dtype = signature.output or rng.choice(DTYPES)
        inputs = operands(rng, [one or dtype for one in signature.inputs], axes)
    elif family == Family.FUNCTION:
        code, dtype = rng.choice([code for code, _ in code_names(family)]), rng.choice(FLOATS)
        inputs = operands(rng, [dtype], axes)
    elif family in REDUCTIONS:
        segment = rng.choice([1, 2, 4, 64, 4096])
        dtype = rng.choice(FLOATS)
        if family == Family.SUM:
            inputs = operands(rng, [dtype] * rng.choice([1, 2]), axes)
        elif family == Family.SELECTED_SUM:
            inputs = operands(rng, [dtype, I64], axes)
            parameters = (
                rng.choice([0, -1, 2]),
                1,
                *rng.choices([0, 1, 1, 2], k=len(iteration)),
                *[0] * len(reduction),
            )
        elif family == Family.CHAIN:
            code, segment = rng.randrange(3), rng.choice([16, 16, 64, 2048, 8])
            dtype = DType.F16 if code == 2 else rng.choice([DType.BF16, DType.F16])
            inputs = operands(rng, [dtype, dtype], axes)
        elif family in (Family.EXTREME, Family.ARGMAX):
            inputs = operands(rng, [dtype], axes)
            code = rng.randrange(2) if family == Family.EXTREME else 0
            if family == Family.ARGMAX:
                dtype = I64
                parameters = (rng.choice([0, 5, -(2**62)]), 1, *rng.choices([0, 1, -1, 7, 2**30], k=len(axes)))
        else:
            dtype = I64 if family == Family.INTEGER_SUM else BOOL
            inputs = operands(rng, [dtype], axes)
    else:
        dtype, parameters = load(rng, family, prod(iteration))
        if family == Family.DATA and dtype == I64:
            code = rng.choice(list(Stored))
    return Descriptor(
        family=family,
        code=code,
        dtype=dtype,
        segment=segment,
        iteration=iteration,
        reduction=reduction,
        inputs=inputs,
        parameters=parameters,
        root=b"r" * 32 if family == Family.CONSTANT and not parameters else bytes(32),
    )


def sound(rng: Random, family: Family) -> Descriptor:
    """One that the engine could have written, with elements, and not too many."""
    while True:
        drawn = descriptor(rng, family)
        try:
            check_descriptor(drawn)
        except DescriptorError:
            continue
        if (
            drawn.elements
            and drawn.elements * drawn.terms <= MAX_WORK
            and all(i.elements <= MAX_WORK for i in drawn.inputs)
        ):
            return drawn


def load(rng: Random, family: Family, elements: int) -> tuple[DType, tuple[int, ...]]:
    dtype = rng.choice(DTYPES)
    if family == Family.STATE:
        return dtype, (rng.randrange(3),)
    if family == Family.DATA:
        items = rng.choice([n for n in (1, 2, 3, 4, 5, elements) if n and elements % n == 0] or [1])
        fields = rng.randrange(1, 4)
        # Windows that overlap, rows behind each other, and gaps that are longer than a chunk.
        return dtype, (rng.randrange(fields), fields, items, rng.choice([0, 1, items, items, items + 1, items + 700]))
    if family == Family.CONSTANT:
        low, high = {I64: (-(1 << 63), 1 << 63), BOOL: (0, 2)}.get(dtype, (0, 1 << 8 * dtype.itemsize))
        count = 1 if (elements > 32 and rng.random() < 0.5) or elements < 2 else elements if elements <= 32 else 0
        return dtype, tuple(rng.randrange(low, high) for _ in range(count))
    if family == Family.IOTA:
        return I64, (rng.choice([0, -5, 2**63 - 1, -(2**63)]), 0) if rng.random() < 0.3 else (
            rng.choice(INTEGERS) // 2,
            -7,
        )
    if family == Family.UNIFORM:
        return F32, (rng.choice([0, 1, 2**32 - 1, rng.randrange(1 << 32)]),)
    columns = rng.choice([1, 3, 64])
    return F32, (rng.randrange(columns), columns)


def case(rng: Random, family: Family) -> tuple[Descriptor, DisputedStep, Memory]:
    """An operator that has an element, and everything that it may read."""
    made = sound(rng, family)
    spoilt = rng.choice([0, 0, 0.05, 0.3])
    values = {i.value: tensor(rng, i.dtype, i.elements, spoilt, 4) for i in made.inputs}
    step = DisputedStep(
        step=rng.randrange(STEPS),
        seed=rng.choice([0, 2**64 - 1, rng.randrange(2**64)]),
        batch_size=rng.randrange(1, 9),
        data_rows=rng.randrange(1, 20),
        rounding_bits=rng.choice([32, 32, 31, 27, 24, 23]),
    )
    own = tensor(rng, made.dtype, made.elements, spoilt, 4)
    states = [tensor(rng, F32, 3, 0, 4) for _ in range(3)]
    if family == Family.STATE:
        states[made.parameters[0]] = own
    if made.root != bytes(32):
        made = replace(made, root=tree_of(own).root)
    fields = [b""]
    if family == Family.DATA:
        # Any bytes are numbers of any kind, as they are stored.
        field, count, items, stride = made.parameters
        width = Stored(made.code).width(made.dtype)
        fields = [rng.randbytes(rng.randrange(9)) for _ in range(count)]
        fields[field] = rng.randbytes(((step.data_rows - 1) * stride + items) * width)
        if made.dtype == BOOL:
            fields[field] = bytes(byte & 1 for byte in fields[field])
    memory = Memory(
        values=values,
        states=states,
        fields=fields,
        schedule=tensor(rng, F32, STEPS * made.parameters[1], spoilt, 4) if family == Family.SCHEDULE else bytes(4),
        constant=own,
    )
    return made, step, memory
