"""The demo as a visitor plays it, watched in a browser from its first job to its last withdrawal."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.dashboard.looking import AXE, Look

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

PATIENCE = 300_000.0
"""Milliseconds that a part of the story may take."""


class Terminal:
    """The demo in a terminal of its own, where its page stays open until Ctrl-C."""

    def __init__(self, *words: str) -> None:
        self.said = ""
        self._screen, keyboard = pty.openpty()
        env = {name: value for name, value in os.environ.items() if not name.startswith("TIEBREAK_")}
        command = [sys.executable, "-m", "tiebreak.cli.app", "demo", *words]
        self.process = subprocess.Popen(command, stdin=keyboard, stdout=keyboard, stderr=keyboard, env=env)
        os.close(keyboard)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # how a terminal ends
            while piece := os.read(self._screen, 4096):
                self.said += piece.decode("utf-8", "replace")

    def wait_for(self, pattern: str) -> str:
        """The first thing said that matches."""
        ends = time.monotonic() + PATIENCE / 1000
        while (found := re.search(pattern, self.said)) is None:
            assert self.process.poll() is None and time.monotonic() < ends, self.said
            time.sleep(0.1)
        return found[0]

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        self._reader.join(10)
        os.close(self._screen)


def test_a_poisoned_batch_is_watched_until_the_verdict(browser: Browser) -> None:
    with Terminal("--dashboard", "--port", "0", "--pace", "300ms", "--story", "poisoned", "--steps", "20") as demo:
        url = demo.wait_for(r"http://127\.0\.0\.1:\d+/")
        assert demo.said.startswith("The page is at http"), "the address comes first"
        look = Look(browser)
        _open(look, url)
        look.page.get_by_role("link", name="Job 1").click(timeout=PATIENCE)
        state = look.page.locator("#state")
        state.get_by_text("A trainer has claimed a result").wait_for(timeout=PATIENCE)
        look.page.get_by_role("link", name="Game 1").click(timeout=PATIENCE)
        state.get_by_text("is on move").wait_for(timeout=PATIENCE)
        look.page.locator(".clock.running").first.wait_for(timeout=PATIENCE)
        state.get_by_text("The challenger won by what the contract computed.").wait_for(timeout=PATIENCE)
        look.page.get_by_text("step 12", exact=True).wait_for()
        look.page.locator(".numbers code").nth(1).wait_for(timeout=PATIENCE)
        claimed, computed = look.page.locator(".numbers code").all_inner_texts()
        assert re.fullmatch("0x([0-9a-f]{8}|[0-9a-f]{16})", claimed) and claimed != computed
        demo.wait_for(r"The page is still at \S+ \(Ctrl-C ends it\)")
        assert "Everything went as it should" in demo.said
        look.page.reload()
        look.fits()
        look.picture("demo")
        if AXE.is_file():
            look.is_accessible()
        look.complaints = [said for said in look.complaints if "ERR_CONNECTION" not in said]  # before it was there
        look.close(url)
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(60) == 0


def _open(look: Look, url: str) -> None:
    """Opens the page once it is there."""
    from playwright.sync_api import Error

    for _ in range(600):
        try:
            look.page.goto(url)
            return
        except Error:
            time.sleep(0.2)
    raise AssertionError("the page does not come")
