"""Products as tensor cores add them, by Triton's kernels: in its interpreter, whose dots are replaced by those of
devices as they could be, the CPU's to the bit; and compiled for devices, as far as that can be seen without one."""

from __future__ import annotations

import re
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from roundlog.definitions.tensor_core import OPERAND_FORMATS
from roundlog.kernels.cuda.tensor_cores import tensor_of, vectors

from tests.engine.kernels.tensor_core_cases import CASES, DEFINED, arithmetic_of, product
from tests.engine.kernels.tensor_core_devices import TensorCores, computing
from tests.engine.kernels.triton_processes import needs_triton

pytestmark = [pytest.mark.slow, needs_triton]

SHORT = [(name, format) for name, format in DEFINED if format != "tf32"]
POSSIBLE = ("as encoded", "none", "normalised")
POISON = 12345.0
"""What a device gives for every sum, to see which ones are left to it. Test sums are others."""


class Poison(TensorCores):
    def dot(self, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.full_like(c, POISON)


def equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """NaN has one pattern here, too."""
    return found.shape == expected.shape and torch.equal(found.view(torch.int32), expected.view(torch.int32))


def by_integers(name: str, format: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    from roundlog.kernels.cuda import tensor_core_kernels as kernels

    with computing(TensorCores.of(name, format)):
        return kernels.segment_sums(a, b, arithmetic_of(name, format), False)


def by_cores(name: str, format: str, a: torch.Tensor, b: torch.Tensor, cores: TensorCores) -> torch.Tensor:
    from roundlog.kernels.cuda import tensor_core_kernels as kernels

    with computing(cores):
        return kernels.segment_sums(a, b, arithmetic_of(name, format), True)


def left(name: str, format: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """bool[segments, M, N]: sums that are left to tensor cores."""
    return by_cores(name, format, a, b, Poison.of(name, format)) == POISON


@pytest.mark.parametrize(("name", "format"), SHORT)
def test_integers_give_the_cpus_bits(interpreter: ProcessPoolExecutor, name: str, format: str) -> None:
    missing = 0
    for number, case in enumerate(CASES.values()):
        a, b = case(format, np.random.default_rng(number), 19, 50, 33)
        expected = product(name, format, a, b)
        assert equal(interpreter.submit(by_integers, name, format, a, b).result(), expected.sums), case.__name__
        missing += len(expected.missing)
    assert missing


@pytest.mark.parametrize(("name", "format"), SHORT)
def test_possible_devices_give_the_cpus_bits(interpreter: ProcessPoolExecutor, name: str, format: str) -> None:
    """Whatever docs/arithmetic.md does not know of a device: such sums are not left to it."""
    some = 0
    for number, case in enumerate(CASES.values()):
        a, b = case(format, np.random.default_rng(number), 18, 48, 17)
        expected = product(name, format, a, b).sums
        for exponents in POSSIBLE:
            cores = TensorCores.of(name, format, exponents=exponents)
            assert equal(interpreter.submit(by_cores, name, format, a, b, cores).result(), expected), case.__name__
        some += int(interpreter.submit(left, name, format, a, b).result().sum())
    assert some > 4 * expected.numel()


def constant(number: float, shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full(shape, number, dtype=dtype)


def is_left(pool: ProcessPoolExecutor, a: torch.Tensor, b: torch.Tensor) -> bool:
    found = pool.submit(left, "hopper", "bf16" if a.dtype == torch.bfloat16 else "f16", a, b).result()
    assert bool(found.all()) == bool(found.any())
    return bool(found.all())


def test_the_ends_of_what_is_left_are_those_that_are_proved(interpreter: ProcessPoolExecutor) -> None:
    shape, other = (4, 40), (40, 4)
    for low, expected in ((-101, True), (-102, False)):
        assert is_left(interpreter, constant(2.0**-50, shape), constant(2.0 ** (low + 50), other)) == expected
    for high, expected in ((109, True), (110, False)):
        assert is_left(interpreter, constant(2.0**50, shape), constant(2.0 ** (high - 50), other)) == expected
    # With a zero in a row, every product has to be above 2^-126 times the largest number of the column.
    a, b = constant(2.0**-101, shape), constant(1.0, other)
    a[:, 3] = 0
    for top, expected in ((2.0**24, True), (2.0**25, False)):
        b[20] = top
        assert is_left(interpreter, a, b) == expected
    # A subnormal operand that does not count has to be truncated to nothing, too.
    a[:, 3] = 2.0**-130
    for least, expected in ((2.0**-100, True), (2.0**-101, False)):
        a[:, :3] = a[:, 4:] = least
        assert is_left(interpreter, a, constant(1.0, other)) == expected
    # One that counts has not; zeros in both are counted by products of numbers that are not.
    a, b = constant(1.0, shape, torch.float16), constant(1.0, other, torch.float16)
    a[:, 3] = 2.0**-20
    assert is_left(interpreter, a, b)
    b[4] = 0
    assert not is_left(interpreter, a, b)
    a[:, 3] = 0
    assert is_left(interpreter, a, b)
    for number in (torch.inf, -torch.inf, torch.nan):
        a[:, 3] = number
        assert not is_left(interpreter, a, b)


@pytest.mark.parametrize(("name", "format"), SHORT)
def test_what_a_device_is_tried_with_is_left_to_it(interpreter: ProcessPoolExecutor, name: str, format: str) -> None:
    shares = {
        test: float(
            interpreter.submit(left, name, format, *(tensor_of(x, format) for x in (a, b))).result().float().mean()
        )
        for test, a, b in vectors(OPERAND_FORMATS[format])
    }
    assert shares.pop("all exponents") < 1 and {*shares.values()} == {1.0}


def _compiled(kernel: str, capability: int, kind: str, along: tuple[str, str], tile: tuple[int, int, int]) -> str:
    """PTX and Triton's last form of a kernel, for the dtype `kind` and strides that are 1, `along`."""
    import triton
    from roundlog.kernels.cuda import tensor_core_kernels as kernels
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    form = {"fraction": 7, "infinite": 255, "least": -126} if kind == "bf16" else {"fraction": 10, "infinite": 31}
    constants = {
        **dict(zip(("high", "wide", "deep"), tile, strict=True)),
        **{"least": -14, "of_segment": 2048, "group": 16, "groups": 8, "many": 16, "square": 16, "kept": 25},
        **{"measured": True, "subnormals": kind != "bf16", **form},
        **dict.fromkeys(along, 1),
    }
    words = f"*{kind}" if kernel == "_multiply" else "*i16"
    types = {
        "a": words,
        "b": words,
        "x": words,
        "out": "*fp32",
        "ends": "*i32",
        "of_rows": "*i32",
        "of_columns": "*i32",
    }
    if kernel == "_emulate":
        types["out"] = "*i32"
    function = getattr(kernels, kernel)
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in function.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, one in enumerate(signature.values()) if one != "constexpr"}
    known = {name: constants[name] for name, one in signature.items() if one == "constexpr"}
    many = {"num_warps": kernels.WARPS, "num_stages": kernels.STAGES} if kernel == "_multiply" else {}
    made = triton.compile(
        ASTSource(function, signature, known, aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"enable_fp_fusion": False, **many},
    )
    assert len(made.asm["cubin"]) > 1000
    # What an L40S has at most.
    assert made.metadata.shared <= 101376
    return str(made.asm["ttgir"]) + "\n// PTX\n" + str(made.asm["ptx"])


LAYOUTS = [("a_term", "b_column"), ("a_term", "b_term"), ("a_row", "b_column")]
"""Of operands as they are stored: both, the right one transposed, the left one transposed."""
TILE = 128, 128, 64


@pytest.mark.parametrize("along", LAYOUTS)
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@pytest.mark.parametrize("capability", [80, 89])
def test_compiled_for_ampere_one_instruction_follows_the_other_in_the_order_of_k(
    compiler: ProcessPoolExecutor, capability: int, kind: str, along: tuple[str, str]
) -> None:
    form, code = compiler.submit(_compiled, "_multiply", capability, kind, along, TILE).result().split("// PTX")
    short = "bf16" if kind == "bf16" else "f16"
    assert {*re.findall(r"\bmma\.[\w.]+", code)} == {f"mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32"}
    # Within an instruction, operands lie as it has them: Triton permutes terms only where a register has other numbers.
    assert {*re.findall(r"dot_op<\{[^}]*kWidth = (\d+)", form)} == {"2"}
    # Newer versions cut dots into those of an instruction's terms; what they read and are added to is followed. Where
    # they do not, instructions with the same sums follow one another, as they stand there.
    places = dict(re.findall(r"(%\w+) = ttg\.memdesc_subslice %\w+\[([\d, ]+)\]", form))
    loaded = dict(re.findall(r"(%\w+) = ttg\.local_load (%\w+)", form))
    dots = re.findall(r"(%\w+) = tt\.dot (%\w+), (%\w+), (%\w+),", form)
    assert len(dots) in (1, 4)
    sums = re.findall(r"mma\.sync\S+\s*\{([^}]*)\}.*\{([^}]*)\};", code)
    assert len(sums) == 64 and all(one == other for one, other in sums if len(dots) == 4)
    if len(dots) == 1:
        return
    assert [one[3] for one in dots[1:]] == [one[0] for one in dots[:-1]]
    for operand, axis in ((1, 1), (2, 0)):
        at = [places[loaded[one[operand]]].split(", ")[axis] for one in dots[1:]]
        assert at == ["16", "32", "48"]
        # The first one is read a turn before, and from the beginning.
        assert dots[0][operand] not in loaded
        assert {places[loaded[one]].split(", ")[axis] for one in loaded if loaded[one] in places} == {*at, "0"}


def _value(code: str, register: str) -> int:
    """What a register holds, if all that is not computed by integers in sight is zero."""
    found = list(re.finditer(rf"^\s*([a-z]+)\.[a-z0-9.]+\s+{re.escape(register)}, ([^;]+);", code, re.MULTILINE))
    if not found:
        return 0
    instruction, arguments = found[-1].groups()
    # Only what stands above: a register that a loop changes is made of itself.
    above = code[: found[-1].start()]
    values = [
        _value(above, one) if one.startswith("%") else int(one) if one.lstrip("-").isdigit() else 0
        for one in arguments.split(", ")
    ]
    if instruction == "bfe":
        return values[0] >> values[1] & ((1 << values[2]) - 1)
    two = {
        "add": lambda a, b: a + b,
        "or": lambda a, b: a | b,
        "and": lambda a, b: a & b,
        "shl": lambda a, b: a << b,
        "shr": lambda a, b: a >> b,
    }
    if instruction in two:
        return two[instruction](*values)
    return values[0] if instruction in ("mov", "cvt") else 0


@pytest.mark.parametrize("along", LAYOUTS)
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_compiled_for_hopper_one_instruction_follows_the_other_in_the_order_of_k(
    compiler: ProcessPoolExecutor, kind: str, along: tuple[str, str]
) -> None:
    code = compiler.submit(_compiled, "_multiply", 90, kind, along, TILE).result().split("// PTX")[1]
    short = "bf16" if kind == "bf16" else "f16"
    instruction = (
        rf"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.{short}\.{short} \{{(.+?)\}}, (%rd\d+), (%rd\d+),"
    )
    found = list(re.finditer(instruction, code))
    assert len(found) == len(re.findall(r"\bwgmma\.mma_async", code)) == 4
    # All are added to the same registers, and read their operands by addresses, in units of 16 bytes.
    assert len({one.group(1) for one in found}) == 1
    for operand, step in ((2, 2 if along[0] == "a_term" else 128), (3, 2 if along[1] == "b_term" else 128)):
        places = [_value(code[: one.start()], one.group(operand)) & 0x3FFF for one in found]
        assert [place - places[0] for place in places] == [0, step, 2 * step, 3 * step]


@pytest.mark.parametrize("kernel", ["_measure", "_emulate"])
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_compiled_for_a_device_integers_stay_integers(compiler: ProcessPoolExecutor, kernel: str, kind: str) -> None:
    code = compiler.submit(_compiled, kernel, 80, kind, ("a_term", "b_column"), TILE).result().split("// PTX")[1]
    floats = {*re.findall(r"\b[a-z]+[\w.]*\.f(?:16|32|64)\b[\w.]*", code)}
    assert floats == ({"cvt.rn.f32.s64"} if kernel == "_emulate" else set())
