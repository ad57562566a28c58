"""The means of an account and of a machine are looked at before work, and not after it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiebreak.process_resources import usable_memory
from tiebreak.quantities import in_ether
from tiebreak.rpc.node import ChainNode, block_time
from tiebreak.transactions.signer import funds

from tests.client.canned_node import ADDRESS, Canned, block

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


def test_block_time_is_measured() -> None:
    def blocks(tag: str, full: bool) -> object:
        number = 1000 if tag == "latest" else int(tag, 16)
        return block(hex(number), timestamp=hex(7 * number))

    assert block_time(ChainNode(Canned(eth_getBlockByNumber=blocks))) == 7.0
    assert block_time(ChainNode(Canned(eth_getBlockByNumber=block("0x0")))) == 0.0


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


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


def test_groups_of_the_first_version_bound_as_well(tmp_path: Path) -> None:
    files = {
        "proc__meminfo": MEMINFO,
        "proc__self__cgroup": "12:cpu,cpuacct:/x\n5:memory:/docker/abc\n0::/\n",
        "sys__fs__cgroup__memory__memory_dot_limit_in_bytes": str(GIB),
        "sys__fs__cgroup__memory__memory_dot_usage_in_bytes": str(GIB // 2),
    }
    assert usable_memory(write(tmp_path, **files)) == GIB // 2 - ROOM
