"""Workers on a Ray cluster (https://docs.ray.io), behind `concurrent.futures.Executor`: an actor each.

Every node needs this version of this package. Ray decides where actors run, notices nodes that are gone, and moves
bytes; what an audit makes of a worker that is lost, or lies, is not Ray's business.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any, TypeVar

from roundlog.segment_audits.segment import MakeWorker

T = TypeVar("T")


class ClusterError(RuntimeError):
    """The cluster cannot be used. The message is one sentence."""


class _Hands:
    """The actor: it executes what it is given, on one node of the cluster."""

    def __init__(self, threads: int | None) -> None:
        if threads is not None:
            import torch

            torch.set_num_threads(threads)

    def call(self, fn: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        return fn(*arguments)


class ClusterWorker(Executor):
    """One actor of a Ray cluster, which takes as many processors as it has threads."""

    def __init__(self, threads: int) -> None:
        import ray

        self._ray = ray
        # An actor that has died is replaced by the audit, which knows what it had in hand.
        actor = ray.remote(num_cpus=threads, max_restarts=0, max_task_retries=0)(_Hands)
        self._actor = actor.remote(threads)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        assert not kwargs, "orders are positional"
        future: Future[T] = Future()
        try:
            answer = self._actor.call.remote(fn, args).future()
        except Exception as error:
            future.set_exception(BrokenExecutor(f"the cluster takes no order ({type(error).__name__})"))
            return future
        answer.add_done_callback(lambda done: self._hand_on(done, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        try:
            self._ray.kill(self._actor, no_restart=True)
        except Exception as error:  # the cluster itself may be gone
            logging.getLogger(__name__).debug("an actor was not ended: %s", error)

    def _hand_on(self, done: Future[T], to: Future[T]) -> None:
        error = done.exception()
        if error is None:
            to.set_result(done.result())
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            # The call's own error, as far as it could be sent.
            cause = getattr(error, "cause", None)
            to.set_exception(cause if isinstance(cause, Exception) else RuntimeError(str(error).strip()[-500:]))
        else:
            to.set_exception(BrokenExecutor(f"the worker is lost ({type(error).__name__})"))


def connect_cluster(address: str) -> int:
    """Connect this process to the cluster at an address (``ray://host:port``, ``host:port``, or ``auto`` for one on
    this machine); returns its number of processors. Raises ClusterError."""
    if importlib.util.find_spec("ray") is None:
        raise ClusterError("a cluster needs Ray: install it with `pip install 'tiebreak[cluster]'`.")
    import ray

    try:
        if not ray.is_initialized():
            # Ray has all workers look for modules in the directory where this is called, which may be a stranger's.
            with contextlib.chdir(sys.prefix):
                ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, namespace="tiebreak")
        return int(ray.cluster_resources().get("CPU", 0))
    except Exception as error:
        reason = str(error).strip().partition("\n")[0][:200]
        raise ClusterError(
            f"the Ray cluster {address} cannot be reached ({type(error).__name__}: {reason}): check the address, and "
            "that its version of Ray and of Python are the ones here."
        ) from error


def cluster_workers(threads: int = 1) -> MakeWorker:
    """Workers that are actors of the cluster that this process is connected to."""
    return lambda number: ClusterWorker(threads)
