"""Ranks as processes of a test: each runs one function of a file of tests, and answers with JSON."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any


def seconds_to_stop() -> float:
    """Time in which ranks stop once one of them is killed: 30 s where every process has a core's attention, and longer
    where this machine has more to do."""
    return 30 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
    return port


def start(function: str, size: int, *arguments: Any, **environment: str) -> list[subprocess.Popen[str]]:
    """`size` processes that call `module:function(ranks, *arguments)` of a module beside this one, with ranks joined
    as a launcher's environment says: MASTER_ADDR is 127.0.0.1 where none is given."""
    command = [sys.executable, "-m", "tests.engine.ranks.rank_processes", function, json.dumps(arguments)]
    shared = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(size)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} | environment
    return [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **shared, "RANK": str(rank)},
        )
        for rank in range(size)
    ]


def answers(processes: list[subprocess.Popen[str]], seconds: float = 300) -> list[Any]:
    """What every rank's function has returned. Fails with its traceback where one has raised."""
    try:
        said = [process.communicate(timeout=seconds) for process in processes]
        failed = {rank: err for rank, (_, err) in enumerate(said) if processes[rank].returncode}
        assert not failed, "\n".join(f"rank {rank}: {err}" for rank, err in failed.items())
        return [json.loads(out.splitlines()[-1]) for out, _ in said]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def call(function: str, size: int, *arguments: Any, **environment: str) -> list[Any]:
    return answers(start(function, size, *arguments, **environment))


def named(function: str) -> Callable[..., Any]:
    """The function `module:function` of a module beside this one."""
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"tests.engine.ranks.{module}"), name)
    return found


def main() -> None:
    import torch
    from roundlog.execution.ranks import Launch, Ranks, connect, disconnect

    function, arguments = sys.argv[1:]
    torch.set_num_threads(1)
    called = named(function)
    launch = Launch.of(os.environ)
    assert launch is not None
    ranks = connect(launch)
    try:
        answer = called(ranks, *json.loads(arguments))
    except BaseException as error:
        disconnect(ranks, f"{type(error).__name__}: {error}")
        raise
    disconnect(ranks)
    print(json.dumps(answer), flush=True)
    if Ranks.unfinished:
        os._exit(0)


if __name__ == "__main__":
    main()
