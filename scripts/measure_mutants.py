"""How many small mistakes in the code that money hangs on are noticed by the tests.

    .venv/bin/python scripts/measure_mutants.py [--each 10] [--only WORD] [--seed 0]

A mutant is one file with one operator, comparison or number changed. Of every file named below so many are drawn, by
the seed, and the tests of its room are run on each, in a copy of the checkout, until one fails. Printed is a line for
each mutant that survives, and a table: file, mutants, noticed. A mutant that changes nothing (a bound of a buffer)
survives rightly.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

QUICK = "not slow and not long and not browser"

ROOMS = {
    "engine/roundlog/adjudication": ["tests/engine/adjudication", "tests/engine/dispute"],
    "engine/roundlog/rounding": ["tests/engine/rounding", "tests/engine/running", "tests/engine/microbatch"],
    "engine/roundlog/log": ["tests/engine/log"],
    "engine/roundlog/commitments": [
        "tests/engine/test_merkle.py",
        "tests/engine/test_tensor_roots.py",
        "tests/engine/data",
    ],
    "engine/roundlog/training/receipt.py": ["tests/engine/running", "tests/client/cli/test_cli_receipts.py"],
    "contracts/src": [],
}
"""Files or folders -> the tests that hold them; those of contracts are forge's."""

SECONDS = 600
"""For the tests of one mutant; who takes longer is noticed."""

CHANGES = (
    (r"(?<=[\w)\]]) < (?=[\w(])", " <= "),
    (r"(?<=[\w)\]]) <= (?=[\w(])", " < "),
    (r"(?<=[\w)\]]) > (?=[\w(])", " >= "),
    (r"(?<=[\w)\]]) >= (?=[\w(])", " > "),
    (r" == ", " != "),
    (r" != ", " == "),
    (r"(?<=[\w)\]]) \+ (?=[\w(])", " - "),
    (r"(?<=[\w)\]]) - (?=[\w(])", " + "),
    (r" and ", " or "),
    (r" or ", " and "),
    (r" && ", " || "),
    (r" \|\| ", " && "),
    (r"\bTrue\b", "False"),
    (r"\btrue\b", "false"),
    (r"\bnot ", ""),
    (r"(?<=[ (\[])1(?=[)\], ;:])", "2"),
    (r"(?<=[ (\[])0(?=[)\], ;:])", "1"),
)
"""Patterns and what takes their place, in code of Python or Solidity as formatters leave it."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file."""

    path: Path
    start: int
    stop: int
    text: str

    def of(self, source: str) -> str:
        """The file with the change."""
        return source[: self.start] + self.text + source[self.stop :]

    def line(self, source: str) -> str:
        """Where and what it is, for people."""
        number = source.count("\n", 0, self.start) + 1
        changed = self.of(source).splitlines()[number - 1].strip()
        return f"{self.path}:{number}: {source.splitlines()[number - 1].strip()} -> {changed}"


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a file: places in code, not in comments or texts."""
    source = (ROOT / path).read_text()
    hidden = r'"""[\s\S]*?"""|"[^"\n]*"|#[^\n]*' if path.suffix == ".py" else r'"[^"\n]*"|//[^\n]*|/\*[\s\S]*?\*/'
    code = re.sub(hidden, lambda found: "_" * len(found[0]), source)
    return [Mutant(path, *found.span(), text) for how, text in CHANGES for found in re.finditer(how, code)]


def is_noticed(mutant: Mutant, copy: Path, tests: list[str]) -> bool:
    """Whether a test fails, or the code cannot be built, with a mutant in a copy of the checkout."""
    file = copy / mutant.path
    source = file.read_text()
    file.write_text(mutant.of(source))
    paths = ":".join(str(copy / name) for name in ("engine", "client", "scripts", "conformance", "."))
    place = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "FOUNDRY_FUZZ_RUNS": "32"}
    forge = next(iter((ROOT / "node_modules" / "@foundry-rs").glob("forge-*/bin/forge")), Path("forge"))
    command = (
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", "-m", QUICK, *tests] if tests else [str(forge), "test"]
    )
    try:
        return subprocess.run(command, cwd=copy, env=place, capture_output=True, timeout=SECONDS).returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=10, help="mutants of each file, at most")
    parser.add_argument("--only", default="", metavar="WORD", help="files with this in their paths")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows: list[tuple[str, int, int]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        copy = Path(temporary) / "copy"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".venv*", "node_modules", ".git"))
        for name in (".venv", "node_modules"):
            (copy / name).symlink_to(ROOT / name)
        for room, tests in ROOMS.items():
            found = [ROOT / room] if room.endswith(".py") else sorted((ROOT / room).rglob("*.[ps][yo]*"))
            for path in (file.relative_to(ROOT) for file in found if file.suffix in (".py", ".sol")):
                if options.only not in str(path) or not (all_of_it := mutants_of(path)):
                    continue
                drawn = random.Random(f"{options.seed} {path}").sample(all_of_it, min(options.each, len(all_of_it)))
                survivors = [one for one in drawn if not is_noticed(one, copy, tests)]
                for one in survivors:
                    print(f"survives: {one.line((ROOT / path).read_text())}", flush=True)
                rows.append((str(path), len(drawn), len(drawn) - len(survivors)))
    print("\n| file | mutants | noticed |\n|---|---|---|")
    for row in [*rows, ("all", *(sum(row[i] for row in rows) for i in (1, 2)))]:
        print("| {} | {} | {} |".format(*row))


if __name__ == "__main__":
    main()
