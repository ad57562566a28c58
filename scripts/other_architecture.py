"""Another architecture: tasks, captured on x86-64, are trained and audited by an emulated AArch64 to the same roots.

    .venv/bin/python scripts/other_architecture.py [--tasks NAME ...] [--steps N] [--cache FOLDER]
                                                   [--markdown docs/bit-equality.md]

Needs Debian or a system made of it, on x86-64; no root rights. An AArch64 Python of Debian's, PyTorch's last wheel for
it without CUDA, and qemu's user-mode emulation are fetched from Debian and PyPI, 1.2 GB, into a folder outside of git.
First a negative control: what changes the floating-point environment there has to be noticed. Then every task is
trained here and there, audited there by the log of this machine, and audited without any. All roots of a task have to
be one, and that of docs/bit-equality.md. The tasks are those of matrix.py, or the ones in BF16 that --tasks names
(gpt_bf16), whose audits without a log are in micro-batches, or texts (llama_text, gpt2_text, with --steps 14).

The first task takes some minutes more than the others, since numba compiles under emulation. What is
done stays in the folder: run it again to carry on. Exit code 1 if anything differs, 2 if something is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from textwrap import fill

import torch
from generated import with_section
from machines.emulation import MIRROR, ROOT, Emulation, MissingToolError, prepared, requirements
from machines.environment_control import Reaction
from machines.process import Outcome
from machines.profiles import MACHINES, Machine
from machines.tasks import MORE_TEXTS, SMALL, SMALL_IN_BF16, SMALL_STEPS, TEXTS
from matrix import Result, make_jobs, run

PAGE = ROOT / "docs" / "bit-equality.md"
HERE, THERE = "x86-64", "AArch64"

TITLE = f"## One root on {HERE} and {THERE}"
TITLE_IN_BF16 = "## One root in BF16 on x86-64 and AArch64"
TITLE_OF_TEXTS = "## One text on x86-64 and AArch64"
_TEXT = """
Written by `scripts/other_architecture.py --markdown`; do not edit. Jobs are captured on x86-64 and trained there, and
by an AArch64 Python under emulation (qemu, user mode), which also audits by the log of x86-64 (a quarter of it
verified), and without any log. So this is about the code that compilers and libraries have for AArch64; no processor
has been tried. *Findings* counts what is wrong with any log.
"""


def controlled(machine: Machine) -> dict[str, str]:
    """Architecture, Python and PyTorch of a machine. Raises RuntimeError if a change of its floating-point
    environment goes unnoticed."""
    found: dict[str, str] = json.loads(machine.run("-m", "machines.environment_control"))
    reactions = found.pop("reactions")
    if wrong := unnoticed({name: Reaction(**one) for name, one in dict(reactions).items()}):
        raise RuntimeError("\n".join(wrong))
    return found


def unnoticed(reactions: Mapping[str, Reaction]) -> list[str]:
    """The changes of the environment that do not have the right reaction, a sentence each."""
    if len(reactions) < 4:
        return ["the negative control has not tried flushing and three rounding modes"]
    return [f"the environment changed ({name}): {one}" for name, one in reactions.items() if not one.is_right]


def sources() -> str:
    """A digest of all that a result could depend on: engine, tasks, the versions here and there."""
    digest = sha256("\n".join([torch.__version__, *requirements()]).encode())
    machines = [ROOT / "scripts" / "machines" / f"{name}.py" for name in ("hugging_face", "process", "tasks")]
    for path in [*sorted((ROOT / "engine").rglob("*.py")), *machines]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def compared(task: str, steps: int, emulation: Emulation, told: Callable[[str], None]) -> Result:
    """The result of one task on both machines, kept in the folder of the emulation."""
    path = emulation.folder / "results" / f"{task}-{steps}-{sources()[:16]}.json"
    if path.exists():
        kept = json.loads(path.read_text())
        outcomes = {name: {task: Outcome(**one)} for name, one in kept["outcomes"].items()}
        return Result(kept["kernels"], outcomes)
    machines = {HERE: MACHINES["native, one thread"], THERE: emulation.machine()}
    with tempfile.TemporaryDirectory(prefix="run-", dir=emulation.folder) as room:
        jobs, _ = make_jobs([task], Path(room) / "jobs", steps=steps)
        parts = 2 if task in SMALL_IN_BF16 else 1
        result = run(jobs, list(machines), Path(room), known=machines, told=told, parts=parts)
    path.parent.mkdir(exist_ok=True)
    kept = {"kernels": result.kernels, "outcomes": {name: asdict(o[task]) for name, o in result.outcomes.items()}}
    path.write_text(json.dumps(kept))
    return result


def together(results: Sequence[Result]) -> Result:
    """Results of several tasks as one."""
    outcomes: dict[str, dict[str, Outcome]] = {HERE: {}, THERE: {}}
    for result in results:
        for name, of_machine in result.outcomes.items():
            outcomes[name] |= of_machine
    return Result(results[0].kernels, outcomes)


def recorded(page: str, steps: int) -> dict[str, str]:
    """The roots that a page has of all machines of x86-64, in both precisions: task -> the first 16 digits."""
    rows = re.findall(r"^\| (\w+) \| (\d+) \| \d+ \| 1 \| `([0-9a-f]{16})` \|", page, re.MULTILINE)
    return {task: root for task, count, root in rows if int(count) == steps}


def wrong(result: Result, known: Mapping[str, str]) -> list[str]:
    """The differences from what is expected, a sentence each. known: as `recorded`."""
    sentences = result.wrong()
    for task, outcome in result.outcomes[HERE].items():
        if task in known and not outcome.trained.startswith(known[task]):
            sentences.append(f"{task} has the root {outcome.trained[:16]}, where {known[task]} is recorded")
    if len(set(result.kernels.values())) == 1:
        sentences.append("the two machines have the same FP64 kernels, so that equal roots show nothing")
    return sentences


def markdown(result: Result, steps: int, there: Mapping[str, str]) -> str:
    """The section of the page. there: as `controlled`."""
    lines = [
        f"| task | steps | {HERE} | {THERE} | {THERE}, by the log of {HERE} | {THERE}, without a log | findings |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, here in result.outcomes[HERE].items():
        outcome = result.outcomes[THERE][task]
        roots = [f"`{root[:16]}`" for root in (here.trained, outcome.trained, outcome.audited, outcome.alone)]
        findings = sum(one.findings + one.unreadable for one in (here, outcome))
        lines.append("| " + " | ".join(map(str, [task, steps, *roots, findings])) + " |")
    measured = (
        f"Measured with PyTorch {torch.__version__} on {HERE} and {there['torch']} on {THERE}, small sizes of the "
        f"tasks; the FP64 kernels are `{result.kernels[HERE][:8]}` and `{result.kernels[THERE][:8]}`. Before, flushing "
        f"to zero and three rounding modes were set on {THERE}, on the calling thread and on those of the kernels, and "
        "noticed."
    )
    tasks = result.outcomes[HERE].keys()
    title = (
        TITLE_OF_TEXTS
        if tasks <= (TEXTS | MORE_TEXTS).keys()
        else TITLE_IN_BF16
        if tasks <= SMALL_IN_BF16.keys()
        else TITLE
    )
    return "\n".join([title, _TEXT, fill(measured, 120), "", *lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = sorted(SMALL | SMALL_IN_BF16 | TEXTS | MORE_TEXTS)
    parser.add_argument("--tasks", nargs="+", choices=choices, default=list(SMALL), help="only these")
    parser.add_argument("--steps", type=int, default=SMALL_STEPS, help="number of steps of every task")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "aarch64", help="where everything is kept")
    parser.add_argument("--mirror", default=MIRROR, help="mirror of Debian")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="PAGE",
        help="the page whose table to replace",
    )
    options = parser.parse_args()

    def told(text: str) -> None:
        print(text, flush=True)

    try:
        emulation = prepared(options.cache, options.mirror, told)
        there = controlled(emulation.machine())
        told(f"{there['architecture']}, Python {there['python']}, PyTorch {there['torch']}: the control is noticed")
        result = together([compared(task, options.steps, emulation, told) for task in options.tasks])
    except MissingToolError as error:
        print(error, file=sys.stderr)
        return 2
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    text = markdown(result, options.steps, there)
    print(text)
    if options.markdown is not None:
        options.markdown.write_text(with_section(options.markdown.read_text(), text))
    found = wrong(result, recorded(PAGE.read_text(), options.steps))
    print("\n".join(found) or f"One root for each task on {HERE} and {THERE}.")
    return 1 if found else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
