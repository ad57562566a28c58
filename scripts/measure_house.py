"""Sizes of the rooms of the engine and the client, and how often a reader who follows a task through capture, a batch
through a run, or a claim to its verdict turns to another file.

    .venv/bin/python scripts/measure_house.py
    .venv/bin/python scripts/measure_house.py --gate

With --gate: lines of each room beside its limit in `[tool.house.rooms]` of pyproject.toml. The exit code is 1 if a room
is above its limit, a file is too long, two files or public classes of engine and client share a name, or the limits
together are higher than in an earlier commit.

Without it, the first table counts files, lines, and public functions whose name several files define. Depth of imports:
files in the longest chain of imports at the top of files. The second one follows `Job.from_task` of a linear layer
through the functions of `roundlog.capture` that have the task at hand, as an argument or as an attribute of one, each
where it is called first: how often the file changes, among how many files, and how often it is one that was left
before. Likewise the inputs of a step through `Trainer.run`, and the claimed root through `audit`, both through the
whole engine.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roundlog import Job, Task

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "engine": ROOT / "engine" / "roundlog",
    "engine, capture": ROOT / "engine" / "roundlog" / "capture",
    "client": ROOT / "client" / "tiebreak",
}


LONGEST = 900
"""Most lines of a file, unless its room's row says otherwise."""

_FORMAT = ("--isolated", "--line-length", "120", "--target-version", "py311")
"""Options of `ruff format`, whatever the project's own are."""
_UNFORMATTED = re.compile(r"#\s*(fmt|yapf):\s*\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomLimit:
    """Row of `[tool.house.rooms]`."""

    files: list[str]
    """Patterns of its files, as `git ls-files` takes them. A file belongs to the first room that has it."""
    lines: int | None = None
    """Most lines; None for a room that is being built, and is to take another one's place."""
    docstrings: float = 0.0
    """Lines of docstrings for each other line. Fewer count as so many."""
    longest: int = LONGEST

    @property
    def is_python(self) -> bool:
        return all(pattern.endswith(".py") for pattern in self.files)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--gate", action="store_true", help="compare lines with their limits, and measure nothing else")
    if parser.parse_args().gate:
        sys.exit(gate(ROOT))
    require_own_environment()
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
    from roundlog import Job

    job = Job.from_task(_linear_task)
    with tempfile.TemporaryDirectory() as folder:
        root, path = path_of_a_batch(job, Path(folder, "trained"))
        paths = {"a task": path_of_a_task(), "a batch": path, "a claim": path_of_a_claim(job, root, Path(folder))}
    for name, counted in paths.items():
        print(f"| {name} | {' | '.join(map(str, counted))} |")


def require_own_environment() -> None:
    """Exit with a sentence if Python imports the engine of another checkout, whose files the walks would not see."""
    import roundlog

    found = Path(str(roundlog.__file__)).parent
    if not found.is_relative_to(ROOT):
        sys.exit(f"this environment has the engine in {found}, and {ROOT} is measured: run {ROOT}/.venv/bin/python")


def gate(root: Path) -> int:
    """Print the lines of each room of a checkout beside its limit, and what is above a limit. Return the exit code."""
    rooms = _limits((root / "pyproject.toml").read_text())
    wrong, taken = list[str](), set[Path]()
    print("| room | lines | limit |\n|---|---|---|")
    for name, room in rooms.items():
        files = [path for path in _listed(root, room.files) if path not in taken]
        taken.update(files)
        lengths = _formatted_lengths(files, room)
        code, docstrings = (sum(length) for length in zip(*lengths, strict=True)) if lengths else (0, 0)
        lines = code + max(docstrings, int(room.docstrings * code))
        print(f"| {name} | {lines} | {'none yet' if room.lines is None else room.lines} |")
        if room.lines is not None and lines > room.lines:
            wrong.append(
                f"{name} has {lines} lines and may have {room.lines}: take {lines - room.lines} away, or lower another "
                "room's limit by as much as you raise this one's"
            )
        wrong += [
            f"{path.relative_to(root)} has {sum(length)} lines and may have {room.longest}: make two files of it"
            for path, length in zip(files, lengths, strict=True)
            if sum(length) > room.longest
        ]
    wrong += [*_raised(root, rooms), *_doubled(root)]
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


def _limits(pyproject: str) -> dict[str, RoomLimit]:
    plain = tomllib.loads(pyproject).get("tool", {}).get("house", {}).get("rooms", {})
    return {name: RoomLimit(**row) for name, row in plain.items()}


def _raised(root: Path, rooms: dict[str, RoomLimit]) -> Iterator[str]:
    """Sentences on sums of limits that are higher than in an earlier commit."""
    for what, counted in (("Python", lambda room: room.is_python), ("all rooms", lambda room: True)):
        sums = {
            commit: sum(room.lines or 0 for room in found.values() if counted(room))
            for commit in _git(root, "log", "--format=%h", "--", "pyproject.toml")
            if (found := _limits("\n".join(_git(root, "show", f"{commit}:pyproject.toml"))))
        }
        now = sum(room.lines or 0 for room in rooms.values() if counted(room))
        least = min(sums, key=sums.__getitem__, default=None)
        if least is not None and now > sums[least]:
            yield f"the limits of {what} add up to {now} lines, and to {sums[least]} in commit {least}: they only fall"


def _doubled(root: Path) -> Iterator[str]:
    """Sentences on files, and on public classes, of engine and client that share their name."""
    found: dict[str, list[str]] = {}
    for path in _listed(root, ["engine/*.py", "client/*.py"]):
        place = str(path.relative_to(root))
        if path.name not in ("__init__.py", "__main__.py"):
            found.setdefault(path.name, []).append(place)
        for node in ast.parse(path.read_text()).body if "/examples/" not in place else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(place)
    for name, places in found.items():
        if len(places) > 1:
            yield f"{name} is in {' and in '.join(places)}: give each a name of its own"


def _listed(root: Path, patterns: Sequence[str]) -> list[Path]:
    """Files of a checkout that git tracks, or that are new and not ignored."""
    names = _git(root, "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "--", *patterns)
    return [root / name for name in sorted(names) if (root / name).is_file()]


def _git(root: Path, *arguments: str) -> list[str]:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True
    ).stdout.splitlines()


def _formatted_lengths(files: Sequence[Path], room: RoomLimit) -> list[tuple[int, int]]:
    """(other lines, lines of docstrings) of each file; of Python as `ruff format` writes it."""
    if not room.is_python:
        return [(len(path.read_text().splitlines()), 0) for path in files]
    with tempfile.TemporaryDirectory() as name:
        copies = [Path(name, f"{number}.py") for number, _ in enumerate(files)]
        for path, copy in zip(files, copies, strict=True):
            copy.write_text(_UNFORMATTED.sub("#", path.read_text()))
        subprocess.run([sys.executable, "-m", "ruff", "format", "-q", *_FORMAT, name], check=True)
        return [_code_and_docstrings(copy.read_text()) for copy in copies]


def _code_and_docstrings(text: str) -> tuple[int, int]:
    defined = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, defined))
    first = [node.body[0] for node in nodes if ast.get_docstring(node, clean=False) is not None]
    docstrings = sum((one.end_lineno or 0) - one.lineno + 1 for one in first)
    return len(text.splitlines()) - docstrings, docstrings


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
    from roundlog import Job

    require_own_environment()
    Job.from_task(_linear_task)  # what is done once a process
    return _path(
        ROOMS["engine, capture"], lambda one: type(one).__name__ == "Task", lambda: Job.from_task(_linear_task)
    )


def path_of_a_batch(job: Job, directory: Path) -> tuple[bytes, tuple[int, int, int]]:
    """The root of a training in a directory, and the path of the inputs of its steps, as `path_of_a_task`."""
    from roundlog import Trainer

    roots: list[bytes] = []
    path = _path(
        ROOMS["engine"],
        lambda one: type(one).__name__ == "StepInputs",
        lambda: roots.append(Trainer(job, directory).run().checkpoint_root),
    )
    return roots[0], path


def path_of_a_claim(job: Job, claim: bytes, directory: Path) -> tuple[int, int, int]:
    """The path of a claimed root through an audit, as `path_of_a_task`."""
    from roundlog import audit

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
    import torch
    from roundlog import Task
    from torch import nn

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
