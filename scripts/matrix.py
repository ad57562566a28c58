"""The matrix of tasks and machines: example tasks, trained and audited under hardware profiles in fresh processes.

    .venv/bin/python scripts/matrix.py [--precision bf16 [--arithmetic hopper]] [--texts] [--task NAME]
                                       [--machine NAME] [--steps N] [--parallel N] [--markdown FILE]

One CPU is several machines, depending on which of its instructions PyTorch, MKL, oneDNN and numba may use. On each of
them every task is trained, audited by the log that the first machine wrote (a quarter of it verified), and audited
without any log; the three checkpoint roots of all machines have to be one. A CUDA device, where there is one, is one
machine more. Beside it, as a measure of how different the machines are: in how many different states plain FP32 and
plain FP64 PyTorch end, from the same initial state, on the same batches.

The tasks are small and have 50 steps.
With --precision bf16 they are the tasks under autocast, small, and models of `transformers`; --markdown then
replaces the section of the page about them. With --arithmetic their products and convolutions are those of tensor
cores, and so is the section. With --texts they are generations of text, which have a section of their own. Exit code 1
if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from generated import with_section
from machines.process import Outcome, be_a_machine
from machines.profiles import MACHINES, Machine
from machines.tasks import MORE_TEXTS, SMALL, SMALL_IN_BF16, SMALL_STEPS, TEXT_STEPS, TEXTS
from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.examples import BF16, FP32
from roundlog.operators.job_arithmetic import EXACT
from roundlog.training.job import Job

_PAGE = """# One root on every machine

Written by `scripts/matrix.py --markdown`; do not edit. Every task is trained on every machine below, audited there by
the log that the first machine wrote (a quarter of it verified), and audited without any log: three runs a machine, each
machine a fresh process. *Roots* counts the different checkpoint roots of all these runs, *plain results* the different
final states of plain PyTorch training from the same state on the same batches. *FP64 kernels* is a digest of what the
machine's own FP64 kernels make of a few numbers; machines that agree on these still differ on others, as the plain
results show.
"""
TITLE_IN_BF16 = "## One root in BF16 on every machine"
_TEXT_IN_BF16 = """
Written by `scripts/matrix.py --precision bf16 --markdown`; do not edit. As the first table, for tasks under
`torch.autocast("cpu", dtype=torch.bfloat16)`: the examples, and models of `transformers`, made from configurations.
Audits without a log are done in micro-batches, half a batch each.
*Plain results* are those of PyTorch under the same autocast, and in FP64, where autocast converts nothing.
"""
_TITLE_OF_ARITHMETIC = "## One root in the arithmetic {arithmetic} on every machine"
_TEXT_OF_ARITHMETIC = """
Written by `scripts/matrix.py --precision bf16 --arithmetic {arithmetic} --markdown`; do not edit. As the table before,
for the same tasks with the products and convolutions [of tensor cores](arithmetic.md). *Plain results* are PyTorch's
own, as there.
"""
_TITLE_OF_TEXTS = "## One text on every machine"
_TEXT_OF_TEXTS = """
Written by `scripts/matrix.py --texts --markdown`; do not edit. As the first table, for [text](how-to/generation.md)
that a small Llama in BF16, of random weights, generates behind two prompts: twelve tokens behind the longest prompt,
each drawn with a temperature of 0.9 from the 40 likeliest that have a share of 0.95. A step reads or writes one token
of every sequence.
*Plain results* are the final states of the same steps by PyTorch, with its own draws.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """All outcomes: by machine, then by task."""

    kernels: dict[str, str]
    outcomes: dict[str, dict[str, Outcome]]

    def of_task(self, task: str) -> list[Outcome]:
        return [outcomes[task] for outcomes in self.outcomes.values()]

    def wrong(self) -> list[str]:
        """The differences from what is expected, a sentence each."""
        sentences = []
        for task in next(iter(self.outcomes.values()), {}):
            right = self.of_task(task)[0].trained
            for machine, outcomes in self.outcomes.items():
                found = outcomes[task]
                if found.roots != {right} or found.findings or found.unreadable:
                    sentences.append(f"{task} on {machine}: {found}, where {right} is right")
        return sentences


def run(
    jobs: Mapping[str, Path],
    machines: Sequence[str],
    room: Path,
    *,
    steps: Mapping[str, int] | None = None,
    parallel: int = 1,
    parts: int = 1,
    known: Mapping[str, Machine] = MACHINES,
    told: Callable[[str], None] = lambda text: None,
) -> Result:
    """Every job (name -> directory) on every machine: on the first one, whose logs the others audit by, and then on
    the others, so many at a time. `steps`: for the jobs that are of this file's tasks, of that many steps: they are
    also trained by plain PyTorch. parts: micro-batches of an audit without a log. known: the machines by their names.
    Raises RuntimeError if a process fails."""

    def one(name: str, log_room: Path | None) -> tuple[str, dict[str, Outcome]]:
        machine, place = known[name], room / name
        entries = [
            {
                "job": str(directory),
                "run": str(place / job),
                "log": None if log_room is None else str(log_room / job / "trained" / "log"),
                "task": job if steps and job in steps else None,
                "steps": (steps or {}).get(job),
                "parts": parts,
            }
            for job, directory in jobs.items()
        ]
        place.mkdir(parents=True)
        (place / "plan.json").write_text(json.dumps({"device": machine.device, "jobs": entries}))
        first, *lines = machine.run(__file__, "--plan", str(place / "plan.json")).splitlines()
        outcomes = {job: Outcome(**json.loads(line)) for job, line in zip(jobs, lines, strict=True)}
        told(f"{name}: " + ", ".join(f"{job} {o.trained[:8]} ({o.seconds} s)" for job, o in outcomes.items()))
        for job in jobs:
            # States can be large; only the first machine's logs are needed any more.
            for finished in ("trained/checkpoints", "audited", "alone"):
                shutil.rmtree(place / job / finished)
        return json.loads(first)["kernels"], outcomes

    reference, *others = machines
    found = {reference: one(reference, None)}
    with ThreadPoolExecutor(parallel) as pool:
        found |= zip(others, pool.map(lambda name: one(name, room / reference), others), strict=True)
    return Result({name: both[0] for name, both in found.items()}, {name: both[1] for name, both in found.items()})


def make_jobs(
    tasks: Iterable[str], room: Path, *, steps: int | None, arithmetic: str = EXACT
) -> tuple[dict[str, Path], dict[str, int]]:
    """Captures tasks of this file: (name -> directory, name -> steps)."""
    jobs, counts, texts = {}, {}, TEXTS | MORE_TEXTS
    for name in tasks:
        make, count = (texts[name], TEXT_STEPS) if name in texts else ((SMALL | SMALL_IN_BF16)[name], SMALL_STEPS)
        counts[name] = steps or count
        Job.from_task(functools.partial(make, counts[name]), arithmetic=arithmetic).write(room / name)
        jobs[name] = room / name
    return jobs, counts


def markdown(result: Result, steps: Mapping[str, int], *, precision: str = FP32, arithmetic: str = EXACT) -> str:
    """The result as a page with two tables; in bf16, and of texts, as a section with the first of them."""
    lines = [
        f"| task | steps | runs | roots | root | plain {precision.upper()} results | plain FP64 results |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, count in steps.items():
        outcomes = result.of_task(task)
        roots = set().union(*(outcome.roots for outcome in outcomes))
        row = [task, count, 3 * len(outcomes), len(roots), f"`{outcomes[0].trained[:16]}`"]
        row += [len({o.plain32 for o in outcomes}), len({o.plain64 for o in outcomes})]
        lines.append("| " + " | ".join(map(str, row)) + " |")
    where = f"Measured with PyTorch {torch.__version__} on {platform.machine()}, small sizes of the tasks."
    if steps.keys() <= TEXTS.keys():
        return "\n".join([_TITLE_OF_TEXTS, _TEXT_OF_TEXTS, where, "", *lines]) + "\n"
    if arithmetic != EXACT:
        title, text = (one.format(arithmetic=arithmetic) for one in (_TITLE_OF_ARITHMETIC, _TEXT_OF_ARITHMETIC))
        return "\n".join([title, text, where, "", *lines]) + "\n"
    if precision == BF16:
        return "\n".join([TITLE_IN_BF16, _TEXT_IN_BF16, where, "", *lines]) + "\n"
    lines += ["", "| machine | threads | environment | FP64 kernels |", "|---|---|---|---|"]
    for name, digest in result.kernels.items():
        machine = MACHINES[name]
        variables = " ".join(f"{key}={value}" for key, value in machine.variables.items()) or "-"
        lines.append(f"| {name} | {machine.threads} | {variables} | `{digest[:8]}` |")
    return "\n".join([_PAGE, where, "", *lines]) + "\n"


def _sections(page: Path) -> str:
    """The sections that other scripts have written into a page."""
    _, mark, rest = page.read_text().partition("\n## ") if page.exists() else ("", "", "")
    return mark + rest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--precision", choices=[FP32, BF16], default=FP32, help="of the tasks")
    parser.add_argument("--arithmetic", choices=[EXACT, *ARITHMETICS], default=EXACT, help="of products in bf16")
    parser.add_argument("--texts", action="store_true", help="generations of text")
    parser.add_argument("--task", action="append", choices=sorted(SMALL | SMALL_IN_BF16 | TEXTS), help="only these")
    parser.add_argument("--machine", action="append", choices=list(MACHINES), help="only these")
    parser.add_argument("--steps", type=int, help="another number of steps for every task")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="machines at a time, after the first")
    parser.add_argument("--markdown", type=Path, help="where to write the tables")
    options = parser.parse_args()
    if options.plan is not None:
        be_a_machine(options.plan)
        return 0
    tasks = TEXTS if options.texts else SMALL_IN_BF16 if options.precision == BF16 else SMALL
    if options.texts and options.precision == BF16:
        parser.error("--texts has tasks of its own: leave --precision away")
    if options.arithmetic != EXACT and options.precision != BF16:
        parser.error(f"--arithmetic {options.arithmetic} is for products in bf16: give --precision bf16, too")
    kind = "text" if options.texts else f"task in {options.precision}"
    if unknown := set(options.task or []) - tasks.keys():
        parser.error(f"{sorted(unknown)[0]} is no {kind}: choose of {', '.join(tasks)}")
    machines = []
    for name in options.machine or MACHINES:
        reason = MACHINES[name].missing()
        print(f"{name}: left out, {reason}" if reason else f"{name}: takes part", flush=True)
        machines += [] if reason else [name]
    with tempfile.TemporaryDirectory(prefix="matrix-") as room:
        jobs, steps = make_jobs(
            options.task or tasks,
            Path(room) / "jobs",
            steps=options.steps,
            arithmetic=options.arithmetic,
        )
        result = run(
            jobs,
            machines,
            Path(room),
            steps=steps,
            parallel=options.parallel,
            parts=2 if options.precision == BF16 else 1,
            told=lambda text: print(text, flush=True),
        )
    text = markdown(result, steps, precision=options.precision, arithmetic=options.arithmetic)
    print(text)
    if options.markdown is not None and (options.texts or options.precision == BF16):
        options.markdown.write_text(with_section(options.markdown.read_text(), text))
    elif options.markdown is not None:
        options.markdown.write_text(text + _sections(options.markdown))
    wrong = result.wrong()
    print("\n".join(wrong) or "One root for each task, on every machine, with the log and without.")
    return 1 if wrong else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
