"""The page in a real browser: through a whole dispute, beside the demo, in light and dark, on a phone and on a desk."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tiebreak.contract.contract_calls import ANY_PLACE
from tiebreak.contract.enums import Phase, Side
from tiebreak.dashboard.site import Site
from tiebreak.devnet.embedded import embedded_node

from tests.client.disputes import JOB_CID, TERMS, Cast, Party, Run
from tests.dashboard.conftest import serving_site
from tests.dashboard.looking import AXE, Look

if TYPE_CHECKING:
    from playwright.sync_api import Browser


pytestmark = pytest.mark.browser
CLAIMED, BELIEVED = Run.of(23), Run.of()


@pytest.fixture
def look(browser: Browser, served: str) -> Iterator[Look]:
    found = Look(browser)
    found.page.set_default_timeout(60_000)  # the parties play in this process, on a machine that may be busy
    yield found
    found.close(served)


def play(cast: Cast, game: int, moves: int) -> None:
    """Let both sides of a game make so many moves."""
    parties = [Party(cast.trainer, CLAIMED, Side.TRAINER), Party(cast.auditor, BELIEVED, Side.CHALLENGER)]
    for turn in range(200):
        if not moves or cast.customer.game(game).phase is Phase.OVER:
            return
        moves -= parties[turn % 2].move(game) is not None


def test_a_page_follows_a_dispute_to_its_end_by_itself(cast: Cast, served: str, look: Look) -> None:
    job = cast.post()
    look.page.goto(served)
    assert look.page.url == f"{served}jobs"
    look.page.locator("#pulse.live").wait_for()
    look.page.get_by_role("link", name="Job 1").click()
    state = look.page.locator("#state")
    state.get_by_text("Waits for a trainer's claim").wait_for()
    cast.commit(job, CLAIMED)
    state.get_by_text("A trainer has claimed a result").wait_for()
    game = cast.challenge(job, BELIEVED.checkpoints.root)
    look.page.get_by_role("link", name="Game 1").click()
    look.page.get_by_text("challenges the claim").wait_for()
    clock = look.page.locator(".clock.running time").first
    before = clock.text_content()
    look.page.wait_for_function(
        "before => document.querySelector('.clock.running time').textContent != before", arg=before
    )
    play(cast, game, 11)  # as many as find a checkpoint and a step, and open what is below them
    look.page.get_by_text("step 22", exact=True).wait_for()
    look.page.locator(".path li").nth(2).wait_for()
    play(cast, game, 100)
    state.get_by_text("The challenger won by what the contract computed.").wait_for()
    look.page.get_by_text("state slot 2", exact=True).wait_for()
    assert look.page.get_by_role("status").text_content() == "Game 1: The challenger won by what the contract computed."
    look.page.locator("#pulse.live").wait_for(timeout=5_000)
    rows = look.page.locator("table.moves tbody tr")
    assert rows.count() > 7 and all(
        gas.replace(",", "").isdigit() for gas in rows.locator("td:nth-child(4)").all_inner_texts()
    )
    look.page.get_by_role("link", name="Job 1").click()
    state.get_by_text("A game ended against the claim").wait_for()


@pytest.fixture(scope="module")
def half_played() -> Iterator[str]:
    """The address of a site whose game is in the middle. Read only."""
    cast = Cast.on(embedded_node())
    job = cast.post()
    cast.commit(job, CLAIMED)
    play(cast, cast.challenge(job, BELIEVED.checkpoints.root), 12)
    audited = cast.post(replace(TERMS, attestations_needed=2, attestation_bond=10**17, audit_fee=10**16))
    cast.commit(audited, BELIEVED)
    given = {
        "spec_hash": cast.spec().hash,
        "checkpoint_root": BELIEVED.checkpoints.root,
        "bond": 10**17,
        "last_place": ANY_PLACE,
    }
    cast.auditor.send(cast.auditor.paying("attest", audited, log_cid=JOB_CID, model_cid=JOB_CID, **given))
    cast.referee.send(cast.referee.paying("attest", audited, log_cid="x" * 128, model_cid="<b>", **given))
    with serving_site(Site(cast.customer)) as url:
        yield url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_fits_and_can_be_read_by_everybody(
    half_played: str, browser: Browser, width: int, scheme: str
) -> None:
    look = Look(browser, width=width, scheme=scheme)
    for path in ("jobs", "jobs/1", "jobs/2", "games/1", "accounts", "games/9"):
        look.page.goto(half_played + path)
        look.page.locator("#pulse.live").wait_for()
        look.fits()
        look.picture(path.replace("/", "-"))
        if AXE.is_file():
            look.is_accessible()
    look.complaints = [said for said in look.complaints if "404" not in said]  # game 9
    look.close(half_played)


def test_without_scripts_a_page_is_whole_and_has_a_link_to_reload_it(
    cast: Cast, shown: Site, served: str, browser: Browser
) -> None:
    look = Look(browser, scripts=False)
    job = cast.post()
    cast.commit(job, CLAIMED)
    play(cast, cast.challenge(job, BELIEVED.checkpoints.root), 4)
    shown.head_monitor.look()
    look.page.goto(f"{served}games/1")
    assert look.page.locator("table.moves tbody tr").count() >= 4
    seen = look.page.locator("table.moves tbody tr").count()
    play(cast, 1, 3)
    shown.head_monitor.look()
    look.page.get_by_role("link", name="reload it").click()
    assert look.page.locator("table.moves tbody tr").count() > seen
    look.close(served)


def test_the_keyboard_reaches_everything(cast: Cast, shown: Site, served: str, look: Look) -> None:
    cast.post()
    shown.head_monitor.look()
    look.page.goto(served)
    reached = []
    while len(reached) < 20:
        look.page.keyboard.press("Tab")
        if look.page.evaluate("document.activeElement === document.body"):
            break
        reached.append(look.page.evaluate("document.activeElement.textContent.trim()"))
        outline = look.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"nothing shows that {reached[-1]!r} has the focus"
    assert reached[0] == "Skip to the content"
    assert {"Jobs", "Accounts", "Job 1"} <= set(reached) and len(reached) < 20


def test_what_strangers_write_stays_text(cast: Cast, shown: Site, served: str, look: Look) -> None:
    hostile = "<script>document.title='stolen'</script><img src=x onerror=alert(1)>"
    cast.customer.send(cast.customer.post_job(cast.spec(), TERMS, hostile))
    shown.head_monitor.look()
    look.page.goto(f"{served}jobs/1")
    look.page.get_by_text("not a content address").wait_for()
    assert look.page.locator("dd.hash").filter(has_text="<script>").count() == 1
    assert look.page.locator("main script, main img").count() == 0
    assert look.page.title() == "Job 1 · Tiebreak"


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


@pytest.mark.long
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
    """Open the page once it is there."""
    from playwright.sync_api import Error

    for _ in range(600):
        try:
            look.page.goto(url)
            return
        except Error:
            time.sleep(0.2)
    raise AssertionError("the page does not come")
