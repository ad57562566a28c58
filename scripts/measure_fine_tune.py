"""A fine-tune of a real language model, from the script to one root on two machines and a receipt.

    .venv/bin/python scripts/measure_fine_tune.py MODEL [--text FILE] [--steps 40] [--directory FOLDER]

MODEL is a folder with weights, configuration and tokenizer in BF16, such as `huggingface-cli download
HuggingFaceTB/SmolLM2-135M-Instruct --local-dir SmolLM2-135M-Instruct` leaves. The script that is captured is
scripts/fine_tuning/lora_task.py. Both machines (hardware profiles of scripts/machines/profiles.py, one thread each)
make the job; the first trains it, the second audits that run with its log, and repeats an interval of the receipt; and
`Trainer.train()` itself trains on the job's batches. Each is a process of its own: printed are its seconds, its
processor's, and its peak memory, then losses of the run beside those of `train()`. What has been done in FOLDER is not
done again. Exit code 1 if jobs or roots differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fine_tuning import plain
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
    """A folder with what has been made, and what each part of it has cost."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._costs = folder / "costs.json"
        folder.mkdir(parents=True, exist_ok=True)

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


def measure(model: Path, text: Path, steps: int, room: Room) -> bool:
    """Does it all, and prints the table. True if both machines come to one job and one root."""
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
    room.run("train() itself", FIRST, [plain.__file__, jobs[FIRST], model, text, str(steps)])

    specs = [(job / "spec.json").read_bytes() for job in jobs.values()]
    print(f"\nroot {json.loads(receipt.read_text())['checkpoint_root']}")
    print("one job on both machines" if specs[0] == specs[1] else "the machines have made two jobs")
    ours = [entry.loss for entry in read_history(trained) if entry.loss is not None]
    theirs = json.loads(room.path("train() itself.txt").read_text().splitlines()[-1])
    print("\n| step | run | `train()` |\n|---|---|---|")
    for step in sorted({0, *range(9, steps, 10), steps - 1}):
        print(f"| {step + 1} | {ours[step]:.4f} | {theirs[step]:.4f} |")
    print(f"\nlargest difference {max(abs(a - b) for a, b in zip(ours, theirs, strict=True)):.4f}")
    return specs[0] == specs[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder with weights, configuration, tokenizer")
    parser.add_argument("--text", type=Path, default=_TEXT, metavar="FILE")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--directory", type=Path, metavar="FOLDER", help="for jobs, runs and the receipt; kept")
    options = parser.parse_args()
    if not (options.model / "config.json").is_file():
        parser.error(
            f"{options.model} is no folder with a model: `huggingface-cli download HuggingFaceTB/SmolLM2-135M-Instruct "
            f"--local-dir {options.model}` fetches one"
        )
    with tempfile.TemporaryDirectory(prefix="fine-tune-") as temporary:
        room = Room(options.directory or Path(temporary))
        return int(not measure(options.model.resolve(), options.text.resolve(), options.steps, room))


if __name__ == "__main__":
    sys.exit(main())
