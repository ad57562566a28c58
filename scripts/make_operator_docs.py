"""Writes docs/operators.md from the registry of operators and the table of lowering rules.

python scripts/make_operator_docs.py          writes the page
python scripts/make_operator_docs.py --check  exits with 1 if the page on disk is not what would be written
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path
from typing import Any

from roundlog.capture.decompositions import decompositions
from roundlog.capture.rules import RULES
from roundlog.operators import REGISTRY, Inexact, Kind
from roundlog.operators.contraction import Contraction
from roundlog.operators.transcendental import Function

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operators.md"

HEADS = {
    Kind.SOURCE: "Sources: where values come from, and where they go",
    Kind.MOVEMENT: "Movement: bits are copied",
    Kind.EXACT: "Exact: IEEE 754, or integers, have one answer",
    Kind.INEXACT: "Inexact: computed in FP64, certified, rounded once",
}

INTRODUCTION = """# Operators

Written by `scripts/make_operator_docs.py` from the registry and the table of rules; a test holds it fresh.

## What programs are made of

Every value of a program is the output of one of these. Their names are the closed set that trainers, auditors and the
contract know; anything else is refused.

Values are f32, int64 or bool, and so are a job's data and state: parameters, buffers and datasets of other types are
refused. What a model computes in int32 on its way (`torch.randint(..., dtype=torch.int32)`, `arange`, `bucketize`) is
held as int64: the same numbers, except that where int32 would overflow and wrap around, a program goes on with the
number itself.
"""

LOWERED = """## What PyTorch operators become

ATen operators that a rule writes in the operators above, by the file of the rule. A name without an overload stands
for all its overloads, and in-place forms go with their plain ones.
"""

COMPOSED = """### How some of them are computed

Every operator in which something is written rounds once. What PyTorch computes at once may so be rounded more than once
here; where that is not obvious:
"""

DECOMPOSED = """## What PyTorch takes apart first

These ATen operators are decomposed before any rule sees them: by PyTorch's core table, or by functions of ours
(`roundlog.capture.decompositions`), which write complex numbers, Fourier transforms, CTC and bags of embeddings in real
operators. They can be captured as far as what they consist of can.
"""


def bound(name: str) -> str:
    operator = REGISTRY[name]
    if not isinstance(operator, Inexact):
        return "no error"
    if isinstance(operator, Contraction):
        return "gamma(K - 1) * norm * norm, K terms"
    return "2^-49 relatively (8 ulp)" if isinstance(operator, Function) else "gamma(n - 1) * sum of magnitudes"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def composed() -> list[str]:
    """Rows for rules that say how they compute."""
    names: dict[Any, list[str]] = {}
    for aten, rule in RULES.items():
        names.setdefault(rule, []).append(aten)
    return [
        f"| {', '.join(f'`{aten}`' for aten in sorted(group))} | {cell(rule.__doc__)} |"
        for rule, group in sorted(names.items(), key=lambda item: min(item[1]))
        if rule.__doc__
    ]


def page() -> str:
    lines = [INTRODUCTION]
    for kind, head in HEADS.items():
        inexact = kind == Kind.INEXACT
        lines += [f"### {head}\n", f"| operator | meaning |{' FP64 error at most |' if inexact else ''}"]
        lines.append("|---|---|---|" if inexact else "|---|---|")
        for name in sorted(REGISTRY):
            operator = REGISTRY[name]
            if operator.kind == kind:
                tail = f" {bound(name)} |" if inexact else ""
                lines.append(f"| `{name}` | {cell(inspect.getdoc(type(operator)) or '')} |{tail}")
        lines.append("")
    lines += [LOWERED, "| rules | ATen operators |", "|---|---|"]
    files: dict[str, list[str]] = {}
    for aten, rule in RULES.items():
        files.setdefault(rule.__module__.rpartition(".")[2], []).append(aten)
    lines += [
        f"| {file} | {', '.join(f'`{aten}`' for aten in sorted(names))} |" for file, names in sorted(files.items())
    ]
    lines += ["", COMPOSED, "| ATen operators | computed as |", "|---|---|", *composed()]
    bases = {name.partition(".")[0] for name in RULES}
    taken = {str(op).removeprefix("aten.").partition(".")[0] for op in decompositions() if str(op).startswith("aten.")}
    lines += ["", DECOMPOSED, ", ".join(f"`{name}`" for name in sorted(taken - bases)) + "."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        return 0 if PAGE.exists() and PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
