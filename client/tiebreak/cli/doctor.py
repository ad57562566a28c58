"""`tiebreak doctor`: what this machine can do, and whether stores, nodes and the contract answer as they should.

Nothing is stored, sent or made, and nothing waits without a deadline."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from tiebreak import quantities
from tiebreak.cli import network, output
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError
from tiebreak.cli.option_groups import JSON, command, option

if TYPE_CHECKING:
    from tiebreak.machine_probe import HostFacts, MachineFindings

SECONDS_OF_PYTORCH = 300.0
"""Time for PyTorch and all self-tests. Where nobody has compiled the engine's loops yet, a slow machine takes a minute
for them."""

_WHOLE = 2.0
"""Deadline of a whole check, relative to that of an answer: a node is asked twice, and names are looked up."""

_ROOM, _LITTLE = 1 << 30, 2 << 30
"""Bytes below which a disk is nearly full, and bytes of usable memory below which few models fit."""

_EMPTY_FILE = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"


@dataclass(frozen=True, kw_only=True)
class Places(network.ContentOptions):
    """Stores, nodes and the contract, as other commands name them."""

    panel: ClassVar = "Network"
    chain: list[str] | None = network.NODES
    contract: str | None = network.CONTRACT


@dataclass(frozen=True, slots=True)
class PlaceFinding:
    """A place that was asked. `name`: without secrets. `facts`: what it says of itself, in words. `problem`: a sentence
    with the remedy, empty if all is as it should be. `chain_id`: of a node that answers."""

    kind: str
    name: str
    facts: str = ""
    problem: str = ""
    chain_id: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be. `is_grave`: whether it keeps the user from what was asked for; else it
    makes this slower or smaller. `sentence`: with the remedy."""

    about: str
    is_grave: bool
    sentence: str


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
    from tiebreak.machine_probe import host_facts, machine_findings

    host = host_facts()
    if not json:
        output.show_facts("This machine", _host_lines(host))
        output.flush()
    asked = list(_ask(places, patience))
    if not json and asked:
        lines = {f"{one.kind} {one.name}": one.facts or "see below" for one in asked}
        output.show_facts("Stores and nodes", lines)
        output.flush()
    found = machine_findings(SECONDS_OF_PYTORCH)
    wrong = problems(host, found, asked)
    is_right = not any(one.is_grave for one in wrong)
    if json:
        plain = {"machine": asdict(host), "torch": found.torch, "devices": found.devices}
        plain |= {"places": [asdict(one) for one in asked], "problems": [asdict(one) for one in wrong]}
        output.show_json(plain | {"right": is_right})
    else:
        _show_machine(found)
        for title, grave in (("Wrong", True), ("Could be better", False)):
            if some := [one.sentence for one in wrong if one.is_grave is grave]:
                output.show_sentences(title, some)
        if not wrong:
            output.show_line("All is as it should be.")
    if not is_right:
        raise typer.Exit(ANSWER_IS_NO)


# Places.


def _ask(places: Places, seconds: float) -> Iterator[PlaceFinding]:
    """Ask the places that are named, one after the other. seconds: for an answer."""
    for one in places.store.split(",") if places.store is not None else []:
        yield _store(one.strip(), places.pin_service, seconds)
    nodes = [(one, _node(one, seconds)) for one in places.chain or []]
    yield from (found for _, found in nodes)
    if places.contract is None:
        return
    where = network.address(places.contract, "the contract")
    answering = next((node for node, found in nodes if not found.problem), None)

    def ask() -> str:
        from tiebreak.contract.game import VerificationGame
        from tiebreak.rpc.node import ChainNode, transport_to

        if answering is None:
            raise CommandError(
                "no node was asked for the contract: name one that answers, with --chain or TIEBREAK_CHAIN."
            )
        node = ChainNode(transport_to(answering, None, timeout=seconds, deadline=seconds, attempts=1))
        return f"this version's; {VerificationGame.at(node, where).job_count():,} jobs"

    yield _asked("contract", where, ask, seconds)


def _store(location: str, pin_service: str | None, seconds: float) -> PlaceFinding:
    """Ask a folder, a gateway, or Kubo's RPC and the pinning service that it knows by this name."""
    from tiebreak.store import gateway_address, kubo_address
    from tiebreak.store.store_errors import StoreError

    try:
        gateway = gateway_address(location)
        address = None if gateway is not None else kubo_address(location)
    except StoreError as error:
        return PlaceFinding("store", _shown(location), problem=str(error))
    if gateway is None and address is None:
        return _folder(Path(location).expanduser())

    def ask() -> str:
        if gateway is not None:
            from tiebreak.store.gateway import GatewayStore

            GatewayStore(gateway, timeout=seconds, attempts=1).check()
            return "a gateway, which answers; to read from"
        from tiebreak.store.kubo import KuboStore

        assert address is not None
        daemon = KuboStore(address, timeout=seconds, attempts=1)
        daemon.has(_EMPTY_FILE)
        if pin_service is None:
            return "Kubo, which answers"
        from tiebreak.store.pinning import PinningService

        PinningService(pin_service, daemon).check()
        return f"Kubo, which answers, as does {pin_service}"

    return _asked("store", _shown(location), ask, seconds)


def _folder(path: Path) -> PlaceFinding:
    """Look at the folder of a store, which is made when something is stored."""
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "may not be written to" if there.is_dir() else "is no folder"
        return PlaceFinding("store", str(path), problem=f"{there} {why}: choose a folder that you may write to.")
    free = shutil.disk_usage(there).free
    facts = f"a folder{'' if there == path else ', which is made when it is used'}; {free / 1e9:,.1f} GB free"
    low = f"the disk of {path} has {free / 1e9:.1f} GB left: make room, or choose another folder."
    return PlaceFinding("store", str(path), facts, low if free < _ROOM else "")


def _node(location: str, seconds: float) -> PlaceFinding:
    """Ask a node of a chain: an address as of `tiebreak.rpc.node.connect`."""
    from tiebreak.rpc.chain_errors import ChainError
    from tiebreak.rpc.node import ChainNode, transport_to

    try:
        node = ChainNode(transport_to(location, None, timeout=seconds, deadline=seconds, attempts=1))
    except ChainError as error:
        return PlaceFinding("node", "the chain's address", problem=str(error))

    def ask() -> tuple[int, str]:
        return node.chain_id, f"answers; chain {node.chain_id}, block {node.head().number:,}"

    return _asked("node", node.name, ask, seconds)


def _asked(kind: str, name: str, ask: Callable[[], str | tuple[int, str]], seconds: float) -> PlaceFinding:
    """Return what a place says of itself, after the id of a chain if there is one, or why it does not."""
    from tiebreak.http_client import TooLate, within
    from tiebreak.rpc.chain_errors import ChainError
    from tiebreak.store.store_errors import StoreError

    try:
        said = within(_WHOLE * seconds, None, ask)
    except TooLate:
        late = f"{name} has not answered within {_WHOLE * seconds:g} seconds: check the address, and whether it is up."
        return PlaceFinding(kind, name, problem=late)
    except (StoreError, ChainError, CommandError) as error:
        return PlaceFinding(kind, name, problem=str(error))
    chain_id, facts = (None, said) if isinstance(said, str) else said
    return PlaceFinding(kind, name, facts, chain_id=chain_id)


def _shown(location: str) -> str:
    # Imported here because the HTTP client takes long to load, and folders need none.
    from tiebreak.store.http import shown_location

    return shown_location(location)


# Problems.

_HELD_BACK = {"default": "AVX2", "avx2": "AVX-512"}
"""Value of ATEN_CPU_CAPABILITY -> the instructions that it keeps kernels from."""


def problems(host: HostFacts, found: MachineFindings, places: Sequence[PlaceFinding]) -> list[Problem]:
    """Return all problems, the grave ones first."""
    every = [*_of_pytorch(host, found), *_of_devices(found), *_of_places(places)]
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
            yield Problem(one["device"], True, f"{one['device']} does not compute as it has to: {_ended(one['why'])}")
        if one["triton_works"] is False:
            why = f" ({one['why_not']})" if one["why_not"] else ""
            remedy = "pip install 'tiebreak[cuda]'"
            if found.torch and found.torch["triton"]:
                remedy = "see that a C compiler is here, and that Triton fits PyTorch and the driver"
            said = f"loops on {one['device']} are not compiled, so that training is slower{why}: {remedy}."
            yield Problem(one["device"], False, said)


def _of_places(places: Sequence[PlaceFinding]) -> Iterator[Problem]:
    for place in places:
        if place.problem:
            yield Problem(f"{place.kind} {place.name}", True, _ended(place.problem))
    chains = {place.chain_id for place in places if place.chain_id is not None}
    if len(chains) > 1:
        listed = " and ".join(map(str, sorted(chains)))
        yield Problem("nodes", True, f"the nodes are of the chains {listed}: name nodes of one chain.")


def _ended(text: str) -> str:
    return text if text.endswith(".") else text + "."


# Words.


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
        lines: dict[str, object] = {}
        if one["capability"] is not None:
            lines |= {"capability": one["capability"], "memory": f"{one['memory'] / 1e9:.1f} GB"}
            lines["compiled loops"] = "Triton's" if one["triton_works"] else "none"
        lines["self-test"] = "passed" if one["passes"] else "FAILED"
        lines |= {arithmetic["name"]: _in_words(arithmetic) for arithmetic in one["arithmetics"]}
        output.show_facts(f"{one['device']}  {one['name']}".rstrip(), lines)


def _in_words(arithmetic: Mapping[str, Any]) -> str:
    formats = ", ".join(arithmetic["formats"])
    own = "; the device's tensor cores add so" if arithmetic["in_hardware"] else ""
    by = "processor" if arithmetic["by"] == "cpu" else "device"
    ways = {"native": f"native ({formats})", "emulated": f"emulated by the {by} ({formats})"}
    return ways.get(arithmetic["way"], "not on this device") + own
