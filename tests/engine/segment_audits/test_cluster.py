"""Workers on a Ray cluster: a stand-in for Ray shows what is made of its errors. Verdicts by workers that are killed
are those of test_lost_workers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from roundlog.segment_audits.cluster import ClusterError, ClusterWorker, connect_cluster

# A stand-in for Ray.


class TaskError(Exception):
    """Ray's error about a call that has raised."""

    cause: Exception | None = None


class ActorDied(Exception):
    """Ray's error about an actor that is gone."""


@dataclass
class Asked:
    """What was asked of the stand-in."""

    options: dict[str, Any] = field(default_factory=dict)
    killed: list[Any] = field(default_factory=list)
    outcome: Callable[[], Any] = lambda: None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Installs the stand-in."""
    asked = Asked()

    class Reference:
        def future(self) -> Future[Any]:
            future: Future[Any] = Future()
            try:
                future.set_result(asked.outcome())
            except Exception as error:
                future.set_exception(error)
            return future

    class Method:
        def remote(self, *arguments: Any) -> Reference:
            if asked.outcome is refuses:
                raise ActorDied
            return Reference()

    class Actor:
        call = Method()

    class Class:
        def remote(self, *arguments: Any) -> Actor:
            return Actor()

    def remote(**options: Any) -> Callable[[type], Class]:
        asked.options = options
        return lambda kind: Class()

    ray = ModuleType("ray")
    ray.remote = remote  # type: ignore[attr-defined]
    ray.kill = lambda actor, no_restart: asked.killed.append(actor)  # type: ignore[attr-defined]
    ray.exceptions = ModuleType("ray.exceptions")  # type: ignore[attr-defined]
    ray.exceptions.RayTaskError = TaskError
    monkeypatch.setitem(sys.modules, "ray", ray)
    return asked


def refuses() -> None:
    raise ActorDied


def raising(error: Exception) -> Callable[[], Any]:
    def outcome() -> Any:
        raise error

    return outcome


def test_what_a_call_raises_is_told_apart_from_a_lost_worker(asked: Asked) -> None:
    worker, failed = ClusterWorker(threads=1), TaskError("a page long")
    failed.cause = OSError("the disk is full")
    asked.outcome = raising(failed)
    assert worker.submit(len, "x").exception(0) is failed.cause
    failed.cause = None
    found = worker.submit(len, "x").exception(0)
    assert isinstance(found, RuntimeError) and not isinstance(found, BrokenExecutor) and "a page long" in str(found)
    for outcome in (raising(ActorDied()), raising(ConnectionError()), refuses):
        asked.outcome = outcome
        assert isinstance(worker.submit(len, "x").exception(0), BrokenExecutor)


def test_a_cluster_that_cannot_be_reached_is_told_in_a_sentence(asked: Asked) -> None:
    ray = sys.modules["ray"]
    ray.__spec__ = object()  # type: ignore[assignment]
    ray.is_initialized = lambda: False  # type: ignore[attr-defined]
    ray.init = raising_with("it does not answer\nand then a page")  # type: ignore[attr-defined]
    with pytest.raises(ClusterError, match=r"ray://there:1 cannot be reached \(ConnectionError: it does not answer\):"):
        connect_cluster("ray://there:1")


def raising_with(text: str) -> Callable[..., None]:
    def init(**options: Any) -> None:
        raise ConnectionError(text)

    return init
