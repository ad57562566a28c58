"""Sizes of the rooms of the engine and the client, and how often a reader who follows a task through capture, a batch
through a run, or a claim to its verdict turns to another file.

    .venv/bin/python scripts/measure_house.py

The first table counts files, lines, and public functions whose name several files define. Depth of imports: files in
the longest chain of imports at the top of files. The second one follows `Job.from_task` of a linear layer through the
functions of `roundlog.capture` that have the task at hand, as an argument or as an attribute of one, each where it is
called first: how often the file changes, among how many files, and how often it is one that was left before. Likewise
the inputs of a step through `Trainer.run`, and the claimed root through `audit`, both through the whole engine.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from roundlog import Job, Task, Trainer, audit
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
    print("\n| on its way | changes of file | files | returns |\n|---|---|---|---|")
    job = Job.from_task(_linear_task())
    with tempfile.TemporaryDirectory() as folder:
        root, path = path_of_a_batch(job, Path(folder, "trained"))
        paths = {"a task": path_of_a_task(), "a batch": path, "a claim": path_of_a_claim(job, root, Path(folder))}
    for name, counted in paths.items():
        print(f"| {name} | {' | '.join(map(str, counted))} |")


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
    task = _linear_task()
    Job.from_task(_linear_task())  # what is done once a process
    return _path(ROOMS["engine, capture"], lambda one: one is task, lambda: Job.from_task(task))


def path_of_a_batch(job: Job, directory: Path) -> tuple[bytes, tuple[int, int, int]]:
    """The root of a training in a directory, and the path of the inputs of its steps, as `path_of_a_task`."""
    roots: list[bytes] = []
    path = _path(
        ROOMS["engine"],
        lambda one: type(one).__name__ == "StepInputs",
        lambda: roots.append(Trainer(job, directory).run().checkpoint_root),
    )
    return roots[0], path


def path_of_a_claim(job: Job, claim: bytes, directory: Path) -> tuple[int, int, int]:
    """The path of a claimed root through an audit, as `path_of_a_task`."""
    return _path(ROOMS["engine"], lambda one: one is claim, lambda: audit(job, directory / "audited", claim=claim))


def _path(folder: Path, at_hand: Callable[[Any], bool], call: Callable[[], object]) -> tuple[int, int, int]:
    """Path of a thing through the functions of a folder's files while something is called."""
    first: dict[Any, str] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(folder)) and code not in first:
            arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(_has(frame.f_locals.get(name), at_hand) for name in arguments):
                first[code] = code.co_filename

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    sequence = [path for path, _ in groupby(first.values())]
    return len(sequence) - 1, len(set(sequence)), len(sequence) - len(set(sequence))


def _has(thing: object, at_hand: Callable[[Any], bool]) -> bool:
    """Whether a thing is what is followed, or has it as an attribute."""
    return at_hand(thing) or any(map(at_hand, list(getattr(thing, "__dict__", {}).values())))


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
