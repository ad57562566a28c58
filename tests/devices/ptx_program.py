"""Kernels in PTX, as Triton writes them: text, instructions, operands. Sections are those of the PTX ISA."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
KINDS: dict[str, type[np.generic]] = {
    **{f"{letter}{8 * size}": kind for letter in "ub" for size, kind in UNSIGNED.items()},
    **{f"s{8 * size}": kind for size, kind in SIGNED.items()},
    **{"f32": np.float32, "f64": np.float64, "pred": np.bool_},
}
"""Fundamental Types."""


def size_of(kind: str) -> int:
    """Return the bytes of a type."""
    return KINDS[kind](0).itemsize


class UnknownPtxError(NotImplementedError):
    """Text that the interpreter has no meaning for."""


@dataclass(frozen=True, slots=True)
class Address:
    """[base + offset], of a register, a parameter or a variable (Addresses as Operands)."""

    base: str
    offset: int


Operand = str | Address | tuple[str, ...]
"""A register, a label, a constant or a variable; an address; or a vector of registers (Operands)."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, and the predicate register that it is executed by (Predicated Execution)."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: str | None = None
    negated: bool = False
    text: str = ""


@dataclass(frozen=True)
class PtxProgram:
    """The entry function of a module."""

    name: str
    parameters: tuple[str, ...]
    threads: int
    """Threads of a block (Performance-Tuning Directives: .reqntid)."""
    registers: dict[str, str]
    """Types of registers, by the prefix of their names."""
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    def without(self, place: int) -> PtxProgram:
        """Return the program with one instruction taken out."""
        before, after = self.instructions[:place], self.instructions[place + 1 :]
        return replace(self, instructions=(*before, Instruction("nothing", ()), *after))

    def places(self, *opcodes: str) -> list[int]:
        """Return where instructions of these opcodes are."""
        return [place for place, one in enumerate(self.instructions) if one.opcode in opcodes]


def parse(text: str) -> PtxProgram:
    """Parse a module with one entry function. Raises UnknownPtxError for what Triton does not write."""
    text = re.sub(r"//[^\n]*|^\s*\.(?:loc|file)\b[^\n]*", "", text, flags=re.MULTILINE)
    # Triton repeats this attempt until it succeeds.
    text = re.sub(
        r"\{\s*\.reg \.pred complete;\s*waitLoop:\s*(mbarrier\.try_wait\.[\w.:]+) complete, "
        r"([^;]*;)\s*@!complete bra\.uni waitLoop;\s*\}", r"\1 \2", text,
    )  # fmt: skip
    entry = re.search(r"\.entry (\w+)\(([^)]*)\)\s*\.reqntid (\d+)\s*\{", text)
    if entry is None or len(re.findall(r"\.(?:entry|func)\b", text)) > 1 or re.search(r"(?m)^\.(const|global)\b", text):
        raise UnknownPtxError("not one entry function that says how many threads a block has, or variables beside it")
    # Braces are nested in no other way than around vectors.
    body = re.match(r"(?:[^{}]|\{[^{}]*\})*", text[entry.end() :])
    assert body is not None
    registers: dict[str, str] = {}
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for statement in re.split(r";|(?<=:)\s", body[0]):
        words = " ".join(statement.split())
        if label := re.fullmatch(r"([$\w]+):", words):
            labels[label[1]] = len(instructions)
        elif declared := re.fullmatch(r"\.reg \.(\w+) (%[a-z]+)<\d+>", words):
            registers[declared[2]] = declared[1]
        elif words:
            instructions.append(instruction_of(words))
    parameters = tuple(one.split()[-1] for one in entry[2].split(",") if one.strip())
    return PtxProgram(entry[1], parameters, int(entry[3]), registers, tuple(instructions), labels)


def instruction_of(words: str) -> Instruction:
    """Parse one instruction, without its semicolon. Raises UnknownPtxError."""
    found = re.fullmatch(r"(?:@(!?)(%p\d+) )?([a-z][\w.:]*)(?: (.*))?", words)
    if found is None:
        raise UnknownPtxError(words)
    parts = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", found[4] or "")
    return Instruction(found[3], tuple(map(_operand, parts)), found[2], found[1] == "!", words)


def _operand(text: str) -> Operand:
    if text[0] == "{":
        return tuple(one.strip() for one in text[1:-1].split(","))
    if text[0] != "[":
        return text
    found = re.fullmatch(r"\[\s*([%\w]+)\s*(?:\+\s*(-?\d+)\s*)?\]", text)
    if found is None:
        raise UnknownPtxError(text)
    return Address(found[1], int(found[2] or 0))
