"""Writes the tables of docs/operators.md from the definitions of operators and the table of lowering rules.

python scripts/make_operator_docs.py          writes the page
python scripts/make_operator_docs.py --check  exits with 1 if the page on disk is not what would be written
"""

from __future__ import annotations

import sys
from math import log2
from pathlib import Path
from typing import Any

from generated import with_parts, write_or_check
from roundlog.capture.decompositions import decompositions, own_decompositions
from roundlog.capture.rules import RULES
from roundlog.definitions import DEFINITIONS, OperatorDefinition, OperatorKind

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operators.md"

HEADS = {
    OperatorKind.SOURCE: "Sources: where values come from, and where they go",
    OperatorKind.MOVEMENT: "Movement: bits are copied",
    OperatorKind.EXACT: "Exact: IEEE 754, or integers, have one answer",
    OperatorKind.INEXACT: "Inexact: computed in FP64, certified, rounded once",
}


def error(definition: OperatorDefinition) -> str:
    relative = definition.relative_error
    return definition.bound or f"2^{int(log2(relative))} relatively ({relative * 2**52:g} ulp)"


def parameters(definition: OperatorDefinition) -> str:
    names = [*(f"`{name}`" for name in definition.attributes), *(f"(`{name}`)" for name in definition.optional)]
    return ", ".join(names) or "-"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def composed() -> str:
    """Rows for rules, and for functions of our own that take operators apart, that say how they compute."""
    names: dict[Any, list[str]] = {}
    for aten, rule in RULES.items():
        names.setdefault(rule, []).append(aten)
    for op, function in own_decompositions().items():
        names.setdefault(function, []).append(str(op).removeprefix("aten.").removesuffix(".default"))
    rows = (
        f"| {', '.join(f'`{aten}`' for aten in sorted(group))} | {cell(rule.__doc__)} |\n"
        for rule, group in sorted(names.items(), key=lambda item: min(item[1]))
        if rule.__doc__
    )
    return "| ATen operators | computed as |\n|---|---|\n" + "".join(rows)


def page() -> str:
    return with_parts(
        PAGE, {"operators": operators(), "lowered": lowered(), "composed": composed(), "taken apart": taken_apart()}
    )


def operators() -> str:
    """A table for each kind of operator."""
    lines = []
    for kind, head in HEADS.items():
        inexact = kind == OperatorKind.INEXACT
        lines += [f"### {head}\n", f"| operator | parameters | meaning |{' FP64 error at most |' if inexact else ''}"]
        lines.append("|---|---|---|---|" if inexact else "|---|---|---|")
        for name, definition in sorted(DEFINITIONS.items()):
            if definition.kind == kind:
                tail = f" {error(definition)} |" if inexact else ""
                lines.append(f"| `{name}` | {parameters(definition)} | {cell(definition.meaning)} |{tail}")
        lines.append("")
    return "\n".join(lines)


def lowered() -> str:
    """Rows of ATen operators by the file of their rule."""
    files: dict[str, list[str]] = {}
    for aten, rule in RULES.items():
        files.setdefault(rule.__module__.rpartition(".")[2], []).append(aten)
    rows = (
        f"| {file} | {', '.join(f'`{aten}`' for aten in sorted(names))} |\n" for file, names in sorted(files.items())
    )
    return "| rules | ATen operators |\n|---|---|\n" + "".join(rows)


def taken_apart() -> str:
    """Names of ATen operators that are decomposed."""
    bases = {name.partition(".")[0] for name in RULES}
    taken = {str(op).removeprefix("aten.").partition(".")[0] for op in decompositions() if str(op).startswith("aten.")}
    return ", ".join(f"`{name}`" for name in sorted(taken - bases)) + ".\n"


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, {PAGE: page()}))
