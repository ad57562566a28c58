"""Facts of other machines than this one, and the problems that follow; the means of an account and of a machine, which
are looked at before work, and not after it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiebreak.cli.doctor import problems
from tiebreak.machine_probe import HostFacts, MachineFindings, host_facts, machine_findings
from tiebreak.process_resources import usable_memory
from tiebreak.quantities import in_ether
from tiebreak.rpc.node import ChainNode
from tiebreak.transactions.signer import funds

from tests.client.canned_node import ADDRESS, Canned, block

TORCH: dict[str, Any] = {
    "version": "2.13.0+cpu",
    "cuda": None,
    "rocm": None,
    "cuda_works": False,
    "why_not": "",
    "triton": None,
    "threads": 2,
    "allowed": "AVX2",
    "allowed_by": None,
    "kernels": "AVX2 and FMA, 4 FP64 lanes",
}
CPU: dict[str, Any] = {"device": "cpu", "name": "", "passes": True, "why": "", "triton_works": None, "why_not": ""}
CARD = CPU | {"device": "cuda:0", "name": "a card", "triton_works": True}


def write(root: Path, **files: str) -> Path:
    """The root of a machine with these files, `a__b_dot_c` for a/b.c."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine(root: Path, **files: str) -> HostFacts:
    """The facts of a machine whose /proc has these files."""
    return host_facts(write(root, **{f"proc__{name}": text for name, text in files.items()}))


def said(host: HostFacts, torch: dict[str, Any] | None = None, *devices: dict[str, Any], why: str = "") -> list[str]:
    made = None if torch is None else TORCH | torch
    return [one.sentence for one in problems(host, MachineFindings(made, [CPU, *devices], why))]


def test_a_machine_is_read_as_linux_describes_it(tmp_path: Path) -> None:
    found = machine(
        tmp_path,
        cpuinfo="processor : 0\nmodel name : First\nflags : fpu avx2 fma\n\nprocessor : 1\nmodel name : Second\n",
        meminfo="MemTotal:  16000000 kB\nMemAvailable:  8000000 kB\n",
        driver__nvidia__version="NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan\nGCC version: 12\n",
    )
    assert (found.processor, found.instructions, found.driver) == ("First", ("AVX2", "FMA"), "570.86.15")
    assert found.memory_bytes == 16_384_000_000 and 0 < found.usable_bytes <= 8_192_000_000
    assert 1 <= found.cores <= found.all_cores


@pytest.fixture
def plain(tmp_path: Path) -> HostFacts:
    return machine(tmp_path, cpuinfo="flags : avx2 fma avx512f\n", meminfo="MemAvailable:  9000000 kB\n")


@pytest.fixture
def with_driver(tmp_path: Path) -> HostFacts:
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.1.2  Thu\n"
    return machine(tmp_path, meminfo="MemAvailable:  9000000 kB\n", driver__nvidia__version=text)


def test_a_card_that_pytorch_does_not_use_is_told_with_the_remedy(with_driver: HostFacts) -> None:
    (without,) = said(with_driver, {})
    assert "470.1.2 is here, and this PyTorch (2.13.0+cpu) was built without CUDA: install a build with it" in without
    (old,) = said(with_driver, {"cuda": "12.8", "why_not": "the driver is too old"})
    assert "cannot use NVIDIA's card (the driver is too old): update the driver 470.1.2" in old
    assert said(with_driver, {"cuda": "12.8", "cuda_works": True}, CARD) == []


def test_slow_loops_and_held_back_kernels_are_told(plain: HostFacts) -> None:
    assert said(plain, {}) == []
    works = {"cuda": "12.8", "cuda_works": True}
    (missing,) = said(plain, works, CARD | {"triton_works": False})
    assert missing.endswith("slower: pip install 'tiebreak[cuda]'.")
    (broken,) = said(plain, works | {"triton": "3.4.0"}, CARD | {"triton_works": False, "why_not": "no C compiler"})
    assert "slower (no C compiler): see that a C compiler is here" in broken
    (held,) = said(plain, {"allowed_by": "avx2"})
    assert "ATEN_CPU_CAPABILITY=avx2 keeps the kernels from AVX-512: unset it" in held
    assert said(plain, {"allowed_by": "avx512"}) == []


def test_little_memory_is_told(tmp_path: Path) -> None:
    (told,) = said(machine(tmp_path, meminfo="MemAvailable:  900000 kB\n"), {})
    assert "can use 0.7 GB of memory: close other programs" in told


def runs(pid: int, seconds: float) -> bool:
    """Whether a process is there after so many seconds, and no zombie; a killed one needs a while for its end."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            state = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        if state.rpartition(")")[2].split()[0] in "ZX":
            return False
        time.sleep(0.05)
    return True


def test_a_process_that_holds_the_pipe_does_not_hold_up_the_findings_and_is_killed(tmp_path: Path) -> None:
    code = (
        "import json, subprocess, sys\n"
        "one = subprocess.Popen(['sleep', '25'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(one.pid))\n"
        f"print(json.dumps({TORCH!r}), flush=True)"
    )
    started = time.monotonic()
    found = machine_findings(2, [sys.executable, "-c", code])
    assert time.monotonic() - started < 15
    assert found.torch == TORCH and found.why == "it had not ended after 2 seconds"
    assert not runs(int((tmp_path / "pid").read_text()), 10)


# The means of an account and of a machine.


GIB, ROOM = 1 << 30, 256 << 20


def test_a_bond_and_the_gas_of_whole_disputes_have_to_be_there() -> None:
    node = ChainNode(
        Canned(
            eth_getBlockByNumber=block(baseFeePerGas=hex(20 * 10**9)),
            eth_maxPriorityFeePerGas=hex(10**9),
            eth_getBalance=hex(10**18),
        )
    )
    enough = funds(node, ADDRESS, 5 * 10**17)
    assert enough.price == 21 * 10**9 and enough.missing == 0
    assert enough.needed == 5 * 10**17 + 6_000_000 * 21 * 10**9
    short = funds(node, ADDRESS, 9 * 10**17, games=3)
    assert short.missing == 9 * 10**17 + 16_000_000 * 21 * 10**9 - 10**18
    assert f"send it {in_ether(short.missing)} more" in short.sentence and "3 whole disputes" in short.sentence


MEMINFO = f"MemTotal: 99999999 kB\nMemAvailable: {8 * GIB // 1024} kB\n"


def test_free_memory_bounds_where_no_group_does(tmp_path: Path) -> None:
    assert usable_memory(write(tmp_path, proc__meminfo=MEMINFO)) == 8 * GIB - ROOM
    assert usable_memory(tmp_path / "nothing") == 4 * GIB - ROOM


@pytest.mark.parametrize("place", ["sys__fs__cgroup__", "sys__fs__cgroup__a__", "sys__fs__cgroup__a__b__"])
def test_the_limit_of_any_group_above_bounds(tmp_path: Path, place: str) -> None:
    files = {
        "proc__meminfo": MEMINFO,
        "proc__self__cgroup": "0::/a/b\n",
        f"{place}memory_dot_max": str(3 * GIB),
        f"{place}memory_dot_current": str(2 * GIB),
        f"{place}memory_dot_stat": f"anon 5\ninactive_file {GIB}\n",
    }
    assert usable_memory(write(tmp_path, **files)) == 2 * GIB - ROOM
    (tmp_path / place.replace("__", "/") / "memory.max").write_text("max\n")
    assert usable_memory(tmp_path) == 8 * GIB - ROOM
