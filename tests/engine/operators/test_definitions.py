"""What has to agree with the definitions does, and a new operator needs its definition, a kernel and a reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from roundlog.adjudication import binary32, fixed_point
from roundlog.definitions import (
    DEFINITIONS,
    Family,
    OperatorDefinition,
    OperatorKind,
    code_names,
    definition,
    of_family,
    opcodes,
    tensor_operators,
)
from roundlog.descriptors.descriptor import DTYPE_CODES
from roundlog.kernels import digest
from roundlog.operators import (
    REGISTRY,
    Direct,
    Inexact,
    Source,
    elementwise,
)

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
