"""Kernels in PTX, as Triton writes them: text, instructions, operands. Sections are those of the PTX ISA, version 9.0."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

KINDS: dict[str, type[np.generic]] = {
    **{f"{letter}{8 * size}": kind for letter, size, kind in (
        ("u", 1, np.uint8), ("u", 2, np.uint16), ("u", 4, np.uint32), ("u", 8, np.uint64),
        ("s", 1, np.int8), ("s", 2, np.int16), ("s", 4, np.int32), ("s", 8, np.int64),
        ("b", 1, np.uint8), ("b", 2, np.uint16), ("b", 4, np.uint32), ("b", 8, np.uint64),
    )},
    "f32": np.float32, "f64": np.float64, "pred": np.bool_,
}  # fmt: skip
"""Fundamental types (5.2.1)."""


class UnknownPtxError(NotImplementedError):
    """Text that the interpreter has no meaning for."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address operand (6.4.1): [base + offset]. base: a register, a parameter, or a variable."""

    base: str
    offset: int


Operand = str | Address | tuple[str, ...]
"""A register, a label, a constant or a variable; an address; or a vector of the first."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction (4.3.2)."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: str | None
    """The predicate register that it is executed by, if any (9.3)."""
    negated: bool
    text: str


@dataclass(frozen=True)
class PtxProgram:
    """The entry function of a module."""

    name: str
    parameters: tuple[tuple[str, str], ...]
    """Names and types, in their order."""
    threads: int
    """Threads of a block (11.4.3, .reqntid)."""
    registers: dict[str, str]
    """Types of registers, by the prefix of their names."""
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    """Places of instructions."""

    def without(self, place: int) -> PtxProgram:
        """Return the program with one instruction taken out."""
        nothing = Instruction("nothing", (), None, False, "")
        return replace(
            self, instructions=(*self.instructions[:place], nothing, *self.instructions[place + 1 :])
        )

    def places(self, *opcodes: str) -> list[int]:
        """Return where instructions of these opcodes are."""
        return [place for place, one in enumerate(self.instructions) if one.opcode in opcodes]


def parse(text: str) -> PtxProgram:
    """Parse a module with one entry function. Raises UnknownPtxError for what Triton does not write."""
    text = re.sub(r"//[^\n]*|^\s*\.(?:loc|file)\b[^\n]*", "", text, flags=re.MULTILINE)
    entry = re.search(r"\.entry\s+(\w+)\s*\(([^)]*)\)\s*((?:\.\w+\s+\d+\s*)*)\{", text)
    if entry is None or text.count(".entry") != 1 or re.search(r"^\s*(?:\.visible )?\.(?:const|local|global)\b", text, re.MULTILINE):
        raise UnknownPtxError("a module has one entry function, and no variables but dynamic shared memory")
    name, parameters, directives = entry.groups()
    threads = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)", directives)
    if threads is None:
        raise UnknownPtxError(f"{name} does not say how many threads a block has")
    body = text[entry.end() : _end_of_block(text, entry.end())]
    registers: dict[str, str] = {}
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for statement in re.split(r";|(?<=:)\s(?=\s*[^:])", body):
        words = " ".join(statement.split())
        while label := re.match(r"([$\w]+):\s*", words):
            labels[label[1]] = len(instructions)
            words = words[label.end() :]
        declared = re.fullmatch(r"\.reg \.(\w+) (%[a-z]+)<\d+>", words)
        if declared:
            registers[declared[2]] = declared[1]
        elif words:
            instructions.append(_instruction(words))
    typed = (re.match(r"\.param\s+\.(\w+)\s.*?(\w+)\s*$", one.strip()) for one in parameters.split(",") if one.strip())
    return PtxProgram(
        name,
        tuple((one[2], one[1]) for one in typed if one),
        int(threads[1]),
        registers,
        tuple(instructions),
        labels,
    )


def _end_of_block(text: str, start: int) -> int:
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return start + brace.start()
    raise UnknownPtxError("a block that does not end")


def _instruction(words: str) -> Instruction:
    found = re.fullmatch(r"(?:@(!?)(%p\d+) )?([a-z][\w.:]*)(?: (.*))?", words)
    if found is None:
        raise UnknownPtxError(words)
    negated, guard, opcode, operands = found.groups()
    parts = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", operands or "")
    return Instruction(opcode, tuple(map(_operand, parts)), guard, negated == "!", words)


def _operand(text: str) -> Operand:
    if text[0] == "{":
        return tuple(one.strip() for one in text[1:-1].split(","))
    if text[0] != "[":
        return text
    found = re.fullmatch(r"\[\s*([%\w.]+)\s*(?:\+\s*(-?\d+)\s*)?\]", text)
    if found is None:
        raise UnknownPtxError(text)
    return Address(found[1], int(found[2] or 0))
