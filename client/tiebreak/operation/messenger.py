"""The messenger: delivers alerts to webhooks and commands, from a thread of its own.

A role hands an alert over and goes on. What hangs is given up in time, and what fails is tried again a few times.
By hand, since apprise, which knows many services, does not end when it is told to stop, and logs addresses.
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
from typing import Protocol

import requests

from tiebreak.http_client import Halted, TooLate, pause, post, session, within
from tiebreak.process_resources import environment_of_others
from tiebreak.rpc.chain_errors import printable

_SECONDS = 15.0
"""Most seconds for one attempt."""

_PAUSES = (2.0, 10.0, 60.0)
"""Seconds before the second and later attempts."""

_MOST_WAITING = 100


class DeliveryFailed(Exception):
    """An alert did not reach its target; the message is a clause without secrets."""


class Target(Protocol):
    """A place that alerts go to. `name`: for messages; without secrets."""

    name: str

    def deliver(self, message: Mapping[str, object], stop: threading.Event) -> None:
        """Delivers one alert. Raises DeliveryFailed."""


class Webhook:
    """A URL that gets each alert as a JSON object by POST. An answer of 2xx is a delivery; redirects are no answer."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        # The path of a chat's webhook is its password.
        self.name = f"the webhook at {parts.hostname}"
        self._url = url

    def deliver(self, message: Mapping[str, object], stop: threading.Event) -> None:
        try:
            status = within(_SECONDS, stop, lambda: self._post(json.dumps(message).encode()))
        except TooLate:
            raise DeliveryFailed(f"no answer within {_SECONDS:g} seconds") from None
        except requests.RequestException as error:
            # Its text has the URL.
            raise DeliveryFailed(type(error).__name__) from None
        if not 200 <= status < 300:
            raise DeliveryFailed(f"status {status}")

    def _post(self, body: bytes) -> int:
        with session() as connections:
            return post(connections, self._url, body, seconds=_SECONDS, most=0).status


class Command:
    """A program that gets each alert as a JSON object on its standard input. Exit code 0 is a delivery. It does not
    inherit Tiebreak's own variables."""

    def __init__(self, words: Sequence[str]) -> None:
        self.name = f"the command {words[0]}"
        self._words = list(words)

    def deliver(self, message: Mapping[str, object], stop: threading.Event) -> None:
        try:
            process = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment_of_others(),
                start_new_session=True,
            )
        except OSError as error:
            raise DeliveryFailed(error.strerror or type(error).__name__) from None
        try:
            process.communicate(json.dumps(message).encode(), timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise DeliveryFailed(f"it did not end within {_SECONDS:g} seconds") from None
        if process.returncode:
            raise DeliveryFailed(f"exit code {process.returncode}")


def target(text: str) -> Target:
    """The target that a text names: an http(s) URL, or a command with its arguments. Raises ValueError with a
    sentence."""
    if text.startswith(("http://", "https://")):
        if not urllib.parse.urlsplit(text).hostname:
            raise ValueError("the address of the webhook has no host: use the form https://host/path.")
        return Webhook(text)
    if "://" in text.split(" ")[0]:
        raise ValueError("only http and https addresses can be notified: use one, or a command.")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"the command to notify cannot be read ({error}): check its quotes.") from None
    if not words:
        raise ValueError("nothing is named to be notified: give an address or a command.")
    return Command(words)


class Messenger:
    """A queue of alerts before each target. `failed`: alerts that did not arrive, so far."""

    def __init__(self, targets: Sequence[Target], *, pauses: Sequence[float] = _PAUSES) -> None:
        self.failed = 0
        self.last_failure = ""
        self._pauses = pauses
        self._stop = threading.Event()
        self._queues: list[queue.Queue[Mapping[str, object] | None]] = []
        self._threads = []
        self._lock = threading.Lock()
        # A queue and a thread for each, so that one that hangs keeps nothing from another.
        for one in targets:
            waiting: queue.Queue[Mapping[str, object] | None] = queue.Queue(_MOST_WAITING)
            thread = threading.Thread(target=self._run, args=(one, waiting), name="notify", daemon=True)
            self._queues.append(waiting)
            self._threads.append(thread)
            thread.start()

    def send(self, message: Mapping[str, object]) -> None:
        """Hands an alert over; returns at once."""
        for waiting in self._queues:
            try:
                waiting.put_nowait(message)
            except queue.Full:
                self._fail("too many alerts wait")

    def close(self, patience: float = 5.0) -> None:
        """Ends after what waits is delivered, or after `patience` seconds."""
        deadline = time.monotonic() + patience
        for waiting in self._queues:
            try:
                waiting.put_nowait(None)
            except queue.Full:
                self._stop.set()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stop.set()

    def _run(self, one: Target, waiting: queue.Queue[Mapping[str, object] | None]) -> None:
        while not self._stop.is_set() and (message := waiting.get()) is not None:
            try:
                self._deliver(one, message)
            except Halted:
                return

    def _deliver(self, one: Target, message: Mapping[str, object]) -> None:
        for seconds in (*self._pauses, None):
            try:
                one.deliver(message, self._stop)
                return
            except DeliveryFailed as error:
                why = f"{one.name} was not reached: {printable(str(error))}"
            if seconds is not None:
                pause(seconds, self._stop)
        self._fail(why)

    def _fail(self, why: str) -> None:
        with self._lock:
            self.failed += 1
            self.last_failure = why
