"""Ranks that join: where they can be reached, and what becomes of the others where one ends before all have come."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from roundlog.execution.ranks import Ranks

from tests.engine.ranks.rank_processes import call, free_port, seconds_to_stop

_JOIN = """
import os, sys
from datetime import timedelta
from torch.distributed import PrefixStore, TCPStore
from roundlog.execution.ranks import Launch, LostRankError, connect
from roundlog.execution.ranks.membership import Membership

rank, port, is_victim = map(int, sys.argv[1:])
if is_victim:
    store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=60), wait_for_workers=False)
    own = PrefixStore("test/membership", store)
    Membership(own, rank, 3, 60)
    print("here", flush=True)
    sys.stdin.read()
try:
    connect(Launch(rank, 3, "127.0.0.1", port, "test", rank == 0, loopback="127.0.0.1"))
except LostRankError as error:
    print(error, flush=True)
os._exit(0)
"""


def start(rank: int, port: int, *, is_victim: bool = False) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _JOIN, str(rank), str(port), str(int(is_victim))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_rank_that_ends_while_ranks_join_is_named_by_the_others() -> None:
    port = free_port()
    waiting, victim = [start(0, port), start(1, port)], start(2, port, is_victim=True)
    try:
        assert victim.stdout is not None and victim.stdout.readline() == "here\n"
        victim.kill()
        killed = time.monotonic()
        for process in waiting:
            said, _ = process.communicate(timeout=120)
            assert said.startswith(f"rank 2 (process {victim.pid} on ") and "it has not been heard of" in said
        assert time.monotonic() - killed < seconds_to_stop()
    finally:
        for process in [*waiting, victim]:
            process.kill()
            process.wait()


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [{}, {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": socket.gethostname()}],
    ids=["alone", "by torchrun"],
)
def test_ranks_of_one_machine_listen_on_its_loopback_interface_alone(environment: dict[str, str]) -> None:
    for rank, (*addresses, interface) in enumerate(call("test_joining:listening", 2, **environment)):
        # One for gloo's connections, and at rank 0 one for the store.
        assert len(addresses) == 2 - rank and set(addresses) <= LOOPBACK, addresses
        assert interface == "lo"


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [{"MASTER_ADDR": socket.gethostname()}, {"LOCAL_WORLD_SIZE": "1"}],
    ids=["by the machine's name", "by torchrun on several machines"],
)
def test_ranks_that_others_may_have_to_reach_listen_for_them(environment: dict[str, str]) -> None:
    """Many machines' resolvers have their own name on the loopback interface, where no other machine comes."""
    (*addresses, interface), (*_, elsewhere) = call("test_joining:listening", 2, **environment)
    assert set(addresses) & EVERYWHERE, "the store of rank 0"
    assert {interface, elsewhere} == {"the address of this machine's name"}
