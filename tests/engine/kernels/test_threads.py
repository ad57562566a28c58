"""Work is shared out whole, errors come back, and threads hold on to nothing."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from roundlog.kernels.threads import MIN_ELEMENTS, in_parts, on_every_thread, one_by_one

MUCH = 100 * MIN_ELEMENTS


@pytest.fixture(autouse=True)
def four_threads() -> None:
    torch.set_num_threads(4)


@pytest.mark.parametrize("items", [0, 1, 3, 1001])
def test_every_item_is_worked_on_once(items: int) -> None:
    counts = np.zeros(items, dtype=int)

    def part(start: int, stop: int) -> None:
        counts[start:stop] += 1

    def item(number: int) -> None:
        counts[number] += 1

    in_parts(part, items, MUCH)
    one_by_one(item, items, MUCH)
    assert (counts == 2).all()


def test_parts_run_at_the_same_time() -> None:
    met = threading.Barrier(4, timeout=30)

    def part(start: int, stop: int) -> None:
        met.wait()

    in_parts(part, 4, MUCH)


@pytest.mark.parametrize("bad", [0, 3])
def test_what_a_part_raises_comes_back_when_all_have_ended(bad: int) -> None:
    ended = []

    def part(start: int, stop: int) -> None:
        if start == bad:
            raise ValueError(f"part {start}")
        time.sleep(0.05)
        ended.append(start)

    with pytest.raises(ValueError, match=f"part {bad}"):
        in_parts(part, 4, MUCH)
    assert sorted(ended) == [part for part in range(4) if part != bad]
    # The threads are still there for the next task.
    in_parts(lambda start, stop: ended.append(start), 4, MUCH)
    assert len(ended) == 7


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Whatever handler an earlier test has left in this process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_comes_out_when_all_parts_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may write to memory that goes then."""
    waits, interrupted, ended = threading.Event(), threading.Event(), []

    exception = Future.exception

    def waited_for(part: Future[None], timeout: float | None = None) -> BaseException | None:
        """Tells when the task waits for a part: sleeping until it surely does took too long on a busy machine."""
        waits.set()
        return exception(part, timeout)

    def part(start: int, stop: int) -> None:
        if start == 0:
            return
        if start == 1:
            assert waits.wait(30)
            signal.pthread_kill(main, signal.SIGINT)
            interrupted.set()
        assert interrupted.wait(30)
        if start != 2:
            time.sleep(0.2)
        ended.append(start)

    main = threading.get_ident()
    monkeypatch.setattr(Future, "exception", waited_for)
    for _ in range(2):
        waits.clear()
        interrupted.clear()
        ended.clear()
        with pytest.raises(KeyboardInterrupt):
            in_parts(part, 4, MUCH)
        assert sorted(ended) == [1, 2, 3]


def test_every_thread_is_asked_once_while_others_work() -> None:
    in_parts(lambda start, stop: None, 4, MUCH)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            in_parts(lambda start, stop: None, 4, MUCH)

    works = [threading.Thread(target=busy) for _ in range(3)]
    for work in works:
        work.start()
    try:
        before: set[int] = set()
        for _ in range(100):
            asked: list[int] = []
            assert on_every_thread(lambda asked=asked: not asked.append(threading.get_ident()))
            assert len(asked) == len(set(asked))
            assert before <= set(asked)
            before = set(asked)
        assert len(before) >= 4
        assert not on_every_thread(lambda: threading.current_thread() is threading.main_thread())
    finally:
        stop.set()
        for work in works:
            work.join()
