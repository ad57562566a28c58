"""Rules by which facts become problems: what is not as it should be on this machine, and what helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tiebreak.diagnosis.host_facts import HostFacts
from tiebreak.diagnosis.place_checks import PlaceFinding, PlaceKind
from tiebreak.diagnosis.probe_process import MachineFindings

_LITTLE = 2 << 30
"""Bytes of usable memory below which few models fit."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be. `is_grave`: whether it keeps the user from what was asked for; else it
    makes this slower or smaller. `sentence`: with the remedy."""

    about: str
    is_grave: bool
    sentence: str


def problems(host: HostFacts, found: MachineFindings, places: Sequence[PlaceFinding]) -> list[Problem]:
    """Return all problems, the grave ones first."""
    every = [*_of_pytorch(host, found), *_of_devices(found), *_of_places(places)]
    if host.usable_bytes < _LITTLE:
        left = f"{host.usable_bytes / 1e9:.1f} GB"
        said = f"this process can use {left} of memory: close other programs, or raise the limit."
        every.append(Problem("memory", False, said))
    return sorted(every, key=lambda one: not one.is_grave)


def _of_pytorch(host: HostFacts, found: MachineFindings) -> Iterator[Problem]:
    if found.why:
        where = "after PyTorch was loaded" if found.torch else "before PyTorch was loaded"
        last = f", and after {found.devices[-1]['device']}" if found.devices else ""
        remedy = "install Tiebreak and PyTorch into a new environment"
        if found.torch and found.torch["cuda_works"]:
            remedy = "set CUDA_VISIBLE_DEVICES= to do without the card, and check its driver"
        yield Problem("PyTorch", True, f"the check of this machine failed {where}{last} ({found.why}): {remedy}.")
    if (torch := found.torch) is None:
        return
    if not torch["cuda_works"] and host.driver:
        if torch["cuda"] is None:
            said = (
                f"NVIDIA's driver {host.driver} is here, and this PyTorch ({torch['version']}) was built without CUDA: "
                "install a build with it (PyPI's, on Linux)."
            )
        else:
            said = (
                f"PyTorch cannot use NVIDIA's card ({torch['why_not']}): update the driver {host.driver}, or install a "
                f"PyTorch for an older CUDA than {torch['cuda']}."
            )
        yield Problem("PyTorch", False, said)
    asked = str(torch["allowed_by"] or "").lower()
    if (more := _HELD_BACK.get(asked)) is not None and host.instructions is not None and more in host.instructions:
        said = (
            f"ATEN_CPU_CAPABILITY={asked} keeps the kernels from {more}: unset it, for the same results in less time."
        )
        yield Problem("kernels", False, said)


_HELD_BACK = {"default": "AVX2", "avx2": "AVX-512"}
"""Value of ATEN_CPU_CAPABILITY -> the instructions that it keeps kernels from."""


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
    chains = {place.chain_id for place in places if place.kind is PlaceKind.NODE and place.chain_id is not None}
    if len(chains) > 1:
        listed = " and ".join(map(str, sorted(chains)))
        yield Problem("nodes", True, f"the nodes are of the chains {listed}: name nodes of one chain.")


def _ended(text: str) -> str:
    return text if text.endswith(".") else text + "."
