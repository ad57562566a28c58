"""Processes of a round: ranks and trainers that can be killed at any moment.

They are forked from a process that has loaded everything and started no thread, so that one takes a tenth of a second
and not five."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from tests.engine.ranks.rank_processes import free_port

_PRELOADED = [
    "torch",
    "numpy",
    "roundlog",
    "roundlog.segment_audits.audit",
    "roundlog.execution.ranks",
    "tiebreak.store",
]
_PATIENCE = 240.0
"""Seconds after which a process that has not ended counts as one that hangs."""


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED, "tests.fuzz.random_work"])
    return context


class Crew:
    """Some processes that call `work(ranks, *arguments)`, joined as ranks if there are several (else ranks is None)."""

    def __init__(self, work: Callable[..., Any], size: int, *arguments: Any) -> None:
        context, port = _context(), free_port()
        self._said: list[Connection] = []
        self.processes = []
        for rank in range(size):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_live, args=(there, work, size, rank, port, arguments))
            process.start()
            there.close()
            self._said.append(here)
            self.processes.append(process)

    def kill(self, rank: int) -> None:
        """Kill one of them, unless it has ended, once all have joined: before, the others wait for it to come."""
        for said in self._said:
            with suppress(EOFError):
                assert not said.poll(_PATIENCE) or said.recv() == "joined"
        with suppress(ProcessLookupError):
            os.kill(self.processes[rank].pid, signal.SIGKILL)

    @property
    def is_over(self) -> bool:
        """Whether all have ended."""
        return not any(process.is_alive() for process in self.processes)

    def ended(self) -> list[tuple[str, Any]]:
        """What became of each: ("result", what it returned), ("error", the type and text of what it raised), or
        ("killed", None)."""
        found: list[tuple[str, Any]] = []
        deadline = time.monotonic() + _PATIENCE
        for said in self._said:
            try:
                answer: Any = "joined"
                while answer == "joined":
                    answer = said.recv() if said.poll(max(0.0, deadline - time.monotonic())) else ("hangs", None)
            except EOFError:
                answer = ("killed", None)
            found.append(answer)
        for process in self.processes:
            process.join(max(0.1, deadline - time.monotonic()))
            process.kill()
            process.join()
        return found

    def results(self) -> list[Any]:
        """What each has returned. Fails with what one of them has raised."""
        ended = self.ended()
        assert all(how == "result" for how, _ in ended), f"a process has not come to its end: {ended}"
        return [answer for _, answer in ended]


def _live(
    said: Connection, work: Callable[..., Any], size: int, rank: int, port: int, arguments: tuple[Any, ...]
) -> None:
    import torch
    from roundlog.execution.ranks import Launch, connect, disconnect

    torch.set_num_threads(1)
    ranks = None
    try:
        if size > 1:
            ranks = connect(Launch(rank, size, "127.0.0.1", port, "round", rank == 0, loopback="127.0.0.1"))
        said.send("joined")
        said.send(("result", work(ranks, *arguments)))
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        known = type(error).__name__ in ("LostRankError", "StoppedError", "RemoteDataError", "StorageError")
        said.send(("error", reason if known else f"{reason}\n{traceback.format_exc()}"))
        if ranks is not None:
            disconnect(ranks, None if type(error).__name__ == "LostRankError" else reason)
    else:
        if ranks is not None:
            disconnect(ranks)
    finally:
        said.close()
    # Threads of a group that was left in the midst of something would abort the process.
    os._exit(0)
