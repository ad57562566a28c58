"""Workers on a Ray cluster: a stand-in for Ray shows what is made of its errors. Verdicts by workers that are killed
are those of test_lost_workers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from roundlog.segment_audits.cluster import ClusterError, ClusterWorker, connect_cluster

# A stand-in for Ray.


class TaskError(Exception):
    """Ray's error about a call that has raised."""

    cause: Exception | None = None


class ActorDied(Exception):
    """Ray's error about an actor that is gone."""


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs the stand-in. Its attribute `outcome` is what a call comes to."""
    made: Any = ModuleType("ray")
    made.outcome = lambda: None

    def called(*arguments: Any) -> Any:
        if made.outcome is refuses:
            raise ActorDied
        future: Future[Any] = Future()
        try:
            future.set_result(made.outcome())
        except Exception as error:
            future.set_exception(error)
        return SimpleNamespace(future=lambda: future)

    actor = SimpleNamespace(call=SimpleNamespace(remote=called))
    made.remote = lambda **options: lambda kind: SimpleNamespace(remote=lambda *arguments: actor)
    made.kill = lambda actor, no_restart: None
    made.exceptions = SimpleNamespace(RayTaskError=TaskError)
    monkeypatch.setitem(sys.modules, "ray", made)
    return made


def refuses() -> None:
    raise ActorDied


def raising(error: Exception) -> Callable[[], Any]:
    def outcome() -> Any:
        raise error

    return outcome


def test_what_a_call_raises_is_told_apart_from_a_lost_worker(ray: Any) -> None:
    worker, failed = ClusterWorker(threads=1), TaskError("a page long")
    failed.cause = OSError("the disk is full")
    ray.outcome = raising(failed)
    assert worker.submit(len, "x").exception(0) is failed.cause
    failed.cause = None
    found = worker.submit(len, "x").exception(0)
    assert isinstance(found, RuntimeError) and not isinstance(found, BrokenExecutor) and "a page long" in str(found)
    for outcome in (raising(ActorDied()), raising(ConnectionError()), refuses):
        ray.outcome = outcome
        assert isinstance(worker.submit(len, "x").exception(0), BrokenExecutor)


def test_a_cluster_that_cannot_be_reached_is_told_in_a_sentence(ray: Any) -> None:
    ray.__spec__, ray.is_initialized = object(), lambda: False
    ray.init = lambda **options: raising(ConnectionError("it does not answer\nand then a page"))()
    with pytest.raises(ClusterError, match=r"ray://there:1 cannot be reached \(ConnectionError: it does not answer\):"):
        connect_cluster("ray://there:1")
