"""`tiebreak doctor`: what this machine can do, and what to mend. Nothing waits without a deadline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from tiebreak.cli import output
from tiebreak.cli.failures import ANSWER_IS_NO
from tiebreak.cli.option_groups import JSON, command

if TYPE_CHECKING:
    from tiebreak.machine_probe import HostFacts, MachineFindings

SECONDS_OF_PYTORCH = 300.0
"""Time for PyTorch and all self-tests. Where nobody has compiled the engine's loops yet, a slow machine takes a minute
for them."""

_LITTLE = 2 << 30
"""Bytes of usable memory below which few models fit."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be. `is_grave`: whether it keeps the user from what was asked for; else it
    makes this slower or smaller. `sentence`: with the remedy."""

    about: str
    is_grave: bool
    sentence: str


@command("doctor", "tiebreak doctor", "tiebreak doctor --json")
def doctor(json: bool = JSON) -> None:
    """Show what this machine can do: its processor, PyTorch and devices, the arithmetics that each can train with, and
    whether the self-test passes. Whatever is not as it should be gets a sentence with the remedy; if it is grave, the
    exit code is 3."""
    from tiebreak.machine_probe import host_facts, machine_findings

    host = host_facts()
    if not json:
        output.show_facts("This machine", output.in_words(asdict(host)))
        output.flush()
    found = machine_findings(SECONDS_OF_PYTORCH)
    wrong = problems(host, found)
    is_right = not any(one.is_grave for one in wrong)
    if json:
        plain = {"machine": asdict(host), "torch": found.torch, "devices": found.devices}
        output.show_json(plain | {"problems": [asdict(one) for one in wrong], "right": is_right})
    else:
        _show_machine(found)
        for title, grave in (("Wrong", True), ("Could be better", False)):
            if some := [one.sentence for one in wrong if one.is_grave is grave]:
                output.show_line(f"{title}:")
                for sentence in some:
                    output.show_line(f"- {sentence}")
        if not wrong:
            output.show_line("All is as it should be.")
    if not is_right:
        raise typer.Exit(ANSWER_IS_NO)


_HELD_BACK = {"default": "AVX2", "avx2": "AVX-512"}
"""Value of ATEN_CPU_CAPABILITY -> the instructions that it keeps kernels from."""


def problems(host: HostFacts, found: MachineFindings) -> list[Problem]:
    """Return all problems, the grave ones first."""
    every = [*_of_pytorch(host, found), *_of_devices(found)]
    if host.usable_bytes < _LITTLE:
        left = f"{host.usable_bytes / 1e9:.1f} GB"
        said = f"this process can use {left} of memory: close other programs, or raise the limit."
        every.append(Problem("memory", False, said))
    return sorted(every, key=lambda one: not one.is_grave)


def _of_pytorch(host: HostFacts, found: MachineFindings) -> Iterator[Problem]:
    torch = found.torch
    if found.why:
        where = "after PyTorch was loaded" if torch else "before PyTorch was loaded"
        last = f", and after {found.devices[-1]['device']}" if found.devices else ""
        remedy = "install Tiebreak and PyTorch into a new environment"
        if torch and torch["cuda_works"]:
            remedy = "set CUDA_VISIBLE_DEVICES= to do without the card, and check its driver"
        yield Problem("PyTorch", True, f"the check of this machine failed {where}{last} ({found.why}): {remedy}.")
    if torch is None:
        return
    if not torch["cuda_works"] and host.driver:
        said = (
            f"NVIDIA's driver {host.driver} is here, and this PyTorch ({torch['version']}) was built without CUDA: "
            "install a build with it (PyPI's, on Linux)."
            if torch["cuda"] is None
            else f"PyTorch cannot use NVIDIA's card ({torch['why_not']}): update the driver {host.driver}, or install "
            f"a PyTorch for an older CUDA than {torch['cuda']}."
        )
        yield Problem("PyTorch", False, said)
    asked = str(torch["allowed_by"] or "").lower()
    if (more := _HELD_BACK.get(asked)) is not None and host.instructions is not None and more in host.instructions:
        remedy = "unset it, for the same results in less time"
        yield Problem("kernels", False, f"ATEN_CPU_CAPABILITY={asked} keeps the kernels from {more}: {remedy}.")


def _of_devices(found: MachineFindings) -> Iterator[Problem]:
    for one in found.devices:
        if not one["passes"]:
            why = one["why"].removesuffix(".")
            yield Problem(one["device"], True, f"{one['device']} does not compute as it has to: {why}.")
        if one["triton_works"] is False:
            why = f" ({one['why_not']})" if one["why_not"] else ""
            remedy = "pip install 'tiebreak[cuda]'"
            if found.torch and found.torch["triton"]:
                remedy = "see that a C compiler is here, and that Triton fits PyTorch and the driver"
            said = f"loops on {one['device']} are not compiled, so that training is slower{why}: {remedy}."
            yield Problem(one["device"], False, said)


def _show_machine(found: MachineFindings) -> None:
    if found.torch is not None:
        output.show_facts("PyTorch", output.in_words(found.torch))
    for one in found.devices:
        facts = {name: value for name, value in one.items() if name not in ("device", "passes", "arithmetics")}
        tested = {"self-test": "passed" if one["passes"] else "FAILED"}
        ways = {arithmetic["name"]: _in_words(arithmetic) for arithmetic in one["arithmetics"]}
        output.show_facts(one["device"], output.in_words(facts) | tested | ways)


def _in_words(arithmetic: Mapping[str, Any]) -> str:
    formats = ", ".join(arithmetic["formats"])
    own = "; the device's tensor cores add so" if arithmetic["in_hardware"] else ""
    by = "processor" if arithmetic["by"] == "cpu" else "device"
    ways = {"native": f"native ({formats})", "emulated": f"emulated by the {by} ({formats})"}
    return ways.get(arithmetic["way"], "not on this device") + own
