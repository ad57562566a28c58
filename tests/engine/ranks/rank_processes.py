"""Ranks as processes of a test: each runs one function of a file of tests, and answers with JSON."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]


def seconds_to_stop() -> float:
    """Time in which ranks stop once one of them is killed: 30 s where every process has a core's attention, and longer
    where this machine has more to do."""
    return 30 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
    return port


def start(function: str, size: int, *arguments: Any) -> list[subprocess.Popen[str]]:
    """`size` processes that call `module:function(ranks, *arguments)`, with ranks joined."""
    folders = [Path(__file__).parent, TESTS, TESTS / "microbatch"]
    path = os.pathsep.join([*map(str, folders), *filter(None, sys.path)])
    port = str(free_port())
    command = [sys.executable, __file__, function, port, str(size), json.dumps(arguments)]
    return [
        subprocess.Popen(
            [*command, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
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


def call(function: str, size: int, *arguments: Any) -> list[Any]:
    return answers(start(function, size, *arguments))


def main() -> None:
    import importlib

    import torch
    from roundlog.execution.ranks import Ranks, connect, disconnect

    function, port, size, arguments, rank = sys.argv[1:]
    torch.set_num_threads(1)
    module, _, name = function.partition(":")
    called = getattr(importlib.import_module(module), name)
    ranks = connect(("127.0.0.1", int(port)), int(rank), int(size), "test", is_host=rank == "0", seconds=60)
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
