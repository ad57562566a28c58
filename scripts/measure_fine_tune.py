"""A fine-tune of a real language model, from the script to one root on two machines and a receipt.

    .venv/bin/python scripts/measure_fine_tune.py MODEL [--text FILE] [--steps 40] [--directory FOLDER]

MODEL is a folder with weights, configuration and tokenizer in BF16, such as `huggingface-cli download
HuggingFaceTB/SmolLM2-135M-Instruct --local-dir SmolLM2-135M-Instruct` leaves. The script that is captured is
scripts/fine_tuning/lora_task.py. Both machines (hardware profiles of scripts/machines/profiles.py, one thread each)
make the job; the first trains it, the second audits that run with its log, and repeats an interval of the receipt; and
`Trainer.train()` itself trains on the job's batches. Each is a process of its own: printed are its seconds, its
processor's, and its peak memory, then losses of the run beside those of `train()`. What has been done in FOLDER is not
done again; one of another model, text, script or number of steps is refused. Exit code 1 if jobs or roots differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from machines.profiles import MACHINES

FIRST, SECOND = "native, one thread", "AVX2, one thread"
"""The machines: profiles."""
_SCRIPT = Path(__file__).resolve().parent / "fine_tuning" / "lora_task.py"
_TIEBREAK = ("-P", "-m", "tiebreak")
_TEXT = _SCRIPT.parents[2] / "docs" / "design.md"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a process, in seconds and bytes."""

    seconds: float
    processor: float
    peak: int


class Room:
    """A folder with what has been made, and what each part of it has cost. Raises ValueError for a folder that was
    made of another `source`, or holds something else."""

    def __init__(self, folder: Path, source: Mapping[str, str | int]) -> None:
        self._folder = folder
        self._costs = folder / "costs.json"
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "source.json"
        if not kept.exists():
            if any(folder.iterdir()):
                raise ValueError(f"{folder} holds something else: choose an empty folder")
            kept.write_text(json.dumps(source))
        before = json.loads(kept.read_text())
        if other := [name for name in source if before.get(name) != source[name]]:
            raise ValueError(f"{folder} was made with another {' and another '.join(other)}: choose an empty folder")

    def path(self, name: str) -> Path:
        return self._folder / name

    def run(self, name: str, machine: str, command: Sequence[str | Path]) -> None:
        """Runs a command as a machine, unless it has been run, keeps what it prints as `name`.txt, and prints its cost.
        Raises SystemExit if it fails."""
        costs = json.loads(self._costs.read_text()) if self._costs.exists() else {}
        if name not in costs:
            costs[name] = asdict(self._measured(name, machine, command))
            self._costs.write_text(json.dumps(costs))
        cost = Cost(**costs[name])
        figures = f"{cost.seconds:,.0f} s | {cost.processor:,.0f} s | {cost.peak / 1e9:.1f} GB"
        print(f"| {name} | {machine} | {figures} |", flush=True)

    def _measured(self, name: str, machine: str, command: Sequence[str | Path]) -> Cost:
        started = time.monotonic()
        with self.path(f"{name}.txt").open("w") as out:
            process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                env=MACHINES[machine].environment(),
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{name} failed:\n{self.path(f'{name}.txt').read_text()[-2000:]}")
        return Cost(time.monotonic() - started, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def source_of(model: Path, text: Path, steps: int) -> dict[str, str | int]:
    """All that the results come from, files as SHA-256: those of the model by their names."""
    files = {path.name: _digest(path) for path in sorted(model.iterdir()) if path.is_file()}
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return {"model": digest, "text": _digest(text), "number of steps": steps, "script": _digest(_SCRIPT)}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def measure(model: Path, text: Path, steps: int, room: Room) -> bool:
    """Does it all, and prints the table. True if both machines come to one job and to the same roots. Raises SystemExit
    where an audit or a verification finds something wrong."""
    from roundlog.training import read_history

    print("| part | machine | seconds | processor | peak memory |\n|---|---|---|---|---|", flush=True)
    settings = [f"model={model}", f"text={text}", f"steps={steps}"]
    given = [part for setting in settings for part in ("--set", setting)]
    jobs = {machine: room.path(f"job of {machine}") for machine in (FIRST, SECOND)}
    for name, (machine, job) in zip(("job create", "job create again"), jobs.items(), strict=True):
        create: list[str | Path] = [*_TIEBREAK, "job", "create", f"{_SCRIPT}:task", *given, "--out", job]
        room.run(name, machine, create)
    trained, audited, receipt = room.path("trained"), room.path("audited"), room.path("receipt.json")
    room.run("train", FIRST, [*_TIEBREAK, "train", jobs[FIRST], "--run", trained])
    claimed: list[str | Path] = ["--claim", trained, "--log", trained / "log"]
    room.run("audit", SECOND, [*_TIEBREAK, "audit", jobs[SECOND], "--run", audited, *claimed])
    room.run("receipt", FIRST, [*_TIEBREAK, "receipt", trained, "--job", jobs[FIRST], "--out", receipt])
    share: list[str | Path] = ["--run", trained, "--share", "0.25"]
    work = room.path("verified")
    room.run("verify", SECOND, [*_TIEBREAK, "verify", receipt, "--job", jobs[SECOND], "--dir", work, *share])
    itself: list[str | Path] = [__file__, model, "--text", text, "--steps", str(steps), "--losses-of", jobs[FIRST]]
    room.run("train() itself", FIRST, itself)

    one_job = len({(job / "spec.json").read_bytes() for job in jobs.values()}) == 1
    print("\none job on both machines" if one_job else "\nthe machines have made two jobs")
    same_roots = compare_roots({name: room.path(f"{name}.txt").read_text() for name in ("train", "audit", "receipt")})
    # Its exit code is 0 if the intervals that it repeats have the state roots of the receipt.
    print(room.path("verify.txt").read_text().splitlines()[-1])
    ours = [entry.loss for entry in read_history(trained) if entry.loss is not None]
    theirs = json.loads(room.path("train() itself.txt").read_text().splitlines()[-1])
    print("\n| step | run | `train()` |\n|---|---|---|")
    for step in sorted({0, *range(9, steps, 10), steps - 1}):
        print(f"| {step + 1} | {ours[step]:.4f} | {theirs[step]:.4f} |")
    print(f"\nlargest difference {max(abs(a - b) for a, b in zip(ours, theirs, strict=True)):.4f}")
    return one_job and same_roots


def compare_roots(printed: Mapping[str, str]) -> bool:
    """Prints the roots in what commands have printed, by their names. True if all of them name the same ones."""
    same = True
    for kind in ("checkpoint root", "final state root"):
        found = {name: _root(kind, text) for name, text in printed.items()}
        if len(set(found.values())) == 1:
            print(f"one {kind} by {', '.join(found)}: {next(iter(found.values()))}")
        else:
            same = False
            print(f"another {kind} by each: " + ", ".join(f"{name} {root}" for name, root in found.items()))
    return same


def _root(kind: str, printed: str) -> str:
    found = re.search(rf"^ *{kind} +(0x[0-9a-f]{{64}})$", printed, re.MULTILINE)
    if found is None:
        raise SystemExit(f"no {kind} in what was printed:\n{printed}")
    return found[1]


def plain_losses(directory: Path, model: Path, text: Path, steps: int, *, moved: int = 0, **more: Any) -> list[float]:
    """The losses of `train()` of the script's own trainer, from the first state of a job and on its batches. moved: how
    many steps later the job has the batches; more: further arguments of TrainingArguments."""
    import torch
    from fine_tuning.lora_task import BATCH, rows_of, trainer_of
    from roundlog.capture.captured import model_tensors
    from roundlog.randomness import batch_rows
    from roundlog.training.job import Job

    job = Job.read(directory)
    rows = rows_of(model, text)
    ordered = [rows[row] for step in range(steps) for row in batch_rows(job.spec.seed, step + moved, BATCH, len(rows))]
    with tempfile.TemporaryDirectory() as output:
        more = {"output_dir": output, "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True} | more
        trainer = trainer_of(model, ordered, steps, train_sampling_strategy="sequential", **more)
        # The adapters of a job are drawn by its own generator.
        with torch.no_grad():
            for name, tensor in model_tensors(trainer.model).items():
                tensor.copy_(job.initial[name])
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder with weights, configuration, tokenizer")
    parser.add_argument("--text", type=Path, default=_TEXT, metavar="FILE")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--directory", type=Path, metavar="FOLDER", help="for jobs, runs and the receipt; kept")
    parser.add_argument("--losses-of", type=Path, help=argparse.SUPPRESS)  # a job: the losses of train() alone
    options = parser.parse_args()
    if not (options.model / "config.json").is_file():
        parser.error(
            f"{options.model} is no folder with a model: `huggingface-cli download HuggingFaceTB/SmolLM2-135M-Instruct "
            f"--local-dir {options.model}` fetches one"
        )
    if not options.text.is_file():
        parser.error(f"--text: there is no file {options.text}")
    if options.steps < 1:
        parser.error(f"--steps: {options.steps} is no number of steps, which is 1 or more")
    model, text = options.model.resolve(), options.text.resolve()
    if options.losses_of is not None:
        print(json.dumps(plain_losses(options.losses_of, model, text, options.steps)))
        return 0
    with tempfile.TemporaryDirectory(prefix="fine-tune-") as temporary:
        try:
            room = Room(options.directory or Path(temporary), source_of(model, text, options.steps))
        except (ValueError, OSError) as error:
            parser.error(str(error))
        return int(not measure(model, text, options.steps, room))


if __name__ == "__main__":
    sys.exit(main())
