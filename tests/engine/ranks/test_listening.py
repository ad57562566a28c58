"""Where ranks can be reached: on one machine, nowhere from other machines."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from roundlog.execution.ranks import Ranks

from tests.engine.ranks.rank_processes import call

LOOPBACK = {"0100007F", "00000000000000000000000001000000"}
"""127.0.0.1 and ::1, as proc(5) writes them on a machine with little-endian numbers."""
EVERYWHERE = {"0" * 8, "0" * 32}
"""0.0.0.0 and ::."""


def listening(ranks: Ranks) -> list[str]:
    """Addresses on which this process listens, in all ranks; called in each."""
    # A rank has opened what it opens, once all have come here.
    ranks.numbers(0)
    links = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    sockets = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    found = [words[1].partition(":")[0] for words in lines[1:] if words[3] == "0A" and words[9] in sockets]
    ranks.numbers(0)
    return [*found, os.environ.get("GLOO_SOCKET_IFNAME", "the address of this machine's name")]


def test_ranks_of_one_machine_listen_on_its_loopback_interface_alone() -> None:
    for environment in ({}, {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": socket.gethostname()}):
        for rank, (*addresses, interface) in enumerate(call("test_listening:listening", 2, **environment)):
            # One for gloo's connections, and at rank 0 one for the store.
            assert len(addresses) == 2 - rank and set(addresses) <= LOOPBACK, addresses
            assert interface == "lo"


@pytest.mark.slow_cases("by torchrun on several machines")
@pytest.mark.parametrize(
    "environment",
    [{"MASTER_ADDR": socket.gethostname()}, {"LOCAL_WORLD_SIZE": "1"}],
    ids=["by the machine's name", "by torchrun on several machines"],
)
def test_ranks_that_others_may_have_to_reach_listen_for_them(environment: dict[str, str]) -> None:
    """Many machines' resolvers have their own name on the loopback interface, where no other machine comes."""
    (*addresses, interface), (*_, elsewhere) = call("test_listening:listening", 2, **environment)
    assert set(addresses) & EVERYWHERE, "the store of rank 0"
    assert {interface, elsewhere} == {"the address of this machine's name"}
