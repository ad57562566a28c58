"""Ranks that end before all have joined."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.engine.ranks.rank_processes import free_port, seconds_to_stop

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
    if rank == 1:
        print("here", flush=True)
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


@pytest.mark.slow_cases("before the last has come")
@pytest.mark.parametrize("last_has_come", [True, False], ids=["after the last has come", "before the last has come"])
def test_a_rank_that_ends_while_ranks_join_is_named_by_the_others(last_has_come: bool) -> None:
    port = free_port()
    # Rank 1 has come, and ends before rank 2 has; or rank 2 before it is connected.
    lost = 2 if last_has_come else 1
    waiting = [start(0, port), *([start(1, port)] if last_has_come else [])]
    victim = start(lost, port, is_victim=True)
    try:
        assert victim.stdout is not None and victim.stdout.readline() == "here\n"
        if not last_has_come:
            time.sleep(1)  # it has said who it is
        victim.kill()
        killed = time.monotonic()
        for process in waiting:
            said, _ = process.communicate(timeout=120)
            assert said.startswith(f"rank {lost} (process {victim.pid} on ") and "its process has ended" in said
        assert time.monotonic() - killed < seconds_to_stop()
    finally:
        for process in [*waiting, victim]:
            process.kill()
            process.wait()
