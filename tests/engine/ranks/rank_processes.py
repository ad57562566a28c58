"""Ranks as processes of a test: each calls one function of a file of tests, and answers with JSON.

Processes are forks of one that has imported PyTorch and the engine: that takes seconds, and most calls less."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any
from unittest.mock import patch

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.engine.ranks.on_trainings", "tests.engine.ranks.on_ranks"])


def seconds_to_stop() -> float:
    """Time in which ranks stop once one of them is killed: 30 s where every process has a core's attention, and longer
    where this machine has more to do."""
    return 30 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
    return port


def start(function: str, size: int, *arguments: Any, **environment: str) -> list[tuple[ForkServerProcess, Connection]]:
    """`size` processes that call `module:function(ranks, *arguments)` of a module beside this one, with ranks joined
    as a launcher's environment says: MASTER_ADDR is 127.0.0.1 where none is given. Beside each is the pipe of its
    answer: whether it has raised, and JSON or the traceback."""
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} | environment
    started = []
    with patch.dict(os.environ, found):  # for the process that is forked
        for rank in range(size):
            answer, sender = _FORKS.Pipe(duplex=False)
            given = function, json.dumps(arguments), {**os.environ, **shared, "RANK": str(rank)}, sender
            process = _FORKS.Process(target=_live, args=given)
            process.start()
            sender.close()
            started.append((process, answer))
    return started


def call(function: str, size: int, *arguments: Any, **environment: str) -> list[Any]:
    """What every rank's function has returned. Fails with its traceback where one has raised."""
    started = start(function, size, *arguments, **environment)
    failed, found = {}, []
    try:
        for rank, (process, answer) in enumerate(started):
            assert answer.poll(300), f"rank {rank} has not answered in 300 s"
            try:
                has_raised, said = answer.recv()
            except EOFError:
                process.join()
                has_raised, said = True, f"it has ended with {process.exitcode}"
            if has_raised:
                failed[rank] = said
            else:
                found.append(json.loads(said))
        assert not failed, "\n".join(f"rank {rank}: {said}" for rank, said in failed.items())
        return found
    finally:
        end(started)


def end(started: list[tuple[ForkServerProcess, Connection]]) -> None:
    for process, answer in started:
        process.kill()
        process.join()
        answer.close()


def named(function: str) -> Callable[..., Any]:
    """The function `module:function` of a module beside this one."""
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"tests.engine.ranks.{module}"), name)
    return found


def _live(function: str, arguments: str, environment: Mapping[str, str], sender: Connection) -> None:
    import torch
    from roundlog.execution.ranks import Launch, Ranks, connect, disconnect

    os.environ.update(environment)
    torch.set_num_threads(1)
    called = named(function)
    launch = Launch.of(os.environ)
    assert launch is not None
    ranks = connect(launch)
    try:
        answer = json.dumps(called(ranks, *json.loads(arguments)))
    except BaseException as error:
        disconnect(ranks, f"{type(error).__name__}: {error}")
        sender.send((True, traceback.format_exc()))
        return
    disconnect(ranks)
    sender.send((False, answer))
    if Ranks.unfinished:
        os._exit(0)
