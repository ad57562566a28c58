"""The machines: processes under hardware profiles, that fork a process for every kind."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from machines.profiles import MACHINES

FIRST, SECOND = "native, one thread", "compatible"
"""The profiles on which every job is executed."""


class Host:
    """A process under a profile, to which orders are given one at a time."""

    def __init__(self, machine: str, script: Path) -> None:
        self._command = [sys.executable, str(script), "--host"]
        self._environment = MACHINES[machine].environment()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """The result of an order. Raises RuntimeError if the process has gone."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process of a machine has gone")
        return dict(json.loads(line))

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()


def serve(work: Callable[[dict[str, Any], Callable[[Mapping[str, Any]], None]], dict[str, Any]]) -> None:
    """Be a machine: an order a line comes in, a result a line goes out. Each is worked on in a forked process, so that
    nothing has to be imported again; what it told last is the result if it dies or takes too long."""
    for line in sys.stdin:
        print(json.dumps(_in_a_fork(json.loads(line), work)), flush=True)


def _in_a_fork(
    order: dict[str, Any], work: Callable[[dict[str, Any], Callable[[Mapping[str, Any]], None]], dict[str, Any]]
) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _work(order, work, writing)
    os.close(writing)
    received, late = _read(reading, time.monotonic() + order["limit"])
    os.close(reading)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    lines = received.decode().splitlines()
    last: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if late:
        last["why"] = f"no answer within {order['limit']} seconds: {last.get('why', '')}"
    elif os.WIFSIGNALED(status):
        last["why"] = f"{last.get('why', 'the process died')} (signal {os.WTERMSIG(status)})"
    return last


def _read(pipe: int, deadline: float) -> tuple[bytes, bool]:
    """The bytes up to the end of a pipe, and True if the deadline came first."""
    received = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(max(deadline - time.monotonic(), 0)):
                return received, True
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                return received, False
            received += chunk


def _work(order: dict[str, Any], work: Any, pipe: int) -> None:
    """Does the work of the forked process; never returns."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)
    try:
        with os.fdopen(pipe, "w") as out:

            def told(row: Mapping[str, Any]) -> None:
                out.write(json.dumps(row) + "\n")
                out.flush()

            told(work(order, told))
        os._exit(0)
    except BaseException:
        os._exit(1)
