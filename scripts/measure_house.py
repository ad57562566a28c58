"""Sizes of the rooms of the engine and the client, and how often a reader who follows a task through capture turns to
another file.

    .venv/bin/python scripts/measure_house.py

The first table counts files, lines, and public functions whose name several files define. Depth of imports: files in
the longest chain of imports at the top of files. The second one follows `Job.from_task` of a linear layer through the
functions of `roundlog.capture` that have the task at hand, as an argument or as an attribute of one, each where it is
called first: how often the file changes, among how many files, and how often it is one that was left before.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from roundlog import Job, Task
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "engine": ROOT / "engine" / "roundlog",
    "engine, capture": ROOT / "engine" / "roundlog" / "capture",
    "client": ROOT / "client" / "tiebreak",
}


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    ).parse_args()
    print("| room | files | lines | median | shortest | longest | functions of one name | depth of imports |")
    print("|---|---|---|---|---|---|---|---|")
    for name, folder in ROOMS.items():
        files = sorted(folder.rglob("*.py"))
        lines = [len(path.read_text().splitlines()) for path in files if path.name != "__init__.py"]
        print(
            f"| {name} | {len(files)} | {sum(len(path.read_text().splitlines()) for path in files)} "
            f"| {statistics.median(lines):.0f} | {min(lines)} | {max(lines)} | {namesakes(files)} "
            f"| {depth_of_imports(folder)} |"
        )
    changes, files_seen, returns = path_of_a_task()
    print(f"\n| changes of file | files | returns |\n|---|---|---|\n| {changes} | {files_seen} | {returns} |")


def namesakes(files: list[Path]) -> int:
    """Number of names that public functions of several files have."""
    names = Counter(
        node.name
        for path in files
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    )
    return sum(1 for count in names.values() if count > 1)


def depth_of_imports(folder: Path) -> int:
    """Number of files in the longest chain of imports between files of a folder. The face of a room imports its files,
    and files of the room that import each other by it would go round: what is imported is a file, not a face."""
    package = ".".join(folder.parts[len(ROOT.parts) + 1 :])
    modules = {
        ".".join((package, *path.relative_to(folder).with_suffix("").parts)): path
        for path in folder.rglob("*.py")
        if path.name != "__init__.py"
    }
    found: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in found:
            found[name] = 1  # of a chain that goes round
            found[name] = 1 + max((depth(one) for one in imported(modules[name]) if one in modules), default=0)
        return found[name]

    return max(map(depth, modules))


def imported(path: Path) -> Iterator[str]:
    """Names in the imports at the top of a file: modules, and names of modules."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def path_of_a_task() -> tuple[int, int, int]:
    """Number of changes of file, number of files, and number of changes to one that was left before."""
    task, capture = _linear_task(), str(ROOMS["engine, capture"])
    first: dict[Any, str] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(capture) and code not in first:
            arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(_has(frame.f_locals.get(name), task) for name in arguments):
                first[code] = code.co_filename

    Job.from_task(_linear_task())  # what is done once a process
    sys.setprofile(note)
    try:
        Job.from_task(task)
    finally:
        sys.setprofile(None)
    sequence = [path for path, _ in groupby(first.values())]
    return len(sequence) - 1, len(set(sequence)), len(sequence) - len(set(sequence))


def _has(thing: object, task: Task) -> bool:
    held = getattr(thing, "__dict__", {})
    return thing is task or held.get("task") is task or held.get("_task") is task


def _linear_task() -> Task:
    model = nn.Linear(4, 2)
    return Task(
        model=model,
        loss=lambda model, batch: nn.functional.mse_loss(model(batch["x"]), batch["y"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(8, 4), "y": torch.randn(8, 2)},
        batch_size=4,
        steps=4,
        interval=2,
        seed=1,
    )


if __name__ == "__main__":
    main()
