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
