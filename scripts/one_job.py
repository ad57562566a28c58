"""One script, one job: tasks are made and captured under hardware profiles in fresh processes, and their jobs compared.

    .venv/bin/python scripts/one_job.py [--task NAME ...] [--machine NAME ...] [--tensors] [--torch-random]

The example tasks and ten kinds of transformers, which draw their weights. On every machine (other instructions,
libraries and threads: scripts/machines/profiles.py) all roots of a job's spec have to be the same. --tensors: only
makes the tasks, and compares the bits of their tensors, which takes seconds. --torch-random: with PyTorch's own
numbers, as a negative control. Exit code 1 if a job differs, or if something was computed by PyTorch itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

from machines.profiles import MACHINES

Jobs = dict[str, dict[str, str]]
"""Task -> name of a root -> the root, in hexadecimal; and what was not portable."""

PROFILES = ("native", "native, one thread", "AVX2", "SSE4.2", "generic")
_PATIENCE = 3 * 3600
"""Seconds for one machine."""


def tasks() -> dict[str, Callable[[int], object]]:
    """All tasks, by name."""
    from machines.hugging_face import KINDS
    from machines.tasks import SMALL

    return {**SMALL, **{f"transformers/{name}": make for name, make in KINDS.items()}}


def made(names: Sequence[str], *, tensors: bool, torch_random: bool) -> Jobs:
    """The tasks, made in this process."""
    from roundlog.capture import Task, portable, torchs_own
    from roundlog.training.job import Job

    warnings.simplefilter("ignore")
    known, found = tasks(), Jobs()
    for name in names or known:
        with torchs_own() if torch_random else contextlib.nullcontext(), portable() as numbers:
            task = known[name](2)
            assert isinstance(task, Task)
            if tensors:
                found[name] = {"tensors": _digest(task)}
            else:
                spec = Job.from_task(lambda task=task: task).spec
                roots = ("program_root", "initial_state_root", "data_root", "schedule_root")
                found[name] = {root: getattr(spec, root).hex() for root in roots}
        found[name]["unportable"] = "" if numbers is None else ", ".join(numbers.unportable)
    return found


def _digest(task: object) -> str:
    from roundlog.capture import Task
    from roundlog.capture.captured import model_tensors
    from roundlog.commitments import tensor_root

    assert isinstance(task, Task)
    digest = sha256()
    for tensor in model_tensors(task.model).values():
        digest.update(tensor_root(tensor.detach()))
    for field in task.fields().values():
        digest.update(bytes(field.read(0, field.nbytes)))
    return digest.hexdigest()


def on_machine(machine: str, names: Sequence[str], flags: Sequence[str]) -> Jobs:
    """Jobs of a process that is another machine. Raises RuntimeError if it fails."""
    profile = MACHINES[machine]
    command = [*profile.interpreter, __file__, "--made", *flags]
    for name in names:
        command += ["--task", name]
    done = subprocess.run(
        command, env=profile.environment(), capture_output=True, text=True, timeout=_PATIENCE, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the process that is {machine} failed:\n{done.stderr}")
    found: Jobs = json.loads(done.stdout.splitlines()[-1])
    return found


def differences(by_machine: Mapping[str, Jobs]) -> list[str]:
    """Differences between machines, and whatever is not portable, a sentence each."""
    first, *others = by_machine
    said = []
    for task, job in by_machine[first].items():
        if job["unportable"]:
            said.append(f"{task}: PyTorch itself computed {job['unportable']}")
        for machine in others:
            other = by_machine[machine][task]
            unlike = [name for name in job if job[name] != other[name]]
            if unlike:
                said.append(f"{task}: {', '.join(unlike)} on {machine} is not that on {first}")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--made", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--task", action="append", default=[], metavar="NAME", help="only this; may be given again")
    parser.add_argument("--machine", action="append", choices=list(MACHINES), help="only these")
    parser.add_argument("--tensors", action="store_true", help="compare tensors alone")
    parser.add_argument("--torch-random", action="store_true", help="PyTorch's own numbers")
    options = parser.parse_args()
    if options.made:
        print(json.dumps(made(options.task, tensors=options.tensors, torch_random=options.torch_random)))
        return 0
    flags = [flag for flag in ("--tensors", "--torch-random") if getattr(options, flag[2:].replace("-", "_"))]
    by_machine = {}
    for machine in options.machine or PROFILES:
        by_machine[machine] = on_machine(machine, options.task, flags)
        print(
            f"{machine}: " + ", ".join(f"{name} {_short(job)}" for name, job in by_machine[machine].items()), flush=True
        )
    found = differences(by_machine)
    print("\n".join(found) or f"One job for each of {len(next(iter(by_machine.values())))} tasks, on every machine.")
    return 1 if found else 0


def _short(job: Mapping[str, str]) -> str:
    return sha256("".join(job[name] for name in sorted(job)).encode()).hexdigest()[:8]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
