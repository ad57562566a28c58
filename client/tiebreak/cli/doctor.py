"""`tiebreak doctor`: what this machine can do, and whether stores and nodes answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from tiebreak import quantities
from tiebreak.cli import network, output
from tiebreak.cli.failures import ANSWER_IS_NO
from tiebreak.cli.option_groups import JSON, command, option

if TYPE_CHECKING:
    from tiebreak.diagnosis.host_facts import HostFacts
    from tiebreak.diagnosis.place_checks import PlaceFinding
    from tiebreak.diagnosis.probe_process import MachineFindings
    from tiebreak.diagnosis.problems import Problem

SECONDS_OF_PYTORCH = 300.0
"""Time for PyTorch and all self-tests. Where nobody has compiled the engine's loops yet, a slow machine takes a minute
for them."""


@dataclass(frozen=True, kw_only=True)
class Places(network.ContentOptions):
    """Stores, nodes and the contract, as other commands name them."""

    panel: ClassVar = "Network"
    chain: list[str] | None = network.NODES
    contract: str | None = network.CONTRACT


@command(
    "doctor",
    "tiebreak doctor",
    "tiebreak doctor --store http://127.0.0.1:5001 --chain https://node.example",
    "tiebreak doctor --json",
)
def doctor(
    patience: float = option(
        "Time for an answer of a store or a node.", "10s", "TIME", parser=quantities.interval(0.1, 300)
    ),
    *,
    places: Places,
    json: bool = JSON,
) -> None:
    """Show what this machine can do: its processor, PyTorch and devices, the arithmetics that each can train with, and
    whether the self-test passes. Stores, nodes and the contract are asked where an option or its variable names them.
    Whatever is not as it should be gets a sentence with the remedy."""
    from tiebreak.diagnosis.host_facts import host_facts
    from tiebreak.diagnosis.probe_process import machine_probe
    from tiebreak.diagnosis.problems import problems

    # PyTorch takes seconds to load, and is asked meanwhile.
    with machine_probe() as probe:
        host = host_facts()
        if not json:
            output.show_facts("This machine", _host_lines(host))
            output.flush()
        asked = _ask(places, patience)
        if not json and asked:
            lines = {f"{one.kind} {one.name}": one.facts or "see below" for one in asked}
            output.show_facts("Stores and nodes", lines)
            output.flush()
        found = probe.findings(SECONDS_OF_PYTORCH)
    wrong = problems(host, found, asked)
    if json:
        output.show_json(_plain(host, found, asked, wrong))
    else:
        _show_machine(found)
        _show_problems(wrong)
    if any(one.is_grave for one in wrong):
        raise typer.Exit(ANSWER_IS_NO)


def _ask(places: Places, patience: float) -> list[PlaceFinding]:
    """Ask the places that are named, one after the other."""
    from tiebreak.diagnosis.place_checks import PlaceFinding as Place
    from tiebreak.diagnosis.place_checks import PlaceKind, check_contract, check_node, check_pinning, check_store
    from tiebreak.store.store_errors import StoreError

    found = []
    if places.store is not None:
        found += [check_store(one.strip(), patience) for one in places.store.split(",")]
    try:
        found += [check_pinning(one, patience) for one in places.services(None, timeout=patience, attempts=1)]
    except StoreError as error:
        found.append(Place(PlaceKind.PINNING, "as it is named", problem=str(error)))
    nodes = [(one, check_node(one, patience)) for one in places.chain or []]
    found += [one for _, one in nodes]
    if places.contract is not None:
        where = network.address(places.contract, "the contract")
        answering = next((node for node, one in nodes if not one.problem), None)
        if answering is not None:
            found.append(check_contract(answering, where, patience))
        else:
            said = "no node was asked for the contract: name one that answers, with --chain or TIEBREAK_CHAIN."
            found.append(Place(PlaceKind.CONTRACT, where, problem=said))
    return found


def _host_lines(host: HostFacts) -> dict[str, object]:
    total = f" of {host.memory_bytes / 1e9:.1f} GB" if host.memory_bytes else ""
    return {
        "processor": f"{host.processor} ({host.architecture})",
        "instructions": "unknown" if host.instructions is None else ", ".join(host.instructions) or "none of AVX2's",
        "cores": host.cores if host.cores == host.all_cores else f"{host.cores} of {host.all_cores}",
        "memory": f"{host.usable_bytes / 1e9:.1f} GB usable{total}",
        "system": f"{host.system}, Python {host.python}",
        "NVIDIA's driver": host.driver or "none",
    }


def _show_machine(found: MachineFindings) -> None:
    if (torch := found.torch) is not None:
        built = "CUDA " + torch["cuda"] if torch["cuda"] else "ROCm " + torch["rocm"] if torch["rocm"] else "no CUDA"
        facts = {
            "version": f"{torch['version']}, built with {built}",
            "Triton": torch["triton"] or "not installed",
            "threads": torch["threads"],
            "products by": torch["kernels"],
        }
        output.show_facts("PyTorch", facts)
    for one in found.devices:
        output.show_facts(f"{one['device']}  {one['name']}".rstrip(), _device_lines(one))


def _device_lines(one: Mapping[str, Any]) -> dict[str, object]:
    lines: dict[str, object] = {}
    if one["capability"] is not None:
        lines |= {"capability": one["capability"], "memory": f"{one['memory'] / 1e9:.1f} GB"}
        lines["compiled loops"] = "Triton's" if one["triton_works"] else "none"
    lines["self-test"] = "passed" if one["passes"] else "FAILED"
    for arithmetic in one["arithmetics"]:
        lines[arithmetic["name"]] = _in_words(arithmetic)
    return lines


def _in_words(arithmetic: Mapping[str, Any]) -> str:
    formats = ", ".join(arithmetic["formats"])
    own = "; the device's tensor cores add so" if arithmetic["in_hardware"] else ""
    match arithmetic["way"]:
        case "native":
            return f"native ({formats}){own}"
        case "emulated":
            return f"emulated by the {'processor' if arithmetic['by'] == 'cpu' else 'device'} ({formats}){own}"
    return f"not on this device{own}"


def _show_problems(wrong: Sequence[Problem]) -> None:
    if not wrong:
        output.show_line("All is as it should be.")
        return
    for title, grave in (("Wrong", True), ("Could be better", False)):
        if some := [one for one in wrong if one.is_grave is grave]:
            output.show_sentences(title, [one.sentence for one in some])


def _plain(
    host: HostFacts, found: MachineFindings, asked: Sequence[PlaceFinding], wrong: Sequence[Problem]
) -> dict[str, Any]:
    return {
        "machine": asdict(host),
        "torch": found.torch,
        "devices": found.devices,
        "places": [asdict(one) for one in asked],
        "problems": [asdict(one) for one in wrong],
        "right": not any(one.is_grave for one in wrong),
    }
