"""The messenger: delivers alerts to webhooks and commands, from threads of its own.

A role hands an alert over and goes on. What hangs is given up in time, and what fails is tried again a few times.
"""

from __future__ import annotations

import json
import queue
import shlex
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import suppress

from tiebreak.http_client import Halted, TooLate, pause, post, session, within
from tiebreak.process_resources import environment_of_others

_SECONDS = 15.0
"""Most seconds for one attempt."""

_PAUSES = (2.0, 10.0, 60.0)
"""Seconds before the second and later attempts."""

Message = Mapping[str, object]


class DeliveryFailed(Exception):
    """An alert did not reach its target."""


def check_target(text: str) -> str:
    """Return a text that names an http(s) URL, or a command with its arguments. Raises ValueError with a sentence."""
    if text.startswith(("http://", "https://")):
        if not urllib.parse.urlsplit(text).hostname:
            raise ValueError("the address of the webhook has no host: use the form https://host/path.")
        return text
    if "://" in text.split(" ")[0]:
        raise ValueError("only http and https addresses can be notified: use one, or a command.")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"the command to notify cannot be read ({error}): check its quotes.") from None
    if not words:
        raise ValueError("nothing is named to be notified: give an address or a command.")
    return text


def deliver(target: str, message: Message, stop: threading.Event) -> None:
    """Deliver one alert, a JSON object: by POST to a URL, whose answer of 2xx is a delivery, or on the standard input
    of a command, whose exit code 0 is one; it does not inherit Tiebreak's own variables. Raises DeliveryFailed, and
    Halted when `stop` is set."""
    data = json.dumps(message).encode()

    def ask() -> int:
        with session() as connections:
            return post(connections, target, data, seconds=_SECONDS, most=0).status

    try:
        if target.startswith(("http://", "https://")):
            if not 200 <= within(_SECONDS, stop, ask) < 300:
                raise DeliveryFailed
            return
        subprocess.run(
            shlex.split(target),
            input=data,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment_of_others(),
            start_new_session=True,
            timeout=_SECONDS,
            check=True,
        )
    except (TooLate, OSError, subprocess.SubprocessError):  # errors of requests are OSErrors
        raise DeliveryFailed from None


class Messenger:
    """A queue of alerts and a thread for each target, so that one that hangs keeps nothing from another. `lost`:
    alerts that did not arrive, so far."""

    def __init__(self, targets: Sequence[str], *, pauses: Sequence[float] = _PAUSES) -> None:
        self.lost = 0
        self._pauses = pauses
        self._stop = threading.Event()
        self._queues: list[queue.SimpleQueue[Message | None]] = [queue.SimpleQueue() for _ in targets]
        self._threads = [
            threading.Thread(target=self._run, args=pair, name="notify", daemon=True)
            for pair in zip(targets, self._queues, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, message: Message | None) -> None:
        """Hand an alert over, and return at once. None ends the threads after what waits."""
        for waiting in self._queues:
            waiting.put(message)

    def close(self, patience: float = 5.0) -> None:
        """End after what waits is delivered, or after `patience` seconds."""
        deadline = time.monotonic() + patience
        self.send(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stop.set()

    def _run(self, target: str, waiting: queue.SimpleQueue[Message | None]) -> None:
        with suppress(Halted):
            while not self._stop.is_set() and (message := waiting.get()) is not None:
                self._deliver(target, message)

    def _deliver(self, target: str, message: Message) -> None:
        for seconds in (0.0, *self._pauses):
            pause(seconds, self._stop)
            with suppress(DeliveryFailed):
                return deliver(target, message, self._stop)
        self.lost += 1
