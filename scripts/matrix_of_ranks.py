"""The table of tasks and ranks: example tasks, trained by any number of ranks, and every log followed by others.

    .venv/bin/python scripts/matrix_of_ranks.py [--precision bf16 [--arithmetic hopper]] [--task NAME]
                                                [--ranks N] [--steps N] [--markdown docs/bit-equality.md]

Every task is trained by 1, 2, 3, 4 and 8 ranks, processes of one thread each (by this one, where it is one). Every log
is then followed by one process and by three ranks, which verify all of it. The roots of a task have to be one, and
nothing may be found in any log.
With --precision bf16 they are tasks under autocast, and models of `transformers`; with --arithmetic, their products
and convolutions are those of tensor cores.
--markdown replaces the table in the page. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import torch
from generated import with_section
from machines.ranks import Found, Work, by
from machines.tasks import SHARED, SHARED_IN_BF16, SMALL_STEPS
from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.examples import BF16, FP32
from roundlog.execution.microbatch import samples_of
from roundlog.operators.job_arithmetic import EXACT
from roundlog.training.job import Job

SIZES = (1, 2, 3, 4, 8)
FOLLOWERS = (1, 3)

TITLE = "## One root for any number of ranks"
TITLE_IN_BF16 = "## One root in BF16 for any number of ranks"
_TITLE_OF_ARITHMETIC = "## One root in the arithmetic {arithmetic} for any number of ranks"
_TEXT = """
Written by `scripts/matrix_of_ranks.py {option}`; do not edit.
Every task is trained by {sizes} ranks (processes of one thread each, by gloo), and every log is followed by
{followers} ranks, which verify all of it. *Roots* counts the
different checkpoint roots of all these runs, *findings* what is wrong with any log. *Logs* counts the different ones:
an element at the edge of the guard may be logged by some numbers of ranks only
([why](numerics.md#ranks-the-same-root-on-many-machines)).
*Samples* are what ranks share out: a batch, or one of its parts where gradients are accumulated.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """The results of all runs: by task and number of ranks, and by task, number of ranks and of followers."""

    trained: dict[tuple[str, int], Found] = field(default_factory=dict)
    followed: dict[tuple[str, int, int], Found] = field(default_factory=dict)
    logs: dict[tuple[str, int], str] = field(default_factory=dict)
    """Digests of the logs' bytes."""

    def roots(self, task: str) -> set[str]:
        """All roots of a task."""
        trained = {found.root for (name, _), found in self.trained.items() if name == task}
        return trained | {found.root for (name, *_), found in self.followed.items() if name == task}

    def findings(self, task: str) -> int:
        """The findings in all logs of a task."""
        return sum(found.findings for key, found in self.followed.items() if key[0] == task)

    def wrong(self) -> list[str]:
        """The differences from what is expected, a sentence each."""
        found = []
        for task in dict.fromkeys(task for task, _ in self.trained):
            if len(self.roots(task)) != 1:
                found.append(f"{task} has {len(self.roots(task))} roots")
            if self.findings(task):
                found.append(f"{self.findings(task)} entries of the logs of {task} are wrong or missing")
        return found


def run(
    jobs: Mapping[str, Path],
    room: Path,
    sizes: Sequence[int] = SIZES,
    followers: Sequence[int] = FOLLOWERS,
    told: Callable[[str], None] = lambda text: None,
) -> Result:
    """Every job (name -> directory) by all these numbers of ranks. Raises RuntimeError if a process fails."""
    result = Result()
    for size in sizes:
        place = room / f"by {size}"
        works = [Work(directory, place / name) for name, directory in jobs.items()]
        for name, found in zip(jobs, by(size, works, place), strict=True):
            result.trained[name, size] = found
            digest = sha256()
            for path in sorted((place / name / "log").iterdir()):
                digest.update(path.read_bytes())
            result.logs[name, size] = digest.hexdigest()
        told(f"trained by {size}: " + ", ".join(f"{name} {result.trained[name, size].root[:8]}" for name in jobs))
    keys = [(name, size) for name in jobs for size in sizes]
    for follower in followers:
        place = room / f"followed by {follower}"
        works = [
            Work(jobs[name], place / f"{name} by {size}", room / f"by {size}" / name / "log") for name, size in keys
        ]
        for (name, size), found in zip(keys, by(follower, works, place), strict=True):
            result.followed[name, size, follower] = found
        told(f"followed by {follower}: {sum(result.findings(name) for name in jobs)} findings")
    return result


def markdown(
    result: Result,
    jobs: Mapping[str, Path],
    sizes: Sequence[int],
    followers: Sequence[int],
    precision: str = FP32,
    arithmetic: str = EXACT,
) -> str:
    """The section of the page."""
    lines = [
        "| task | steps | samples | runs | roots | root | logs | findings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, directory in jobs.items():
        job = Job.read(directory)
        found = result.trained[name, sizes[0]]
        logs = len({result.logs[name, size] for size in sizes})
        row = [
            name,
            job.spec.steps,
            samples_of(job.program),
            len(sizes) * (1 + len(followers)),
            len(result.roots(name)),
        ]
        lines.append("| " + " | ".join(map(str, [*row, f"`{found.root[:16]}`", logs, result.findings(name)])) + " |")
    option, title = ("--precision bf16 --markdown", TITLE_IN_BF16) if precision == BF16 else ("--markdown", TITLE)
    if arithmetic != EXACT:
        option = f"--precision bf16 --arithmetic {arithmetic} --markdown"
        title = _TITLE_OF_ARITHMETIC.format(arithmetic=arithmetic)
    text = _TEXT.format(option=option, sizes=_listed(sizes), followers=_listed(followers))
    return "\n".join(
        [title, text, f"Measured with PyTorch {torch.__version__}, small sizes of the tasks.", "", *lines, ""]
    )


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=[FP32, BF16], default=FP32, help="of the tasks")
    parser.add_argument("--arithmetic", choices=[EXACT, *ARITHMETICS], default=EXACT, help="of products in bf16")
    parser.add_argument("--task", action="append", choices=sorted(SHARED | SHARED_IN_BF16), help="only these")
    parser.add_argument("--ranks", action="append", type=int, help="only these numbers of ranks")
    parser.add_argument("--steps", type=int, default=SMALL_STEPS, help="number of steps of every task")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="the page whose table to replace")
    options = parser.parse_args()
    sizes = tuple(options.ranks or SIZES)
    tasks = SHARED_IN_BF16 if options.precision == BF16 else SHARED
    if unknown := set(options.task or []) - tasks.keys():
        parser.error(f"{sorted(unknown)[0]} is no task in {options.precision}: choose of {', '.join(tasks)}")
    if options.arithmetic != EXACT and options.precision != BF16:
        parser.error(f"--arithmetic {options.arithmetic} is for products in bf16: give --precision bf16, too")
    with tempfile.TemporaryDirectory(prefix="ranks-") as room:
        jobs = {}
        for name in options.task or tasks:
            jobs[name] = Path(room) / "jobs" / name
            Job.from_task(functools.partial(tasks[name], options.steps), arithmetic=options.arithmetic).write(
                jobs[name]
            )
        result = run(jobs, Path(room), sizes, told=lambda text: print(text, flush=True))
        text = markdown(result, jobs, sizes, FOLLOWERS, options.precision, options.arithmetic)
    print(text)
    if options.markdown is not None:
        options.markdown.write_text(with_section(options.markdown.read_text(), text))
    wrong = result.wrong()
    print("\n".join(wrong) or "One root for each task, by any number of ranks; nothing is wrong with any log.")
    return 1 if wrong else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
