"""Where ranks can be reached: on one machine, nowhere from other machines."""

from __future__ import annotations

import os
from pathlib import Path

from rank_processes import call
from roundlog.execution.ranks import Ranks

LOOPBACK = {"0100007F", "00000000000000000000000001000000"}
"""127.0.0.1 and ::1, as proc(5) writes them on a machine with little-endian numbers."""


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
    for rank, (*addresses, interface) in enumerate(call("test_listening:listening", 2)):
        # One for gloo's connections, and at rank 0 one for the store.
        assert len(addresses) == 2 - rank and set(addresses) <= LOOPBACK, addresses
        assert interface == "lo"
