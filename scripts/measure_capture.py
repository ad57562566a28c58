"""Statements of capture that capturing scripts and kinds of models runs, and those that none runs.

    .venv/bin/python scripts/measure_capture.py --scripts --kinds 60 --trainers 10 --rows FILE

Measured with `coverage` while a job is made of each script of `tests/scripts`, each of so many captured kinds of
docs/models.md, spread evenly over the families, each of so many random trainers of `transformers`, and texts by the
models of the tests. Left out is what it does not see: what numba compiles, and Python's profiler calls. Printed for
each file: its statements, those that nothing runs, and those that one script or kind runs alone; then the share of
both. What an import runs counts as run. With `--rows`, what each has run is kept in a file as it comes, and an
interrupted run carries on after it: valid until a file of capture changes. `--lines` prints the lines that nothing
runs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coverage
from coverage.parser import PythonParser

if TYPE_CHECKING:
    from roundlog import Task

_ROOT = Path(__file__).resolve().parents[1]
_MEASURED = _ROOT / "engine" / "roundlog" / "capture"
_KINDS = Path(__file__).resolve().parent / "models" / "rows.jsonl"

_UNSEEN = r"@(njit|vectorize)|def (_note\w*|_is_called_by_library|_line)\("

Lines = dict[str, list[int]]
"""File, relative to the repository -> lines that were run."""


def measured(work: Callable[[], Any]) -> tuple[Any, Lines]:
    """(result of a call, the lines of capture that it has run)."""
    watch = coverage.Coverage(data_file=None, config_file=False, include=[f"{_MEASURED}/*"])
    watch.start()
    try:
        result = work()
    finally:
        watch.stop()
    data = watch.get_data()
    return result, {
        str(Path(name).relative_to(_ROOT)): sorted(data.lines(name) or ()) for name in data.measured_files()
    }


def import_all() -> None:
    """What captures, imported, with all files of capture."""
    import importlib

    for file in _files():
        parts = file.relative_to(_ROOT / "engine").with_suffix("").parts
        importlib.import_module(".".join(parts).removesuffix(".__init__"))


def outcome(make: Callable[[], Task]) -> str:
    """What becomes of a task that a function makes."""
    import torch
    from roundlog import Job
    from roundlog.capture import CaptureError

    def whole() -> Task:
        torch.manual_seed(0)
        return make()

    try:
        Job.from_task(whole)
        return "captured"
    except CaptureError as error:
        return f"refused: {error}"
    finally:
        torch.set_autocast_enabled("cpu", False)  # where a script leaves it on


def scripts() -> Iterator[tuple[str, Callable[[], str]]]:
    """(name, what captures it) of every script of the corpus."""
    from tests.scripts.script_corpus import corpus

    for name, script in corpus().items():
        yield f"script {name}", lambda script=script: outcome(script.function)  # type: ignore[misc]


def kinds(count: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """(name, what captures it) of so many captured kinds."""
    from try_models import build, discover, task_of

    def tried(name: str) -> str:
        model, inputs = build(discover()[name])
        return outcome(lambda: task_of(model, inputs))

    rows = [json.loads(line) for line in _KINDS.read_text().splitlines()]
    names = [row["name"] for row in sorted(rows, key=lambda row: row["family"]) if row["outcome"] == "captured"]
    for place in range(count):
        name = names[place * len(names) // count]
        yield f"kind {name}", lambda name=name: tried(name)  # type: ignore[misc]


def trainers(count: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """(name, what captures it) of so many random trainers, and of texts, if any."""
    from roundlog import Task

    from tests.engine.capture import random_trainers, test_generation

    def trained(number: int) -> str:
        with tempfile.TemporaryDirectory() as folder:
            case = random_trainers.random_case(number)
            return outcome(lambda: Task.from_trainer(lambda: case.trainer(Path(folder))))

    def written(name: str) -> str:
        model, prompts = test_generation.model_of(name), test_generation.prompts(3, 5)
        return outcome(lambda: Task.from_causal_lm(model, prompts, new_tokens=4, temperature=0.8, top_k=9, top_p=0.9))

    for number in range(count):
        yield f"trainer {number}", lambda number=number: trained(number)  # type: ignore[misc]
    for name in test_generation.MODELS if count else ():
        yield f"text {name}", lambda name=name: written(name)  # type: ignore[misc]


def run(todo: Iterable[tuple[str, Callable[[], str]]], file: Path | None) -> list[Lines]:
    """The lines that each has run."""
    kept = (
        {row["name"]: row for row in map(json.loads, file.read_text().splitlines())} if file and file.exists() else {}
    )
    for name, work in todo:
        if name not in kept:
            try:
                said, lines = measured(work)
            except Exception as error:  # one that cannot be tried here, for want of a library say, runs nothing
                said, lines = f"not tried: {type(error).__name__}: {error}", {}
            kept[name] = {"name": name, "outcome": said, "lines": lines}
            print(f"{name}: {said[:300]}", flush=True)
            if file is not None:
                with file.open("a") as rows:
                    rows.write(json.dumps(kept[name]) + "\n")
    return [row["lines"] for row in kept.values()]


def table(imported: Lines, found: list[Lines], *, with_lines: bool) -> Iterator[str]:
    """The lines of the table that is printed."""
    total = nothing = single = 0
    yield f"{'file':66}{'statements':>12}{'run by none':>14}{'run by one':>12}"
    for file in _files():
        parser = PythonParser(filename=str(file), exclude=_UNSEEN)
        parser.parse_source()
        name = str(file.relative_to(_ROOT))
        runs = Counter(line for lines in found for line in parser.translate_lines(lines.get(name, ())))
        known = parser.translate_lines(imported.get(name, ()))
        never = sorted(line for line in parser.statements if line not in known and not runs[line])
        once = sum(runs[line] == 1 for line in parser.statements - known)
        total, nothing, single = total + len(parser.statements), nothing + len(never), single + once
        yield f"{name:66}{len(parser.statements):12}{len(never):14}{once:12}"
        if with_lines and never:
            spans = [list(group) for _, group in groupby(never, key=lambda line: line - never.index(line))]
            yield "    " + " ".join(str(s[0]) if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in spans)
    yield f"{total} statements, {nothing / total:.1%} run by none, {single / total:.1%} by one"


def _files() -> list[Path]:
    return sorted(_MEASURED.rglob("*.py"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", action="store_true", help="capture the scripts of tests/scripts")
    parser.add_argument("--kinds", type=int, default=0, metavar="N", help="capture so many kinds of models")
    parser.add_argument("--trainers", type=int, default=0, metavar="N", help="capture so many trainers, and texts")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="where to keep what has been run")
    parser.add_argument("--lines", action="store_true", help="print the lines that nothing runs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    _, imported = measured(import_all)
    todo = [*(scripts() if options.scripts else ()), *kinds(options.kinds), *trainers(options.trainers)]
    print(*table(imported, run(todo, options.rows), with_lines=options.lines), sep="\n")


if __name__ == "__main__":
    main()
