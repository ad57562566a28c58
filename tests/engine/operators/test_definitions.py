"""What has to agree with the definitions does, and a new operator needs its definition, a kernel and a reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from roundlog.adjudication import binary32, fixed_point
from roundlog.adjudication.adjudicate import DisputedStep, adjudicate
from roundlog.arithmetic import round_signed
from roundlog.capture.builder import Builder
from roundlog.definitions import (
    DEFINITIONS,
    Family,
    InputReads,
    OperatorDefinition,
    OperatorKind,
    Signature,
    code_names,
    definition,
    of_family,
    opcodes,
    tensor_operators,
)
from roundlog.descriptors import describe, encode_descriptor
from roundlog.descriptors.descriptor import DTYPE_CODES
from roundlog.execution import Executor
from roundlog.execution.microbatch import MicrobatchExecutor
from roundlog.execution.microbatch.analysis import analyse
from roundlog.kernels import digest
from roundlog.number_format import narrow_float32
from roundlog.operators import (
    REGISTRY,
    Direct,
    Inexact,
    Source,
    StepInputs,
    compute_narrow,
    elementwise,
)
from roundlog.operators.elementwise import Elementwise
from roundlog.operators.registry import enter
from roundlog.program import DType, Program, TensorType
from roundlog.rounding import Recorder

from tests.engine.adjudication.adjudication_cases import Bits

ROOT = Path(__file__).resolve().parents[3]
CONTRACTS = ROOT / "contracts" / "src"


def members(path: str, name: str) -> list[str]:
    """Members of an enum of Solidity, in order."""
    source = (CONTRACTS / path).read_text()
    (body,) = re.findall(rf"^enum {name} \{{(.*?)^\}}", source, re.DOTALL | re.MULTILINE)
    return re.findall(r"^ *(\w+),?$", re.sub(r"//.*", "", body), re.MULTILINE)


def test_the_contracts_enums_are_those_of_the_table() -> None:
    scalars, functions = dict(code_names(Family.MAP)), dict(code_names(Family.FUNCTION))
    assert members("adjudication/Scalars.sol", "Scalar") == [scalars[code] for code in range(len(scalars))]
    names = [functions[code].upper() for code in range(len(functions))]
    assert members("arithmetic/Elementary.sol", "Function") == names
    assert members("adjudication/Descriptor.sol", "Family") == [family.name for family in Family]
    assert members("adjudication/Descriptor.sol", "DType") == [dtype.name for dtype in DTYPE_CODES]
    assert list(DTYPE_CODES.values()) == list(range(len(DTYPE_CODES)))


def test_the_protocols_list_of_codes_is_that_of_the_table() -> None:
    text = " ".join((ROOT / "docs" / "protocol.md").read_text().split())
    (maps,), (functions,) = (re.findall(rf"Codes of {name}: (.*?)\.(?: |$)", text) for name in ("MAP", "FUNCTION"))
    found, prefix = [], ""
    for part in re.split(r"[;,] (?=`|\d)", re.sub(r" \([^)]*\)", "", maps)):
        given, code, name = re.fullmatch(r"(?:`(\w+)` )?(\d+) (\w+)", part).groups()
        prefix = given or ("" if int(code) >= 27 else prefix)
        found.append((int(code), prefix + name))
    assert found == sorted(set(code_names(Family.MAP)))
    assert [(int(code), name) for code, name in re.findall(r"(\d+) (\w+)", functions)] == sorted(
        set(code_names(Family.FUNCTION))
    )


def test_every_number_is_given_once() -> None:
    for family in (Family.MAP, Family.FUNCTION, Family.EXTREME):
        # One name a number, whatever the formats of the numbers.
        names = {(each.code, one.code_name(each)) for one in of_family(family) for each in one.formats}
        assert sorted(code for code, _ in names) == list(range(len(names))), family
    assert sorted(opcodes().values()) == list(range(len(opcodes())))
    assert {one.family for one in DEFINITIONS.values()} == set(Family)
    groups = [group for module in (definition, tensor_operators) for group in vars(module).values()]
    members_of = [one for group in groups if isinstance(group, tuple) for one in group]
    rows = [one for one in members_of if isinstance(one, OperatorDefinition)]
    assert len(rows) == len(DEFINITIONS)
    for one in DEFINITIONS.values():
        assert {len(each.inputs) for each in one.formats} == {one.arity}


def test_kernels_and_reference_compute_what_is_defined() -> None:
    assert set(REGISTRY) == set(DEFINITIONS) == {one.name for one in DEFINITIONS.values()}
    classes = {OperatorKind.SOURCE: Source, OperatorKind.INEXACT: Inexact}
    for name, one in DEFINITIONS.items():
        assert isinstance(REGISTRY[name], classes.get(one.kind, Direct)), name
        assert (one.kind is OperatorKind.INEXACT) == bool(one.relative_error or one.bound), name
    assert set(elementwise.KERNELS) == {one.name for one in of_family(Family.MAP)}
    assert set(elementwise.FUNCTION_KERNELS) == {one.name for one in of_family(Family.FUNCTION)}
    assert set(binary32.SCALARS) == {name for _, name in code_names(Family.MAP)}
    assert set(fixed_point._FUNCTIONS) == {one.name for one in of_family(Family.FUNCTION)}


def test_compiled_loops_are_made_anew_when_the_numbers_of_instructions_change(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest([])
    monkeypatch.delitem(DEFINITIONS, "where")
    assert digest([]) != before


TOY = OperatorDefinition(
    name="toy",
    meaning="toy(a, b): a if a > b or b is NaN, else b, FP32.",
    kind=OperatorKind.EXACT,
    family=Family.MAP,
    formats=(Signature((DType.F32, DType.F32), DType.F32, len(dict(code_names(Family.MAP)))),),
    reads=InputReads.PLACE,
    selects=True,
)


def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where((a > b) | (b != b), a, b)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[OperatorDefinition]:
    """A new operator: its definition, its kernel and its reference, and nothing else."""
    monkeypatch.setitem(DEFINITIONS, TOY.name, TOY)
    monkeypatch.setitem(
        binary32.SCALARS, "FLOAT_TOY", lambda a, b: a if binary32.is_nan(b) or binary32.less(b, a) else b
    )
    enter(Elementwise(kernel), TOY)
    yield TOY
    del REGISTRY[TOY.name]


def small_program() -> tuple[Program, int]:
    """Six samples x[3], a state w[3] and its gradient's stand-in, the sum of toy(x, w) over the samples."""
    b = Builder()
    x = b.source_op("data", TensorType((6, 3), DType.F32), slot=0)
    w = b.source_op("state", TensorType((3,), DType.F32), slot=0)
    y = b.op("toy", b.op("mul", x, x), w)
    total = b.op("reshape", b.op("sum", y, dims=(0,)), shape=(3,))
    loss = b.op("reshape", b.op("sum", total, dims=(0,)), shape=())
    program = b.finish(loss, [b.op("sub", w, total)], states=["w"], data=["x"], schedule=[], batch_size=6)
    (place,) = [index for index, node in enumerate(program.nodes) if node.op == "toy"]
    return program, place


def test_an_operator_with_a_definition_works_everywhere(toy: OperatorDefinition, tmp_path: Path) -> None:
    program, place = small_program()
    x, w = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0.5, 0.0, -1.0])
    inputs = StepInputs(states=[w], data=[x], schedule=torch.zeros(0), seed=0, step=0, device=torch.device("cpu"))
    seen: dict[int, torch.Tensor] = {}
    result = Executor(program).run(inputs, Recorder(4), seen.__setitem__)
    assert torch.equal(seen[place], kernel(x * x, w))
    # In micro-batches: it is cut, and the bits are the same.
    assert analyse(program, 2).layouts[place] is not None
    for count in (2, 3, 6):
        cut = MicrobatchExecutor(program, count, tmp_path).run(inputs, Recorder(4))
        assert torch.equal(cut.states[0], result.states[0]) and cut.loss == result.loss
    # As the contract reads it, and as the reference computes it.
    descriptor = describe(program, place)
    assert descriptor.code == toy.formats[0].code and encode_descriptor(descriptor)
    values = Bits([seen[value] for value in range(len(program.nodes))])
    step = DisputedStep(step=0, seed=0, batch_size=6, data_rows=6)
    expected = (seen[place].view(torch.int32).reshape(-1).to(torch.int64) & 0xFFFFFFFF).tolist()
    assert [adjudicate(descriptor, element, step, values) for element in range(18)] == expected
    # Rounded to fewer bits, once, because it selects.
    narrow = compute_narrow(REGISTRY["toy"], [x, w], {}, narrow_float32(24))
    assert torch.equal(narrow, round_signed(kernel(x, w).to(torch.float64), narrow_float32(24)))
    Executor(program, narrow_float32(24))
