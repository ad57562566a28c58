"""A device, tried in one command of at most nine minutes: the self-test, roots of small tasks, and the price of a step.

    python scripts/on_a_device.py [--device cuda] [--minutes 9] [--model gpt12m] [--rounds 5] [--markdown FILE]
    python scripts/on_a_device.py --record

It needs this repository, its package as `pip install -e .` has it, PyTorch 2.11 or newer, and no network. Small tasks
are trained and audited on the device, FP32 and BF16, exact and by arithmetics of tensor cores; their roots have to be
those that processors came to (scripts/machines/device_roots.json, which --record writes on a processor). Then
`bench_engine.py` takes steps of a model beside plain PyTorch's: FP32, BF16, and BF16 with the arithmetic that the
device's own tensor cores have, if they have one. Every part is a process that ends with the time at the latest.

The last thing on standard output is a page of Markdown with what was found. Exit code: 0, 1 if a root or the self-test
is wrong, 2 if a part failed otherwise. What the time was too short for is named on the page, and is no failure.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiebreak.machine_probe import HostFacts, MachineFindings, host_facts, machine_findings, output_of

HERE = Path(__file__).resolve()
_NEW = "What it tries are the card, its assembler and PyTorch's kernels: ours have taken whole steps on a processor."
_LEAST = 5.0
"""Seconds with which no further part begins."""


@dataclass(slots=True)
class Trial:
    """All that was found. `skipped`: parts for which the time was too short, or that the device has not; `failed`:
    parts that ended with an error, and its last line."""

    device: str
    host: HostFacts
    machine: MachineFindings = field(default_factory=MachineFindings)
    rows: list[dict[str, Any]] = field(default_factory=list)
    benches: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def facts(self) -> Mapping[str, Any]:
        """The device as the self-test has found it; empty if it has not."""
        # PyTorch takes the first of a kind where no number is given; a processor has none.
        named = (self.device, self.device.partition(":")[0])
        devices = self.machine.devices
        return next(
            (one for one in devices if one["device"] in named or one["device"].partition(":")[0] == self.device), {}
        )

    def wrong(self) -> list[str]:
        """Rows whose roots differ, and a self-test that does not pass."""
        wrong = [row["name"] for row in self.rows if {row["trained"], row["audited"]} != {row["expected"]}]
        return (["self-test"] if self.facts() and not self.facts()["passes"] else []) + wrong

    def code(self) -> int:
        return 1 if self.wrong() else 2 if self.failed else 0


class Clock:
    """The time that is left. `seconds`: of all."""

    def __init__(self, seconds: float) -> None:
        self.began, self._seconds = time.monotonic(), seconds

    def left(self) -> float:
        return self._seconds - (time.monotonic() - self.began)


def part(trial: Trial, clock: Clock, name: str, command: Sequence[str]) -> str:
    """Output of a process, whole or until the time was over; its end, if it is not that of success, is noted."""
    if clock.left() < _LEAST:
        trial.skipped[name] = "no time was left"
        return ""
    print(f"{name}: {clock.left():.0f} seconds are left", file=sys.stderr, flush=True)
    out, err, code = output_of(command, clock.left())
    if code is None:
        trial.skipped[name] = "the time was over before its end"
    elif code:
        lines = [line.strip() for line in err.splitlines() if line.strip()]
        trial.failed[name] = lines[-1][:300] if lines else f"exit code {code}"
    return out


def try_machine(trial: Trial, clock: Clock) -> None:
    """The self-test, and what PyTorch says of the device."""
    trial.machine = machine_findings(max(_LEAST, clock.left()))
    if trial.machine.why:
        trial.failed["self-test"] = trial.machine.why
    elif not trial.facts():
        why = (trial.machine.torch or {}).get("why_not") or "PyTorch knows of none"
        trial.failed["self-test"] = f"there is no device {trial.device} here: {why}"


def try_roots(trial: Trial, clock: Clock, names: Sequence[str]) -> None:
    command = [sys.executable, str(HERE), "--roots", *names, "--device", trial.device]
    for line in part(trial, clock, "roots", command).splitlines():
        try:
            trial.rows.append(json.loads(line))
        except ValueError:
            continue  # the line that the end of the time has cut
    done = {row["name"] for row in trial.rows}
    trial.skipped |= {f"root of {name}": "not reached" for name in names if name not in done}


def benches(trial: Trial) -> dict[str, list[str]]:
    """Options of `bench_engine.py` by the name of a row."""
    own = [one["name"] for one in trial.facts().get("arithmetics", ()) if one["in_hardware"]]
    found = {"FP32, exact": [], "BF16, exact": ["--precision", "bf16"]}
    for name in own:
        found[f"BF16, {name}"] = ["--precision", "bf16", "--arithmetic", name]
    if not own:
        trial.skipped["a step with an arithmetic of tensor cores"] = "it is not known that this device has one"
    return found


def try_steps(trial: Trial, clock: Clock, model: str, rounds: int) -> None:
    script = str(HERE.with_name("bench_engine.py"))
    with tempfile.TemporaryDirectory() as room:
        for number, (name, options) in enumerate(benches(trial).items()):
            file = Path(room) / f"{number}.json"
            words = ["--model", model, "--rounds", str(rounds), "--device", trial.device, "--json", str(file)]
            part(trial, clock, f"step in {name}", [sys.executable, script, *words, *options])
            if file.exists():
                # A file that the end of the time has cut; that is noted.
                with suppress(ValueError):
                    trial.benches[name] = json.loads(file.read_text())


def page(trial: Trial) -> str:
    """The page of Markdown."""
    facts, torch = trial.facts(), trial.machine.torch or {}
    card = facts.get("name") or (trial.host.processor if trial.device == "cpu" else "unknown")
    lines = [f"# {card}", "", f"Written by `scripts/on_a_device.py`. {_NEW}", "", "| | |", "|---|---|"]
    capability = f", capability {facts['capability']}" if facts.get("capability") else ""
    described = {
        "device": f"{trial.device}: {card}{capability}",
        "driver": trial.host.driver or "none of NVIDIA's",
        "PyTorch": f"{torch.get('version', 'unknown')}, CUDA {torch.get('cuda') or 'none'}",
        "Triton": f"{torch.get('triton') or 'none'}, used: {'yes' if facts.get('triton_works') else 'no'}",
        "processor": f"{trial.host.processor}, {trial.host.cores} cores; {torch.get('kernels', 'unknown')}",
        "system": f"{trial.host.system}, Python {platform.python_version()}",
        "self-test": "not reached" if not facts else "passed" if facts["passes"] else f"**failed**: {facts['why']}",
        "time": f"{trial.seconds:.0f} s",
    }
    lines += [f"| {name} | {_cell(value)} |" for name, value in described.items()]
    if trial.rows:
        lines += ["", "| task | root | trained | audited | whose root | seconds |", "|---|---|---|---|---|---|"]
        for row in trial.rows:
            shown = [_verdict(row[key], row["expected"]) for key in ("trained", "audited")]
            cells = [row["name"], f"`{row['expected'][:16]}`", *shown, row["of"], row["seconds"]]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    if trial.benches:
        lines += ["", "| step | figure | |", "|---|---|---|"]
        for name, found in trial.benches.items():
            ratios = {key: value for key, value in found.items() if " / " in key}
            seconds = {f"{key}, seconds": value for key, value in found["seconds"].items()}
            lines += [f"| {found['model']}, {name} | {key} | {value} |" for key, value in (seconds | ratios).items()]
    for title, some in (("Failed", trial.failed), ("Left out", trial.skipped)):
        lines += ["", f"{title}:", "", *(f"* {name}: {_cell(why)}" for name, why in some.items())] if some else []
    wrong = trial.wrong()
    right = f"{len(trial.rows)} of {len(trial.rows)} roots are right." if trial.rows else "No root was computed."
    verdict = f"**Wrong: {', '.join(wrong)}.**" if wrong else right
    return "\n".join([*lines, "", verdict]) + "\n"


def _verdict(root: str, expected: str) -> str:
    return "equal" if root == expected else f"**`{root[:16]}`**"


def _cell(value: object) -> str:
    """A text that stays within its cell, and controls no terminal."""
    return "".join(one if one.isprintable() else " " for one in str(value)).replace("|", "\\|")


def try_device(device: str, seconds: float, names: Sequence[str], model: str, rounds: int) -> Trial:
    """All parts, as far as the time allows."""
    clock, trial = Clock(seconds), Trial(device, host_facts())
    parts: list[Callable[[], None]] = [
        lambda: try_roots(trial, clock, names),
        lambda: try_steps(trial, clock, model, rounds),
    ]
    try_machine(trial, clock)
    if not trial.failed and trial.facts()["passes"]:
        for one in parts:
            one()
    trial.seconds = time.monotonic() - clock.began
    return trial


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try this script")
    parser.add_argument("--minutes", type=float, default=9.0, help="time for all of it")
    parser.add_argument("--task", action="append", metavar="NAME", help="only this row of roots; may be given again")
    parser.add_argument("--model", default="gpt12m", help="of bench_engine.py")
    parser.add_argument("--rounds", type=int, default=5, help="steps that are measured")
    parser.add_argument("--markdown", type=Path, help="where to write the page, too")
    parser.add_argument("--record", action="store_true", help="write the roots by this machine's processor")
    parser.add_argument("--roots", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.roots:
        from machines.device_roots import print_rows

        print_rows(options.device, options.roots)
        return 0
    if options.record:
        from machines.device_roots import RECORDED, recording

        RECORDED.write_text(json.dumps(recording(), indent=1) + "\n")
        return 0
    recorded = json.loads((HERE.parent / "machines" / "device_roots.json").read_text())
    names = options.task or list(recorded["rows"])
    trial = try_device(options.device, 60 * options.minutes, names, options.model, options.rounds)
    text = page(trial)
    print(text, end="")
    if options.markdown:
        options.markdown.write_text(text)
    return trial.code()


if __name__ == "__main__":
    sys.exit(main())
